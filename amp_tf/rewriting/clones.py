"""A function and all that it calls, rewritten together: callees become renamed clones.

A callee (a nested call, a branch of an If or Case, the condition or body of a While, a gradient function) may have
other callers, so it is never changed: the caller is pointed at a clone under a new name.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from amp_tf.graph.templates import referenced

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
    names: dict[str, str] = {}  # of what was cloned, by what it is called now
    clones: list[Clone] = []

    def changed(original: FunctionDef) -> FunctionDef:
        body = rewrite_body(original)
        for index, node in enumerate(body.node_def):
            found = {name: names.get(name, name) for name in referenced(node)}
            if any(old != new for old, new in found.items()):
                if body is original:
                    body = type(original)()
                    body.CopyFrom(original)
                _rename(body.node_def[index], found)
        return body

    for name, original in _callees_first(definition, lookup):
        if (body := changed(original)) is not original:
            names[name] = body.signature.name = new_name(name)
            clones.append(Clone(name, body))
    return RewrittenFunction(changed(definition), tuple(clones))


def _callees_first(
    definition: FunctionDef, lookup: Callable[[str], FunctionDef | None]
) -> Iterator[tuple[str, FunctionDef]]:
    """Each function that may run inside a call of another one, after those that it calls, but for recursive calls.

    Python's stack is too short for a call chain of a thousand functions.
    """
    seen = {definition.signature.name}
    path = [(definition.signature.name, definition, _calls(definition))]
    while path:
        name, function, calls = path[-1]
        called = next((called for called in calls if called not in seen), None)
        if called is not None:
            seen.add(called)
            if (inner := lookup(called)) is not None:
                path.append((called, inner, _calls(inner)))
        else:
            path.pop()
            if path:
                yield name, function


def _calls(definition: FunctionDef) -> Iterator[str]:
    return (name for node in definition.node_def for name in referenced(node))


def _rename(node: NodeDef, names: Mapping[str, str]) -> None:
    node.op = names[node.op]
    for value in node.attr.values():
        for function in [value.func] if value.HasField("func") else value.list.func:
            function.name = names[function.name]
