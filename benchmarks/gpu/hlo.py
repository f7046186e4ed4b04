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
        """Returns the computation that an attribute such as ``calls`` names, or ``None``."""
        return self.find(rf"\b{attribute}=%([\w.\-]+)")

    def find(self, pattern: str) -> str | None:
        """Returns the first group of a pattern in the attributes, or ``None``."""
        found = re.search(pattern, self.attributes)
        if found is None:
            return None
        return found[1]


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
        begins = _COMPUTATION.match(line)
        if begins:
            is_entry, name = begins.groups()
            current = computations[name] = {}
            if is_entry:
                entry = name
            continue
        found = _INSTRUCTION.match(line)
        if found:
            root, name, rest = found.groups()
            current[name] = _instruction(name, rest, is_root=bool(root))
    if entry is None:
        raise ValueError("The HLO text has no ENTRY computation.")
    return Module(computations, entry)


def arrays(text: str) -> tuple[Array, ...]:
    """Reads the arrays of a type's text, those of a tuple one after the other."""
    found = []
    for element, sizes in _ARRAY.findall(text):
        dimensions = tuple(map(int, sizes.split(","))) if sizes else ()
        found.append(Array(element, dimensions))
    return tuple(found)


def _instruction(name: str, rest: str, *, is_root: bool) -> Instruction:
    """Reads an instruction: its type, the op, the operands in parentheses, and attributes."""
    end = rest.index(" ")
    if rest.startswith("("):
        end = _closing(rest) + 1
    op, _, behind = rest[end:].strip().partition("(")
    close = _closing(behind, depth=1)
    operands = tuple(_OPERAND.findall(behind[:close]))
    return Instruction(name, op, arrays(rest[:end]), operands, behind[close + 1 :], is_root)


def _closing(text: str, depth: int = 0) -> int:
    """Returns the place of the parenthesis that closes the first one; at depth 1, one before the
    text.
    """
    for index, letter in enumerate(text):
        if letter == "(":
            depth += 1
        elif letter == ")":
            depth -= 1
        if depth == 0:
            return index
    raise ValueError(f"A parenthesis is not closed: {text[:80]}")
