"""All programs, by name."""

from __future__ import annotations

import importlib
import re
import zlib
from collections.abc import Iterator

from tests.truth.bench import Program

#: Modules of ``programs/``; the order in which they run.
GROUPS = (
    "defects",
    "origins",
    "loops",
    "training",
    "practice",
    "decompositions",
    "squares",
    "bounded",
    "softmaxes",
    "optimizers",
    "losses",
    "layers",
    "functions",
)
QUICK_SHARE, QUICK_SHARE_OF_LIBRARIES = 3, 16  # one in so many


def all_programs(only: str = "") -> Iterator[Program]:
    """The programs whose name a regular expression finds; all by default."""
    for group in GROUPS:
        for program in importlib.import_module(f"tests.truth.programs.{group}").programs():
            if re.search(only, program.name):
                yield program


def in_quick_tier(program: Program) -> bool:
    """Tells whether pytest runs a program: the first defects, and a fixed share of all others."""
    share = QUICK_SHARE_OF_LIBRARIES if program.name.startswith(("keras.", "tf.")) else QUICK_SHARE
    return program.name.startswith("defects/") or zlib.crc32(program.name.encode()) % share == 0
