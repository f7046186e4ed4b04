"""The text of an optimized HLO module, read: computations, their instructions, types and sizes."""

from __future__ import annotations

import dataclasses
import math
import re

BYTES = {
    **dict.fromkeys(("pred", "s8", "u8"), 1),
    **dict.fromkeys(("s16", "u16", "f16", "bf16"), 2),
    **dict.fromkeys(("s32", "u32", "f32"), 4),
    **dict.fromkeys(("s64", "u64", "f64"), 8),
}
_ARRAY = re.compile(rf"\b({'|'.join(BYTES)})\[([\d,]*)\]")
_COMPUTATION = re.compile(r"^(ENTRY )?%(\S+) \(.*\{\s*$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%(\S+) = (.*)$")
_OPERAND = re.compile(r"%([\w.\-]+)")


@dataclasses.dataclass(frozen=True)
class Array:
    """An array's element type, such as ``"f16"``, and its dimensions."""

    element: str
    dimensions: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return BYTES[self.element] * math.prod(self.dimensions)


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One instruction.

    Attributes:
        name: without the percent sign.
        op: such as ``"fusion"``.
        results: the arrays of its result, those of a tuple one after the other.
        operands: names.
        attributes: the text behind the operands.
        is_root: whether it gives its computation's result.
    """

    name: str
    op: str
    results: tuple[Array, ...]
    operands: tuple[str, ...]
    attributes: str
    is_root: bool

    @property
    def bytes(self) -> int:
        return sum(array.bytes for array in self.results)

    def called(self, attribute: str) -> str | None:
        """The computation that an attribute such as ``calls`` names, or ``None``."""
        return self.find(rf"\b{attribute}=%([\w.\-]+)")

    def find(self, pattern: str) -> str | None:
        """The first group of a pattern in the attributes, or ``None``."""
        found = re.search(pattern, self.attributes)
        return found[1] if found else None


Computation = dict[str, Instruction]


@dataclasses.dataclass(frozen=True)
class Module:
    """The computations of a module by name, and the name of its entry."""

    computations: dict[str, Computation]
    entry: str


def parse(text: str) -> Module:
    """Reads a module.

    Raises:
        ValueError: there is no entry computation.
    """
    computations: dict[str, Computation] = {}
    current: Computation = {}
    entry = None
    for line in text.splitlines():
        if begins := _COMPUTATION.match(line):
            current = computations[begins[2]] = {}
            entry = begins[2] if begins[1] else entry
        elif found := _INSTRUCTION.match(line):
            current[found[2]] = _instruction(found[2], found[3], is_root=bool(found[1]))
    if entry is None:
        raise ValueError("The HLO text has no ENTRY computation.")
    return Module(computations, entry)


def arrays(text: str) -> tuple[Array, ...]:
    """The arrays of a type's text, those of a tuple one after the other."""
    return tuple(
        Array(element, tuple(int(size) for size in sizes.split(",") if size))
        for element, sizes in _ARRAY.findall(text)
    )


def _instruction(name: str, rest: str, *, is_root: bool) -> Instruction:
    end = _closing(rest, 0) + 1 if rest.startswith("(") else rest.index(" ")
    op, _, behind = rest[end:].strip().partition("(")
    close = _closing(behind, 0, depth=1)
    operands = tuple(_OPERAND.findall(behind[:close]))
    return Instruction(name, op, arrays(rest[:end]), operands, behind[close + 1 :], is_root)


def _closing(text: str, start: int, depth: int = 0) -> int:
    """The place of the parenthesis that closes the one at ``start``, or before it at depth 1."""
    for index in range(start, len(text)):
        depth += (text[index] == "(") - (text[index] == ")")
        if depth == 0:
            return index
    raise ValueError(f"A parenthesis is not closed: {text[:80]}")
