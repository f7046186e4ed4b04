"""Processes that find another CPU than this one; it imports nothing but the standard library."""

from pathlib import Path

_HERE = Path(__file__).resolve().parent
_HIDDEN = ("avx512", "avx_", "amx_")  # flags of CPUs that begin so


def variables():
    """The environment of a process that imports from this checkout, and of x86-64's instructions
    finds AVX2 and nothing newer.
    """
    root = str(_HERE.parents[1])
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split()
    if not any(flag.startswith(_HIDDEN) for flag in flags):
        return {"PYTHONPATH": root}  # as every process does here
    return {
        "PYTHONPATH": f"{_HERE}:{root}",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "XLA_FLAGS": "--xla_cpu_max_isa=AVX2",
    }
