"""Processes that find another CPU than this one; it imports nothing but the standard library."""

import platform
from pathlib import Path

_HERE = Path(__file__).resolve().parent


def variables():
    """The environment of a process that finds AVX2 and nothing newer; none but on x86-64."""
    if platform.machine() != "x86_64":
        return {}
    return {
        "PYTHONPATH": f"{_HERE}:{_HERE.parents[1]}",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "XLA_FLAGS": "--xla_cpu_max_isa=AVX2",
    }
