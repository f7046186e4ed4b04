"""A function and all that it calls, rewritten together: callees become renamed clones.

A callee (a nested call, a branch of an If or Case, the condition or body of a While, a gradient function) may have
other callers that XLA does not compile, so it is never changed: the caller is pointed at a clone under a new name.
Everything here is a pure function of FunctionDefs; :mod:`amp_tf.hooks.xla` registers the results in TensorFlow.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from amp_tf.hooks.xla_loops import CALL_OPS, fixed_arguments, hoist_casts, lift_casts, passed_on

FunctionDef = Any
NodeDef = Any

WHILE_OPS = frozenset({"While", "StatelessWhile"})
BRANCH_OPS = frozenset({"If", "StatelessIf", "Case", "StatelessCase"})


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
        hoisted: casts that were moved out of loops.
    """

    definition: FunctionDef
    clones: tuple[Clone, ...] = ()
    hoisted: int = 0


class LibraryRewriter:
    """Rewrites one function with its callees.

    Args:
        rewrite_body: rewrites the nodes of one FunctionDef and keeps its signature; returns its argument itself where
            there is nothing to change.
        lookup: gives the FunctionDef of a name, or ``None`` where no function of that name is to be cloned: it is not
            registered, or it is compiled on its own and rewritten already.
        new_name: makes a name that no function has, from the name of the original.
    """

    def __init__(
        self,
        rewrite_body: Callable[[FunctionDef], FunctionDef],
        lookup: Callable[[str], FunctionDef | None],
        new_name: Callable[[str], str],
    ) -> None:
        self._rewrite_body = rewrite_body
        self._lookup = lookup
        self._new_name = new_name
        self._done: dict[str, RewrittenFunction | None] = {}
        self._made: dict[str, Clone] = {}

    def rewrite(self, definition: FunctionDef) -> RewrittenFunction:
        """Rewrites a function, clones what it calls where that changes, and moves casts out of its loops."""
        result = self._visit(definition, self._rewrite_body(definition), (definition.signature.name,))
        return dataclasses.replace(result, clones=_in_use(result))

    def _visit(self, original: FunctionDef, body: FunctionDef, path: tuple[str, ...]) -> RewrittenFunction:
        """Points a rewritten body at clones of its callees. ``path`` holds the callers, so that recursion ends."""
        clones: list[Clone] = []
        shared: dict[str, str] = {}
        hoisted = 0
        for index, node in enumerate(body.node_def):
            is_loop = node.op in WHILE_OPS
            names = {} if is_loop else shared  # a loop's functions are specialised for that loop alone
            made: dict[str, FunctionDef] = {}
            for name in dict.fromkeys(references(node)):
                if name in names or name in path:
                    continue
                callee = self._clone(name, path)
                names[name] = callee.definition.signature.name if callee else name
                if callee:
                    clones += callee.clones
                    hoisted += callee.hoisted
                    made[name] = callee.definition
                    clone = self._made[callee.definition.signature.name] = Clone(name, callee.definition)
                    clones.append(clone)
            if all(names.get(name, name) == name for name in references(node)):
                continue
            if body is original:
                body = copy_of(original)
            rename_references(body.node_def[index], names)
            if is_loop:
                hoisted += self._specialise_loop(body, index, made, clones)
        return RewrittenFunction(body, tuple(clones), hoisted)

    def _clone(self, name: str, path: tuple[str, ...]) -> RewrittenFunction | None:
        """A new copy of a rewritten callee, or ``None`` where nothing in it changes."""
        if name not in self._done:
            self._done[name] = self._rewrite_callee(name, path)
            result = self._done[name]
        elif result := self._done[name]:  # the clones that it needs are listed with its first copy
            result = RewrittenFunction(result.definition)
        if result is None:
            return None
        renamed = copy_of(result.definition)
        renamed.signature.name = self._new_name(name)
        return dataclasses.replace(result, definition=renamed)

    def _rewrite_callee(self, name: str, path: tuple[str, ...]) -> RewrittenFunction | None:
        original = self._lookup(name)
        if original is None:
            return None
        result = self._visit(original, self._rewrite_body(original), (*path, name))
        return None if result.definition is original else result

    def _specialise_loop(
        self, caller: FunctionDef, index: int, made: dict[str, FunctionDef], clones: list[Clone]
    ) -> int:
        node = caller.node_def[index]
        by_name = {definition.signature.name: definition for definition in made.values()}
        body = by_name.get(node.attr["body"].func.name)
        if body is None:
            return 0
        cond_name = node.attr["cond"].func.name
        cond = by_name.get(cond_name)
        original_cond = None if cond else self._lookup(cond_name)
        if cond is None:
            if original_cond is None:
                return 0
            cond = copy_of(original_cond)
            cond.signature.name = self._new_name(cond_name)
        position = next(number for number, clone in enumerate(clones) if clone.definition is body)
        clones[position:position] = self._specialise_calls(body, fixed_arguments(cond, body))
        moved = hoist_casts(caller, index, cond, body)
        if moved and original_cond is not None:
            node.attr["cond"].func.name = cond.signature.name
            clones.append(Clone(cond_name, cond))
        return moved

    def _specialise_calls(self, caller: FunctionDef, fixed: frozenset[str]) -> list[Clone]:
        """Gives calls and branches in a loop's body functions of their own, which leave casts to their caller.

        Args:
            caller: the body, or a function that it calls; edited in place.
            fixed: the arguments of the caller that are the same in each turn of the loop.

        Returns:
            The new functions, each after those that it calls itself.
        """
        specialised: list[Clone] = []
        for index, node in enumerate(caller.node_def):
            if node.op not in CALL_OPS | BRANCH_OPS:
                continue
            names = [name for name in dict.fromkeys(references(node)) if name != node.op]
            shared = {name: self._current(name) for name in names}
            if self._made.keys().isdisjoint(names) or None in shared.values():
                continue
            own = {name: Clone(clone.original, copy_of(clone.definition)) for name, clone in shared.items() if clone}
            inner: list[Clone] = []
            for clone in own.values():
                clone.definition.signature.name = self._new_name(clone.original)
                inner += self._specialise_calls(clone.definition, passed_on(caller, index, clone.definition, fixed))
            callees = [clone.definition for clone in own.values()]
            if lift_casts(caller, index, callees, fixed if node.op in BRANCH_OPS else None) or inner:
                rename_references(node, {name: clone.definition.signature.name for name, clone in own.items()})
                specialised += [*inner, *own.values()]
        return specialised

    def _current(self, name: str) -> Clone | None:
        """The function of that name as it is called now: a clone, or an original that nothing changed."""
        if name in self._made:
            return self._made[name]
        original = self._lookup(name)
        return Clone(name, original) if original is not None else None


