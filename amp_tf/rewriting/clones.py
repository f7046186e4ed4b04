"""A function and all that it calls, rewritten together: callees become renamed clones.

A callee (a nested call, a branch of an If or Case, the condition or body of a While, a gradient function) may have
other callers, so it is never changed: the caller is pointed at a clone under a new name.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from amp_tf.graph.calls import referenced

FunctionDef = Any
NodeDef = Any


@dataclasses.dataclass(frozen=True)
class Clone:
    """A rewritten copy of a callee.

    Attributes:
        original: the name of the function that it was made from.
        definition: the FunctionDef, under its new name.
    """

    original: str
    definition: FunctionDef


@dataclasses.dataclass(frozen=True)
class RewrittenFunction:
    """What became of a function.

    Attributes:
        definition: the function under its old name; the very object that was given where nothing changed.
        clones: the callees that it needs now, each after those that it calls itself.
    """

    definition: FunctionDef
    clones: tuple[Clone, ...] = ()


def rewrite_with_callees(
    definition: FunctionDef,
    rewrite_body: Callable[[FunctionDef], FunctionDef],
    lookup: Callable[[str], FunctionDef | None],
    new_name: Callable[[str], str],
) -> RewrittenFunction:
    """Rewrites a function, and clones what it calls where that changes.

    Args:
        definition: the function; not modified.
        rewrite_body: rewrites the nodes of one FunctionDef and keeps its signature; returns its argument itself where
            there is nothing to change, and else a new one.
        lookup: gives the FunctionDef of a name, or ``None`` where no function of that name is to be cloned.
        new_name: makes a name that no function has, from the name of the original.
    """
    names: dict[str, str] = {
        definition.signature.name: definition.signature.name
    }  # of what was met, by what it is called now
    clones: list[Clone] = []

    def visit(original: FunctionDef) -> FunctionDef:
        body = rewrite_body(original)
        for index, node in enumerate(body.node_def):
            found = {name: name_now(name) for name in dict.fromkeys(referenced(node))}
            if any(old != new for old, new in found.items()):
                if body is original:
                    body = type(original)()
                    body.CopyFrom(original)
                _rename(body.node_def[index], found)
        return body

    def name_now(name: str) -> str:
        if name not in names:
            names[name] = name  # a recursive function goes on with its original
            original = lookup(name)
            if original is not None and (changed := visit(original)) is not original:
                names[name] = changed.signature.name = new_name(name)
                clones.append(Clone(name, changed))
        return names[name]

    return RewrittenFunction(visit(definition), tuple(clones))


def _rename(node: NodeDef, names: Mapping[str, str]) -> None:
    """Replaces the functions that a node calls."""
    node.op = names[node.op]
    for value in node.attr.values():
        for function in [value.func] if value.HasField("func") else value.list.func:
            function.name = names[function.name]
