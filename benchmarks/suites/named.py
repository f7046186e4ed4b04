"""Tests that fail with amp_tf alone and are no defect of it, each with its reason."""

from __future__ import annotations

import dataclasses
import re


@dataclasses.dataclass(frozen=True)
class Named:
    """Tests that fail for one reason.

    Attributes:
        tests: matches their names.
        why: the reason, a sentence.
        modes: the 16-bit types under which they fail.
    """

    tests: str
    why: str
    modes: tuple[str, ...] = ("bfloat16", "float16")


NAMED: tuple[Named, ...] = ()


def find(test: str, mode: str) -> Named | None:
    """The row of a test, if it has one."""
    for row in NAMED:
        if mode in row.modes and re.search(row.tests, test):
            return row
    return None
