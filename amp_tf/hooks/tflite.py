"""Says why TFLite does not take a model that amp_tf converted.

TFLite's kernels compute no products in 16 bit. Its converter says so by the first op that it cannot lower, with the
places of all functions around it, and not what to do: take the original. Each way to convert ends in one function
(``convert`` of tensorflow/lite/python/convert.py), which gets the folder of a SavedModel or a serialized graph.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from amp_tf.config import AmpConfig
from amp_tf.errors import FileError
from amp_tf.graph.names import CAST_SUFFIX
from amp_tf.hooks.patches import Patches, calling

_patches = Patches()


def install(config: AmpConfig) -> None:
    """Wraps TFLite's converter, which TensorFlow imports. Idempotent."""
    if converter := sys.modules.get("tensorflow.lite.python.convert"):
        _patches.put(converter, "convert", calling(_convert))


def uninstall() -> None:
    """Takes the wrapper off. Idempotent."""
    _patches.restore()


def _convert(convert: Any, /, model_flags: Any, *args: Any, **kwargs: Any) -> Any:
    try:
        return convert(model_flags, *args, **kwargs)
    except Exception as error:  # it stays what it is, with a line in front of its text
        if _is_converted(model_flags.saved_model_dir, (*args, *kwargs.values())):
            said = FileError(
                "amp_tf converted this model to 16 bit, and TFLite's kernels compute no products in 16 bit",
                where="TFLite's converter",
                fix="Convert the original model for TFLite",
            )
            error.args = (f"{said}\n{error}", *error.args[1:])
        raise


def _is_converted(folder: str, given: tuple[Any, ...]) -> bool:
    """Whether a graph has one of our casts: of a SavedModel's folder, or among what the converter was given."""
    graphs = [one for one in given if isinstance(one, bytes)]
    if folder:
        graphs += [file.read_bytes() for file in Path(folder).glob("saved_model.pb")]
    return any(f"-{CAST_SUFFIX}".encode() in graph for graph in graphs)
