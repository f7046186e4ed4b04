"""The last look at a function for XLA, after its callees were cloned and casts were moved out of loops.

Each body was verified when it was rewritten (:mod:`amp_tf.graph.verify`); what was edited since is read once more, and
rows of checks look at what a single body does not show: calls that fit the functions they name.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from amp_tf.errors import GraphError, RewriteError
from amp_tf.graph.reader import read_function
from amp_tf.graph.templates import Templates
from amp_tf.graph.verify import find_cycle
from amp_tf.hooks.xla_library import FunctionDef, NodeDef, RewrittenFunction

Lookup = Callable[[str], FunctionDef | None]


@dataclasses.dataclass(frozen=True)
class _Call:
    """How an op calls a function.

    Attributes:
        attr: the attribute that names the function, or a list of them.
        takes: the attribute with the types that the function takes.
        gives: the attribute with the types that it gives, empty where the function only decides (conditions).
    """

    attr: str
    takes: str
    gives: str


_WHILE = (_Call("cond", "T", ""), _Call("body", "T", "T"))
_IF = (_Call("then_branch", "Tin", "Tout"), _Call("else_branch", "Tin", "Tout"))
_CASE = (_Call("branches", "Tin", "Tout"),)
_PLAIN = (_Call("f", "Tin", "Tout"),)
CALLS: dict[str, tuple[_Call, ...]] = {
    "While": _WHILE,
    "StatelessWhile": _WHILE,
    "If": _IF,
    "StatelessIf": _IF,
    "Case": _CASE,
    "StatelessCase": _CASE,
    "PartitionedCall": _PLAIN,
    "StatefulPartitionedCall": _PLAIN,
}


def verify(original: FunctionDef, result: RewrittenFunction, lookup: Lookup) -> None:
    """Checks a function and its clones as they are about to be registered.

    Args:
        original: the function as it came.
        result: what became of it.
        lookup: gives the FunctionDef of a registered function.

    Raises:
        RewriteError: something does not fit; the message names function and node. This is a bug of amp_tf.
    """
    made = {clone.definition.signature.name: clone.definition for clone in result.clones}

    def find(name: str) -> FunctionDef | None:
        return made.get(name) or lookup(name)

    if result.definition.signature != original.signature:
        raise _bug(original.signature.name, "its signature changed")
    for function in (*made.values(), result.definition):
        found = _unreadable(function, find) or _misfit(function, find)
        if found:
            raise _bug(function.signature.name, found)


def _unreadable(function: FunctionDef, find: Lookup) -> str:
    """What the reader refuses, or a node on a cycle, or an empty string."""
    try:
        view = read_function(function, Templates(_Library(function, find)))
    except GraphError as error:
        return f"{error.where}: {error.what}"
    node = find_cycle(view)
    return f"{node!r} is on a cycle" if node else ""


class _Library:
    """The functions that a body calls as ops, as a FunctionDefLibrary would hold them."""

    def __init__(self, function: FunctionDef, find: Lookup) -> None:
        ops = dict.fromkeys(node.op for node in function.node_def)
        self.function = [found for op in ops if (found := find(op)) is not None]


def _misfit(function: FunctionDef, find: Lookup) -> str:
    """A call whose types are not those of the function that it names, or an empty string."""
    for node in function.node_def:
        for name, takes, gives in _expected(node):
            callee = find(name)
            if callee is None:
                return f"{node.name!r} calls {name!r}, which does not exist"
            if takes != [arg.type for arg in callee.signature.input_arg]:
                return f"{node.name!r} passes other types than {name!r} takes"
            if gives is not None and gives != [arg.type for arg in callee.signature.output_arg]:
                return f"{node.name!r} expects other types than {name!r} gives"
    return ""


def _expected(node: NodeDef) -> Iterator[tuple[str, list[int], list[int] | None]]:
    """For each function that a node calls by an attribute: its name, the types passed, the types expected back."""
    for call in CALLS.get(node.op, ()):
        value = node.attr[call.attr]
        functions = value.list.func if value.WhichOneof("value") == "list" else [value.func]
        takes = list(node.attr[call.takes].list.type)
        gives = list(node.attr[call.gives].list.type) if call.gives else None
        for function in functions:
            yield function.name, takes, gives


def _bug(function: str, what: str) -> RewriteError:
    return RewriteError(
        f"the function as XLA would get it did not pass verification: {what}",
        where=f"function {function!r}",
        fix="This is a bug of amp_tf; please report it. The function runs as it was",
    )
