"""Reads StableHLO text: products by element type, casts, and outputs that the next step takes."""

from __future__ import annotations

import re
from collections import Counter

_PRODUCT = re.compile(r'"?stablehlo\.(dot_general|dot|convolution)"?[( ]')
_ELEMENT = re.compile(r"tensor<(?:[0-9?]+x)*(\w+)>")
_OPERANDS = re.compile(r": \(([^()]*)\) ->")
_ALIAS = re.compile(r"parameter_number = (\d+) : i64\}, output_index = array<i64: (\d+)>")
_CASTS = re.compile(
    r"stablehlo\.convert %\S+ : \(tensor<(?:[0-9?]+x)*(\w+)>\) -> tensor<(?:[0-9?]+x)*(\w+)>"
)
_FUNCTION = re.compile(r"^ *func\.func (?:\w+ )?@([^\s(]+)", re.MULTILINE)
_CALLED = re.compile(r"\bcall @([^\s(]+)")
_BOOLEANS = re.compile(r'dense<"0x([0-9A-Fa-f]+)">(\s*:\s*tensor<((?:\d+x)+)i1>)')


def used_functions(text: str) -> str:
    """Returns the functions that ``main`` needs: bodies of loops and branches stand in it, and once
    more as dead functions.

    Args:
        text: a StableHLO module; where it has no ``main``, all of it is returned.
    """
    functions = {}
    end = len(text)
    for match in reversed([*_FUNCTION.finditer(text)]):
        functions[match[1]] = text[match.start() : end]
        end = match.start()
    if "main" not in functions:
        return text
    used = {"main"}
    waiting = ["main"]
    while waiting:
        called = {*_CALLED.findall(functions[waiting.pop()])}
        found = functions.keys() & called - used
        used |= found
        waiting += found
    bodies = [body for name, body in functions.items() if name in used]
    return "".join(reversed(bodies))


def count_products(text: str) -> Counter[str]:
    """Counts the matrix products and convolutions by the element type of their operands.

    Args:
        text: a StableHLO module.

    Returns:
        Counts by names such as ``"dot f32"`` and ``"convolution bf16"``; ``dot`` and
        ``dot_general`` count as one. A product whose two operands differ counts as ``"dot
        bf16,f32"``.
    """
    counts: Counter[str] = Counter()
    for line in used_functions(text).splitlines():
        match = _PRODUCT.search(line)
        if match is None:
            continue
        typed = line
        operands = _OPERANDS.search(line)
        if operands:
            typed = operands[1]
        kinds = ",".join(sorted({*_ELEMENT.findall(typed)}))
        op = match[1].removesuffix("_general")
        counts[f"{op} {kinds}"] += 1
    return counts


def count_casts(text: str) -> int:
    """Counts the conversions between floating-point types."""
    floats = {"f32", "f16", "bf16"}
    count = 0
    for source, to in _CASTS.findall(used_functions(text)):
        if source != to and {source, to} <= floats:
            count += 1
    return count


def carried_state(text: str) -> dict[int, int]:
    """Returns which output of a training step is which argument of the next one.

    TensorFlow says so where it marks the variables that a function updates as aliases.
    """
    carried = {}
    for argument, output in _ALIAS.findall(text):
        carried[int(output)] = int(argument)
    return carried


def unpack_booleans(text: str) -> str:
    """Writes boolean constants with a byte an element, as newer MLIR reads them; older MLIR packs
    eight into a byte.
    """

    def unpack(match: re.Match[str]) -> str:
        packed = bytes.fromhex(match[1])
        size = 1
        for side in match[3].split("x")[:-1]:
            size *= int(side)
        if len(packed) != -(-size // 8):
            return match[0]
        unpacked = bytearray(size)
        for bit in range(size):
            unpacked[bit] = packed[bit >> 3] >> (bit & 7) & 1
        return f'dense<"0x{unpacked.hex()}">{match[2]}'

    return _BOOLEANS.sub(unpack, text)
