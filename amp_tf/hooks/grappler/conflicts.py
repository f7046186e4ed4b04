"""Finds other graph optimizer plugins in this process.

TensorFlow aborts the process when two plugins register for the same device type (``RegisterPluginOptimizerOrDie`` in
custom_graph_optimizer_registry.cc), and does not say which device types are taken. So amp_tf looks where TensorFlow
itself looks for plugins, and does not register if it finds one with a graph optimizer.
"""

from __future__ import annotations

import ctypes
import os
import site
import sys
import sysconfig
from pathlib import Path

_FOLDER = "tensorflow-plugins"
_PATH_VAR = "TF_PLUGGABLE_DEVICE_LIBRARY_PATH"  # TensorFlow's own variable, not a setting of amp_tf


def other_graph_plugins() -> list[str]:
    """Paths of the libraries that TensorFlow loaded as plugins and that export ``TF_InitGraph``.

    Source of the places: the end of tensorflow/__init__.py.
    """
    return [str(path) for path in _candidates() if _has_graph_optimizer(path)]


def _candidates() -> list[Path]:
    folders = [*sys.path, *site.getsitepackages(), *map(sysconfig.get_path, ("purelib", "platlib"))]
    if site.ENABLE_USER_SITE and site.USER_SITE:
        folders.append(site.USER_SITE)
    places = [Path(folder) / _FOLDER for folder in dict.fromkeys(folders) if folder]
    if named := os.environ.get(_PATH_VAR):
        places.append(Path(named))
    found: dict[Path, None] = {}
    for place in places:
        for path in sorted(place.iterdir()) if place.is_dir() else [place] if place.is_file() else []:
            if path.suffix == ".so" or ".so." in path.name:
                found[path.resolve()] = None
    return list(found)


def _has_graph_optimizer(path: Path) -> bool:
    try:
        library = ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:  # TensorFlow did not load it, so it registered nothing
        return False
    return hasattr(library, "TF_InitGraph")
