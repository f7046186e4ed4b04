"""What the hardware can do in 16 bit."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path

MIN_COMPUTE_CAPABILITY = (7, 0)  # the first NVIDIA GPUs with tensor cores (Volta)
BF16_CPU_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})  # the last is Arm's name


@dataclasses.dataclass(frozen=True)
class Hardware:
    """The devices of this machine, as far as precision is concerned.

    Attributes:
        gpu_capabilities: compute capability (major, minor) of each GPU that TensorFlow sees.
        cpu_has_bf16: the CPU multiplies bfloat16 in hardware.
    """

    gpu_capabilities: tuple[tuple[int, int], ...] = ()
    cpu_has_bf16: bool = False

    @classmethod
    def detect_cpu(cls) -> Hardware:
        """The CPU alone, from ``/proc/cpuinfo``; no TensorFlow, no GPU."""
        return cls(cpu_has_bf16=_cpu_has_bf16())

    @property
    def has_gpu(self) -> bool:
        return bool(self.gpu_capabilities)

    @property
    def gpu_has_f16(self) -> bool:
        """Whether every GPU is fast in 16 bit (a graph may run on any of them)."""
        return self.has_gpu and all(capability >= MIN_COMPUTE_CAPABILITY for capability in self.gpu_capabilities)


@functools.lru_cache(maxsize=1)
def _cpu_has_bf16() -> bool:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    for line in text.splitlines():
        key, _, flags = line.partition(":")
        if key.strip() in ("flags", "Features"):
            return not BF16_CPU_FLAGS.isdisjoint(flags.split())
    return False
