"""Which CPU this is, and which table of costs counts on it: its own where it was measured, else a shipped one.

``amp-tf calibrate`` measures. What it finds is kept in the user's cache folder (``$XDG_CACHE_HOME/amp_tf``, else
``~/.cache/amp_tf``), a file for each CPU model, number of cores, TensorFlow and setting of oneDNN, all of which decide
what kernels run and how fast. oneDNN's version is TensorFlow's own: it is linked in.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import os
import platform
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path

from amp_tf.errors import ConfigError
from amp_tf.oplists.cost_tables import SHIPPED, SHIPPED_FOLDER, CostTable, read_table

DISTRIBUTIONS = ("tensorflow", "tensorflow-cpu", "tf-nightly", "tf-nightly-cpu", "tensorflow-intel")
"""The names under which TensorFlow is installed."""

_CPU_INFO = Path("/proc/cpuinfo")
#: The shipped table for each vendor and family of /proc/cpuinfo on which one was measured, by what multiplies bfloat16
#: there. Virtual machines often hide AMX, Intel's unit for products; without it bfloat16 loses on the same CPU.
_SHIPPED = {
    ("AuthenticAMD", "25", "avx512_bf16"): "amd-zen4",
    ("AuthenticAMD", "26", "avx512_bf16"): "amd-zen5",
    ("GenuineIntel", "6", "avx512_bf16"): "intel-without-amx",
}
_CAREFUL = (
    "shipped for another kind of CPU, with products taken to gain the square root of what they gain there; "
    "amp-tf calibrate measures this one"
)


@functools.lru_cache(maxsize=1)
def cpu_info() -> Mapping[str, str]:
    """What /proc/cpuinfo says of the first core, by its keys; empty where there is none."""
    facts: dict[str, str] = {}
    with contextlib.suppress(OSError), _CPU_INFO.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:  # as many as are needed: the file has a part for each core
            key, colon, value = line.partition(":")
            if not colon and facts:
                break
            facts[key.strip()] = value.strip()
    return facts


def cpu_name() -> str:
    """The model of this CPU."""
    return cpu_info().get("model name") or platform.machine()


def identity() -> str:
    """The machine that a table of costs is measured on, and with what: one line for people and for the file's name."""
    info = cpu_info()
    kind = " ".join(info.get(key, "") for key in ("vendor_id", "cpu family", "model", "CPU implementer", "CPU part"))
    onednn = onednn_setting() or "by default"
    cores = len(os.sched_getaffinity(0))
    return f"{cpu_name()} ({kind.strip()}), {cores} cores, TensorFlow {_tensorflow()}, oneDNN {onednn}"


def onednn_setting() -> str:
    """What the user says of oneDNN to TensorFlow; empty for nothing."""
    return os.environ.get("TF_ENABLE_ONEDNN_OPTS", "")


def cache_file() -> Path:
    """Where this machine's own table is kept."""
    folder = os.environ.get("XDG_CACHE_HOME")
    base = Path(folder) if folder else Path.home() / ".cache"
    return base / "amp_tf" / f"costs-{hashlib.sha256(identity().encode()).hexdigest()[:16]}.json"


@functools.lru_cache(maxsize=1)
def costs_here() -> CostTable:
    """The table that counts on this machine; its ``source`` says which.

    A file that cannot be read counts as none, with a warning.
    """
    with contextlib.suppress(OSError, RuntimeError):  # there is none, or no home
        try:
            return read_table(cache_file())
        except ConfigError as error:
            warnings.warn(f"amp_tf: {error}; the shipped table counts", stacklevel=2)
    return shipped_costs()


def shipped_costs() -> CostTable:
    """The shipped table for this kind of CPU; for one that was not measured, a careful one."""
    info = cpu_info()
    flags = info.get("flags", "").split()
    unit = next((flag for flag in ("amx_bf16", "avx512_bf16") if flag in flags), "")
    name = _SHIPPED.get((info.get("vendor_id", ""), info.get("cpu family", ""), unit))
    return read_table(SHIPPED_FOLDER / f"{name}.json") if name else SHIPPED.conservative(_CAREFUL)


def _tensorflow() -> str:
    """TensorFlow's version, without importing it."""
    loaded = getattr(sys.modules.get("tensorflow"), "__version__", "")
    if loaded:
        return str(loaded)
    for distribution in DISTRIBUTIONS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(distribution)
    return "unknown"
