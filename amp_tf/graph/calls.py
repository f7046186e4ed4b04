"""What runs inside a call: in the functions that a node calls, and in those that they call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any


def referenced(node: Any) -> Iterator[str]:
    """The names that a NodeDef may call: its op, and the functions in its attributes."""
    yield node.op
    for value in node.attr.values():
        if value.HasField("func"):
            yield value.func.name
        elif value.HasField("list"):
            yield from (function.name for function in value.list.func)


def find_loop_bodies(functions: Iterable[Any]) -> frozenset[str]:
    """The functions that are bodies of loops in functional form, and that nothing else calls.

    Args:
        functions: the FunctionDefs in which calls are looked for.
    """
    bodies: set[str] = set()
    others: set[str] = set()
    for function in functions:
        for node in function.node_def:
            body = node.attr["body"].func.name if "body" in node.attr and "cond" in node.attr else ""
            bodies.add(body)
            others.update(name for name in referenced(node) if name != body)
    return frozenset(bodies - others - {""})


class Callees:
    """What runs inside calls of functions.

    Args:
        functions: the known FunctionDefs, by name.
    """

    def __init__(self, functions: Mapping[str, Any]) -> None:
        self._functions = functions
        self._reaching: dict[frozenset[str], frozenset[str]] = {}

    def reaches(self, node: Any, ops: frozenset[str]) -> bool:
        """Whether one of these ops may run in the functions that a node calls: also where a function is not known."""
        reaching = self._functions_with(ops)
        return any(name in reaching or name not in self._functions for name in self._called(node))

    def _called(self, node: Any) -> list[str]:
        op, *called = referenced(node)
        return [*([op] if op in self._functions else []), *called]

    def _functions_with(self, ops: frozenset[str]) -> frozenset[str]:
        """The names of functions in which one of the ops, or a function that is not known, runs; found once."""
        if ops not in self._reaching:
            callers: dict[str, list[str]] = {}
            waiting = []
            for name, function in self._functions.items():
                for node in function.node_def:
                    if node.op in ops:
                        waiting.append(name)
                    for called in self._called(node):
                        callers.setdefault(called, []).append(name)
            waiting += callers.keys() - self._functions.keys()
            found: set[str] = set()
            while waiting:
                name = waiting.pop()
                if name not in found:
                    found.add(name)
                    waiting += callers.get(name, ())
            self._reaching[ops] = frozenset(found)
        return self._reaching[ops]
