"""What the hardware can do in 16 bit."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Set

from amp_tf.errors import ConfigError
from amp_tf.oplists import machine
from amp_tf.oplists.cost_tables import SHIPPED, CostTable

MIN_COMPUTE_CAPABILITY = (7, 0)  # the first NVIDIA GPUs with tensor cores (Volta)
BF16_CPU_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})  # the last is Arm's name
# With AVX-512 FP16 or AMX FP16 oneDNN multiplies float16 in hardware; Arm's half-precision arithmetic is asimdhp.
F16_CPU_FLAGS = frozenset({"avx512_fp16", "amx_fp16", "asimdhp"})
# The CPUs on which TensorFlow turns oneDNN on by itself: x86 with one of these, and Arm's Neoverse V1 (part 0xd40).
ONEDNN_CPU_FLAGS = frozenset({"avx512_vnni", "avx512_bf16", "avx_vnni", "amx_tile", "amx_int8", "amx_bf16"})
_ONEDNN_ARM_PART = "0xd40"


@dataclasses.dataclass(frozen=True)
class Hardware:
    """The devices of this machine, as far as precision is concerned.

    Attributes:
        gpu_capabilities: compute capability (major, minor) of each GPU that TensorFlow sees.
        cpu_has_bf16: the CPU multiplies bfloat16 in hardware.
        cpu_has_avx512: the CPU has AVX-512, with which oneDNN runs bfloat16 kernels where there is no such hardware.
        is_xla: XLA compiles what runs here, with its own kernels.
        costs: what ops take on the CPU.
        has_onednn: TensorFlow computes with oneDNN where that has a kernel; else Eigen's kernels run, which keep sums
            in bfloat16.
    """

    gpu_capabilities: tuple[tuple[int, int], ...] = ()
    cpu_has_bf16: bool = False
    cpu_has_avx512: bool = False
    is_xla: bool = False
    costs: CostTable = SHIPPED
    has_onednn: bool = True

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
            costs=machine.costs_here(),
            has_onednn=has_onednn(flags, machine.cpu_info().get("CPU part", ""), machine.onednn_setting()),
        )

    @property
    def cpu_gains(self) -> bool:
        """Whether the CPU multiplies bfloat16 in hardware, and faster than float32 by its table of costs."""
        return self.cpu_has_bf16 and self.costs.gains

    @property
    def has_gpu(self) -> bool:
        return bool(self.gpu_capabilities)

    @property
    def gpu_has_f16(self) -> bool:
        """Whether every GPU is fast in 16 bit (a graph may run on any of them)."""
        return self.has_gpu and all(capability >= MIN_COMPUTE_CAPABILITY for capability in self.gpu_capabilities)


def cpu_flags() -> frozenset[str]:
    """What this CPU can do, by /proc/cpuinfo; Arm calls them features."""
    info = machine.cpu_info()
    return frozenset((info.get("flags") or info.get("Features", "")).split())


def has_onednn(flags: Set[str], arm_part: str, setting: str) -> bool:
    """Whether TensorFlow computes with oneDNN, as ``IsMklEnabled`` of its core/util/port.cc decides.

    Args:
        flags: of /proc/cpuinfo.
        arm_part: its "CPU part", which x86 has not.
        setting: of ``TF_ENABLE_ONEDNN_OPTS``; empty where it is not set.
    """
    said = {"1": True, "true": True, "0": False, "false": False}.get(setting.lower())
    if said is not None:
        return said
    return not ONEDNN_CPU_FLAGS.isdisjoint(flags) or arm_part == _ONEDNN_ARM_PART


def has_fast_float16(flags: Set[str]) -> bool:
    """Whether a CPU multiplies float16 in hardware.

    Args:
        flags: of /proc/cpuinfo.
    """
    return not F16_CPU_FLAGS.isdisjoint(flags)
