"""What the hardware can do in 16 bit: which CPU this is, and which table of costs counts on it.

Its own counts where it was measured, else a shipped one. ``amp-tf calibrate`` measures. What it
finds is kept in the user's cache folder (``$XDG_CACHE_HOME/amp_tf``, else ``~/.cache/amp_tf``), a
file for each CPU model, number of cores, TensorFlow and setting of oneDNN, all of which decide what
kernels run and how fast. oneDNN's version is TensorFlow's own: it is linked in.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import importlib.metadata
import os
import platform
import sys
import warnings
from collections.abc import Mapping, Set
from pathlib import Path

from amp_tf.config import cache_folder, onednn_setting
from amp_tf.errors import ConfigError
from amp_tf.oplists.cost_tables import SHIPPED, SHIPPED_FOLDER, CostTable, read_table

MIN_COMPUTE_CAPABILITY = (7, 0)  # the first NVIDIA GPUs with tensor cores (Volta)
BF16_CPU_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})  # the last is Arm's name
# The CPUs on which TensorFlow turns oneDNN on by itself: x86 with one of these, and Arm's Neoverse
# V1 (part 0xd40).
ONEDNN_CPU_FLAGS = frozenset(
    {"avx512_vnni", "avx512_bf16", "avx_vnni", "amx_tile", "amx_int8", "amx_bf16"}
)
_ONEDNN_ARM_PART = "0xd40"
DISTRIBUTIONS = ("tensorflow", "tensorflow-cpu", "tf-nightly", "tf-nightly-cpu", "tensorflow-intel")
"""The names under which TensorFlow is installed."""

_CPU_INFO = Path("/proc/cpuinfo")
#: The shipped table for each vendor and family of /proc/cpuinfo on which one was measured, by what
#: multiplies bfloat16 there. Virtual machines often hide AMX, Intel's unit for products; without it
#: bfloat16 loses on the same CPU.
_SHIPPED = {
    ("AuthenticAMD", "25", "avx512_bf16"): "amd-zen4",
    ("AuthenticAMD", "26", "avx512_bf16"): "amd-zen5",
    ("GenuineIntel", "6", "amx_bf16"): "intel-amx",
    ("GenuineIntel", "6", "avx512_bf16"): "intel-without-amx",
}
_CAREFUL = (
    "shipped for another kind of CPU, with products taken to gain the square root of what they "
    "gain there; "
    "amp-tf calibrate measures this one"
)


@dataclasses.dataclass(frozen=True)
class Hardware:
    """The devices of this machine, as far as precision is concerned.

    Attributes:
        gpu_capabilities: compute capability (major, minor) of each GPU that TensorFlow sees.
        cpu_has_bf16: the CPU multiplies bfloat16 in hardware.
        cpu_has_avx512: the CPU has AVX-512, with which oneDNN runs bfloat16 kernels where there is
            no such hardware.
        is_xla: XLA compiles what runs here, with its own kernels.
        costs: what ops take on the CPU.
        has_onednn: TensorFlow computes with oneDNN where that has a kernel; else Eigen's kernels
            run, which keep sums in bfloat16.
        imitates_gpu: this machine's CPU runs what is rewritten for a GPU, to show what a GPU would
            compute.
    """

    gpu_capabilities: tuple[tuple[int, int], ...] = ()
    cpu_has_bf16: bool = False
    cpu_has_avx512: bool = False
    is_xla: bool = False
    costs: CostTable = SHIPPED
    has_onednn: bool = True
    imitates_gpu: bool = False

    def __post_init__(self) -> None:
        pairs: tuple[tuple[object, object], ...] = ((None, None),)
        with contextlib.suppress(TypeError, ValueError):
            pairs = tuple((major, minor) for major, minor in self.gpu_capabilities)
        if not all(isinstance(number, int) for pair in pairs for number in pair):
            raise ConfigError(
                f"{self.gpu_capabilities!r} is not a list of compute capabilities",
                where="Hardware.gpu_capabilities",
                fix="Write a pair for each GPU, such as ((7, 0), (8, 0))",
            )
        object.__setattr__(self, "gpu_capabilities", pairs)

    @classmethod
    def detect_cpu(cls) -> Hardware:
        """The CPU alone, from ``/proc/cpuinfo``; no TensorFlow, no GPU."""
        flags = cpu_flags()
        return cls(
            cpu_has_bf16=not BF16_CPU_FLAGS.isdisjoint(flags),
            cpu_has_avx512="avx512f" in flags,
            costs=costs_here(),
            has_onednn=has_onednn(flags, cpu_info().get("CPU part", ""), onednn_setting()),
        )

    @property
    def cpu_gains(self) -> bool:
        """Whether the CPU multiplies bfloat16 in hardware, and faster than float32 by its table of
        costs.
        """
        return self.cpu_has_bf16 and self.costs.gains

    @property
    def has_gpu(self) -> bool:
        return bool(self.gpu_capabilities)

    @property
    def gpu_has_f16(self) -> bool:
        """Whether every GPU is fast in 16 bit (a graph may run on any of them)."""
        return self.has_gpu and all(
            capability >= MIN_COMPUTE_CAPABILITY for capability in self.gpu_capabilities
        )


def cpu_flags() -> frozenset[str]:
    """What this CPU can do, by /proc/cpuinfo; Arm calls them features."""
    info = cpu_info()
    return frozenset((info.get("flags") or info.get("Features", "")).split())


def has_onednn(flags: Set[str], arm_part: str, setting: str) -> bool:
    """Whether TensorFlow computes with oneDNN, as ``IsMklEnabled`` of its core/util/port.cc
    decides.

    Args:
        flags: of /proc/cpuinfo.
        arm_part: its "CPU part", which x86 has not.
        setting: of ``TF_ENABLE_ONEDNN_OPTS``; empty where it is not set.
    """
    said = {"1": True, "true": True, "0": False, "false": False}.get(setting.lower())
    if said is not None:
        return said
    return not ONEDNN_CPU_FLAGS.isdisjoint(flags) or arm_part == _ONEDNN_ARM_PART


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
    """The machine that a table of costs is measured on, and with what: one line for people and for
    the file's name.
    """
    info = cpu_info()
    kind = " ".join(
        info.get(key, "")
        for key in ("vendor_id", "cpu family", "model", "CPU implementer", "CPU part")
    )
    onednn = onednn_setting() or "by default"
    cores = len(os.sched_getaffinity(0))
    return (
        f"{cpu_name()} ({kind.strip()}), {cores} cores, TensorFlow {_tensorflow()}, oneDNN {onednn}"
    )


def cache_file() -> Path:
    """Where this machine's own table is kept."""
    return cache_folder() / f"costs-{hashlib.sha256(identity().encode()).hexdigest()[:16]}.json"


@functools.lru_cache(maxsize=1)
def costs_here() -> CostTable:
    """The table that counts on this machine; its ``source`` says which.

    A file that cannot be read counts as none, with a warning.
    """
    with contextlib.suppress(OSError, RuntimeError):  # there is none, or no home
        try:
            return read_table(cache_file())
        except ConfigError as error:
            warnings.warn(f"amp_tf: {error} Until then, the shipped table counts.", stacklevel=2)
    return shipped_costs()


def shipped_costs() -> CostTable:
    """The shipped table for this kind of CPU; for one that was not measured, a careful one."""
    info, flags = cpu_info(), cpu_flags()
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