def _in_use(result: RewrittenFunction) -> tuple[Clone, ...]:
    """The clones that the function needs: those that were cloned again for a loop may have no caller left."""
    clone_of = {clone.definition.signature.name: clone for clone in result.clones}
    needed: set[str] = set()
    waiting = [result.definition]
    while waiting:
        for node in waiting.pop().node_def:
            new = clone_of.keys() & set(references(node)) - needed
            needed |= new
            waiting += [clone_of[name].definition for name in new]
    return tuple(clone for clone in result.clones if clone.definition.signature.name in needed)


def copy_of(definition: FunctionDef) -> FunctionDef:
    """A FunctionDef with the same contents."""
    copy = type(definition)()
    copy.CopyFrom(definition)
    return copy


def references(node: NodeDef) -> Iterator[str]:
    """The names of all functions that a node may call, the name of its op among them (legacy calls are ops)."""
    yield node.op
    for value in node.attr.values():
        kind = value.WhichOneof("value")
        if kind == "func":
            yield value.func.name
        elif kind == "list":
            for function in value.list.func:
                yield function.name


def rename_references(node: NodeDef, names: dict[str, str]) -> None:
    """Replaces the functions that a node calls."""
    node.op = names.get(node.op, node.op)
    for value in node.attr.values():
        kind = value.WhichOneof("value")
        if kind == "func":
            value.func.name = names.get(value.func.name, value.func.name)
        elif kind == "list":
            for function in value.list.func:
                function.name = names.get(function.name, function.name)
