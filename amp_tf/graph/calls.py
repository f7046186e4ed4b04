"""What runs inside a call: the ops of the functions that a node calls, and of those that they call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def referenced(node: Any) -> Iterator[str]:
    """The names that a NodeDef may call: its op, and the functions in its attributes."""
    yield node.op
    for value in node.attr.values():
        if value.HasField("func"):
            yield value.func.name
        elif value.HasField("list"):
            yield from (function.name for function in value.list.func)


class Callees:
    """The ops behind calls.

    Args:
        functions: the known FunctionDefs, by name.
    """

    def __init__(self, functions: Mapping[str, Any]) -> None:
        self._functions = functions

    def ops(self, node: Any) -> frozenset[str] | None:
        """The ops of all functions that run when a node runs; ``None`` where one of them is not known."""
        op, *called = referenced(node)
        names = [*([op] if op in self._functions else []), *called]
        found: set[str] = set()
        seen: set[str] = set()
        while names:
            name = names.pop()
            if name in seen:
                continue
            seen.add(name)
            if name not in self._functions:
                return None
            for inner in self._functions[name].node_def:
                found.add(inner.op)
                op, *called = referenced(inner)
                names += [*([op] if op in self._functions else []), *called]
        return frozenset(found)
