"""The hardware: which 16-bit types its devices compute, and the table of its CPU's costs.

A CPU that ``amp-tf calibrate`` measured has its own table, any other CPU a shipped one. Measured
tables are kept in the user's cache folder (``$XDG_CACHE_HOME/amp_tf``, else ``~/.cache/amp_tf``).
There is a file for each CPU model, number of cores, TensorFlow and setting of oneDNN, because all
of them decide which kernels run and how fast. oneDNN's version is TensorFlow's own: it is linked
in.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import importlib.metadata
import itertools
import os
import platform
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
#: The shipped table by vendor and family of /proc/cpuinfo, and by the unit that multiplies
#: bfloat16. Virtual machines often hide AMX, Intel's unit for products; without it bfloat16 is
#: slower than float32 on the same CPU.
_SHIPPED = {
    ("AuthenticAMD", "25", "avx512_bf16"): "amd-zen4",
    ("AuthenticAMD", "26", "avx512_bf16"): "amd-zen5",
    ("GenuineIntel", "6", "amx_bf16"): "intel-amx",
    ("GenuineIntel", "6", "avx512_bf16"): "intel-without-amx",
}
_CAREFUL = (
    "shipped for another kind of CPU, with products taken to gain the square root of what they "
    "gain there; amp-tf calibrate measures this one"
)


@dataclasses.dataclass(frozen=True)
class Hardware:
    """The devices of this machine, as far as precision is concerned.

    Attributes:
        gpu_capabilities: compute capability (major, minor) of each GPU that TensorFlow sees.
        cpu_has_bf16: whether the CPU multiplies bfloat16 in hardware.
        cpu_has_avx512: whether the CPU has AVX-512; oneDNN runs bfloat16 kernels with it alone.
        is_xla: whether XLA compiles the graphs, with its own kernels.
        costs: the costs of ops on the CPU.
        has_onednn: whether TensorFlow computes with oneDNN where that has a kernel. Otherwise
            Eigen's kernels run, which keep sums in bfloat16; float32 computes the products.
        imitates_gpu: whether this machine's CPU runs graphs that are rewritten for a GPU, to show
            what a GPU would compute.
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
        if not all(isinstance(number, int) for number in itertools.chain(*pairs)):
            raise ConfigError(
                f"{self.gpu_capabilities!r} is not a list of compute capabilities",
                where="Hardware.gpu_capabilities",
                fix="Write a pair for each GPU, such as ((7, 0), (8, 0))",
            )
        object.__setattr__(self, "gpu_capabilities", pairs)

    @classmethod
    def detect_cpu(cls) -> Hardware:
        """Detects the CPU alone, from ``/proc/cpuinfo``, without TensorFlow."""
        flags = cpu_flags()
        return cls(
            cpu_has_bf16=not BF16_CPU_FLAGS.isdisjoint(flags),
            cpu_has_avx512="avx512f" in flags,
            costs=costs_here(),
            has_onednn=has_onednn(flags, cpu_info().get("CPU part", ""), onednn_setting()),
        )

    @property
    def cpu_gains(self) -> bool:
        """True if TensorFlow multiplies bfloat16 in the CPU's hardware, faster than float32."""
        return self.cpu_has_bf16 and self.has_onednn and self.costs.gains

    @property
    def has_gpu(self) -> bool:
        """True if TensorFlow sees a GPU."""
        return bool(self.gpu_capabilities)

    @property
    def gpu_has_f16(self) -> bool:
        """True if every GPU is fast in 16 bit; a graph may run on any of them."""
        return self.has_gpu and all(
            capability >= MIN_COMPUTE_CAPABILITY for capability in self.gpu_capabilities
        )


def cpu_flags() -> frozenset[str]:
    """The instruction sets of this CPU by /proc/cpuinfo, which has "features" on Arm."""
    info = cpu_info()
    return frozenset((info.get("flags") or info.get("Features", "")).split())


def has_onednn(flags: Set[str], arm_part: str, setting: str) -> bool:
    """Returns True if TensorFlow computes with oneDNN.

    Source: ``IsMklEnabled`` of TensorFlow's core/util/port.cc.

    Args:
        flags: of /proc/cpuinfo.
        arm_part: its "CPU part", which x86 has not.
        setting: of ``TF_ENABLE_ONEDNN_OPTS``; empty where it is not set.
    """
    if setting.lower() in ("1", "true"):
        return True
    if setting.lower() in ("0", "false"):
        return False
    return not ONEDNN_CPU_FLAGS.isdisjoint(flags) or arm_part == _ONEDNN_ARM_PART


@functools.lru_cache(maxsize=1)
def cpu_info() -> Mapping[str, str]:
    """The entries of the first core in /proc/cpuinfo by key; empty without such a file."""
    facts: dict[str, str] = {}
    with contextlib.suppress(OSError), _CPU_INFO.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:  # up to the second core, each of which has a section
            key, colon, value = line.partition(":")
            if not colon and facts:
                break
            facts[key.strip()] = value.strip()
    return facts


def cpu_name() -> str:
    """The model of this CPU."""
    return cpu_info().get("model name") or platform.machine()


def identity() -> str:
    """Names this machine, its TensorFlow and oneDNN, for people and for a table's file."""
    info = cpu_info()
    keys = ("vendor_id", "cpu family", "model", "CPU implementer", "CPU part")
    kind = " ".join(info.get(key, "") for key in keys)
    onednn = onednn_setting() or "by default"
    cores = len(os.sched_getaffinity(0))
    return (
        f"{cpu_name()} ({kind.strip()}), {cores} cores, TensorFlow {_tensorflow()}, oneDNN {onednn}"
    )


def cache_file() -> Path:
    """The file of this machine's own table."""
    digest = hashlib.sha256(identity().encode()).hexdigest()
    return cache_folder() / f"costs-{digest[:16]}.json"


@functools.lru_cache(maxsize=1)
def costs_here() -> CostTable:
    """The table of this machine's costs; its ``source`` says which.

    A file that cannot be read is ignored, with a warning.
    """
    with contextlib.suppress(OSError, RuntimeError):  # without the file, or without a home
        try:
            return read_table(cache_file())
        except ConfigError as error:
            warnings.warn(f"amp_tf: {error} Until then, the shipped table counts.", stacklevel=2)
    return shipped_costs()


def shipped_costs() -> CostTable:
    """The shipped table for this kind of CPU, or a conservative one for an unknown kind."""
    info = cpu_info()
    flags = cpu_flags()
    for unit in ("amx_bf16", "avx512_bf16"):
        if unit in flags:
            kind = (info.get("vendor_id", ""), info.get("cpu family", ""), unit)
            if kind in _SHIPPED:
                return read_table(SHIPPED_FOLDER / f"{_SHIPPED[kind]}.json")
            break
    return SHIPPED.conservative(_CAREFUL)


def _tensorflow() -> str:
    """TensorFlow's version, as pip writes it, without importing it.

    An imported TensorFlow may spell it otherwise, such as 2.21.0-rc1 for 2.21.0rc1. A table's file
    must have one name before the import and after it.
    """
    for distribution in DISTRIBUTIONS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(distribution)
    return "unknown"
