"""Op templates: the type attributes of an op, and the ports that each of them types.

The unit of every decision is a *slot* of a node: one type attribute, one entry of a list-of-types
attribute, or one fixed type. A slot covers the input and output ports that it types, so a slot has
one precision and an edge connects two slots. Fixed types are slots, too: deny spreads through them
although nothing can change them.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from amp_tf.errors import GraphError
from amp_tf.graph import datatypes

# Far above any real op. Otherwise a damaged graph could ask for billions of ports.
_MAX_PORTS = 1 << 20
_EXPORT_AGAIN = "Export the graph again; this one cannot run in TensorFlow either"


@dataclasses.dataclass(frozen=True)
class Slot:
    """One type of a node.

    Attributes:
        attr: name of the type attribute, empty for a fixed type.
        index: position in a list-of-types attribute, -1 for a single type.
        fixed: the ``DataType`` number of a fixed type; for an attribute, its default, or 0 where it
            has none.
        allowed: the ``DataType`` numbers that the op definition allows, ``None`` for all.
    """

    attr: str
    index: int
    fixed: int
    allowed: frozenset[int] | None

    @property
    def is_fixed(self) -> bool:
        return not self.attr

    def can_be(self, data_type: int) -> bool:
        """Tells whether the op definition lets this slot have a type.

        A kernel may still be missing.
        """
        return not self.is_fixed and (self.allowed is None or data_type in self.allowed)

    def __str__(self) -> str:
        if self.is_fixed:
            return datatypes.type_name(self.fixed)
        if self.index < 0:
            return self.attr
        return f"{self.attr}[{self.index}]"


@dataclasses.dataclass(frozen=True, eq=False)
class Signature:
    """The slots of a node and the slot of each port; nodes of one op with equal arities share it.

    Two signatures are equal if they are the same object, so they can be keys of a cache.

    Attributes:
        slots: the node's types.
        inputs, outputs: for each data input, or each output port, the position of its slot.
        output_starts: for each output argument, its first port (functions name tensors by
            argument).
        has_refs: an input or output is a reference (TF1 variables).
        holds_functions: the op calls functions; its types belong to their signatures.
    """

    op: str
    slots: tuple[Slot, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    output_starts: Mapping[str, int]
    is_stateful: bool
    has_refs: bool
    holds_functions: bool


class Template:
    """Makes the :class:`Signature` of each node of one op from the op's definition."""

    def __init__(self, op_def: Any) -> None:
        self.op_def = op_def
        self._attrs = {attr.name: attr for attr in op_def.attr}
        self._type_lists = [attr.name for attr in op_def.attr if attr.type == "list(type)"]
        self._arguments = (*op_def.input_arg, *op_def.output_arg)
        numbers = {arg.number_attr for arg in self._arguments if arg.number_attr}
        self._counts = [*self._type_lists, *sorted(numbers)]
        self._of_arity = functools.cache(self._build)

    def signature(self, node: Any) -> Signature:
        """Returns the signature of a NodeDef of this op.

        Raises:
            GraphError: an attribute that gives the number of inputs or outputs is missing or
                negative; the reader adds the place.
        """
        return self._of_arity(*(self._count(node, name) for name in self._counts))

    def _count(self, node: Any, name: str) -> int:
        """Reads how many ports an attribute gives."""
        value = node.attr.get(name)
        if value is None:
            attr = self._attrs[name]
            if not attr.HasField("default_value"):
                raise GraphError(
                    f"{node.op} needs the attribute {name!r}, which is missing", fix=_EXPORT_AGAIN
                )
            value = attr.default_value
        count = len(value.list.type) if name in self._type_lists else value.i
        if not 0 <= count <= _MAX_PORTS:
            what = f"attribute {name!r} of {node.op} is {count}, expected 0 to {_MAX_PORTS}"
            raise GraphError(what, fix=_EXPORT_AGAIN)
        return int(count)

    def _build(self, *arity: int) -> Signature:
        """Makes the signature of nodes with these numbers of ports, in the order of counts."""
        counts = dict(zip(self._counts, arity, strict=True))
        slots: dict[_Key, int] = {}
        inputs = []
        for arg in self.op_def.input_arg:
            for key in _keys(arg, counts):
                inputs.append(slots.setdefault(key, len(slots)))
        outputs: list[int] = []
        starts = {}
        for arg in self.op_def.output_arg:
            starts[arg.name] = len(outputs)
            for key in _keys(arg, counts):
                outputs.append(slots.setdefault(key, len(slots)))
        # Some attributes, such as StackV2's elem_type, type no port.
        for attr in self.op_def.attr:
            keys: list[_Key] = []
            if attr.type == "type":
                keys = [(attr.name, -1, 0)]
            elif attr.type == "list(type)":
                keys = _keys_of_list(attr.name, counts)
            for key in keys:
                slots.setdefault(key, len(slots))
        return Signature(
            op=self.op_def.name,
            slots=tuple(itertools.starmap(self._slot, slots)),
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            output_starts=starts,
            is_stateful=self.op_def.is_stateful,
            has_refs=any(arg.is_ref for arg in self._arguments),
            holds_functions=any(attr.type in ("func", "list(func)") for attr in self.op_def.attr),
        )

    def _slot(self, attr_name: str, index: int, fixed: int) -> Slot:
        if not attr_name:
            return fixed_slot(self.op_def.name, fixed)
        attr = self._attrs[attr_name]
        allowed = frozenset(attr.allowed_values.list.type) or None
        default = attr.default_value.type  # none, which is 0, for a list
        return Slot(attr_name, index, default, allowed)


def fixed_slot(op: str, data_type: int, where: str = "") -> Slot:
    """Returns the slot of a type that the definition of an op or function fixes.

    Raises:
        GraphError: the definition names no type, or a reference type (references are marked by
            ``is_ref`` instead).
    """
    if data_type == datatypes.INVALID or data_type > datatypes.LAST_BASE:
        name = datatypes.type_name(data_type)
        what = f"an argument or result of {op} has type {name}, which none can have"
        raise GraphError(what, where=where, fix=_EXPORT_AGAIN)
    return Slot("", -1, data_type, frozenset({data_type}))


_Key: TypeAlias = tuple[str, int, int]  # a slot: its attribute, its index, its fixed type


def _keys(arg: Any, counts: dict[str, int]) -> list[_Key]:
    """Returns the slot of each port that an argument stands for."""
    if arg.type_list_attr:
        return _keys_of_list(arg.type_list_attr, counts)
    key = (arg.type_attr, -1, 0) if arg.type_attr else ("", -1, arg.type)
    count = counts[arg.number_attr] if arg.number_attr else 1
    return [key] * count


def _keys_of_list(name: str, counts: dict[str, int]) -> list[_Key]:
    return [(name, index, 0) for index in range(counts[name])]


class Templates:
    """Finds the template of an op by name.

    It looks in a function library first, then among TensorFlow's registered ops.

    Args:
        successors: ops that are read as another op with one more type attribute: op to (successor,
            that attribute). The attribute is float32 in nodes that do not have it.
    """

    def __init__(
        self, library: Any = None, successors: Mapping[str, tuple[str, str]] | None = None
    ) -> None:
        functions = library.function if library else ()
        self._functions = {function.signature.name: function for function in functions}
        self._without = functools.cache(functools.partial(_functions_without, self._functions))
        self._own: dict[str, Template] = {}
        self._successors = successors or {}

    def find(self, op: str) -> Template:
        """Finds the template of an op.

        Raises:
            GraphError: neither TensorFlow nor the function library knows the op; the reader adds
                the place.
        """
        if op in self._successors and op not in self._functions:
            return _widened(*self._successors[op])
        if op not in self._functions:
            return _registered(op)
        if op not in self._own:
            self._own[op] = Template(self._functions[op].signature)
        return self._own[op]

    def is_function(self, op: str) -> bool:
        """Tells whether an op's name is that of a library function."""
        return op in self._functions

    def reaches(self, node: Any, ops: frozenset[str]) -> bool:
        """Tells whether one of some ops may run in the functions that a node calls.

        An unknown function may run any op.
        """
        return not self._without(ops).issuperset(called(node, self._functions))


def _functions_without(functions: Mapping[str, Any], ops: frozenset[str]) -> set[str]:
    """Returns the functions of a library in which, and in whose calls, none of some ops can run."""
    found: list[str] = []
    callers: dict[str, list[str]] = {}
    for name, function in functions.items():
        for node in function.node_def:
            if node.op in ops:
                found.append(name)
            for callee in called(node, functions):
                callers.setdefault(callee, []).append(name)
    found += callers.keys() - functions.keys()  # unknown functions may run any op
    for name in found:  # the list grows while it is read
        found += callers.pop(name, ())
    return functions.keys() - found


@functools.cache
def _registered(op: str) -> Template:
    """Makes the template of one of TensorFlow's ops; its definition never changes in a process."""
    from tensorflow.python.framework import op_def_registry

    op_def = op_def_registry.get(op)
    if op_def is None:
        raise GraphError(
            f"op {op!r} is not registered in this TensorFlow and not in the graph's function "
            "library",
            fix="Load the library that defines it (tf.load_op_library) first",
        )
    return Template(op_def)


@functools.cache
def _widened(op: str, attribute: str) -> Template:
    """Makes the template of an op with float32 as the default of one of its type attributes."""
    op_def = copy.deepcopy(_registered(op).op_def)
    for attr in op_def.attr:
        if attr.name == attribute:
            attr.default_value.type = datatypes.FLOAT
    return Template(op_def)


def referenced(node: Any) -> Iterator[str]:
    """Yields the names that a NodeDef may call: its op, and the functions in its attributes."""
    yield node.op
    for value in node.attr.values():
        if value.HasField("func"):
            yield value.func.name
        elif value.HasField("list"):
            yield from (function.name for function in value.list.func)


def rename_functions(node: Any, names: Mapping[str, str]) -> None:
    """Gives the functions that a NodeDef calls new names, by the names that they had."""
    node.op = names.get(node.op, node.op)
    for value in node.attr.values():
        functions = list(value.list.func)
        if value.HasField("func"):
            functions.append(value.func)
        for function in functions:
            function.name = names.get(function.name, function.name)


def called(node: Any, functions: Container[str]) -> list[str]:
    """Returns the functions that a NodeDef calls; its op is one if it is a known function."""
    op, *found = referenced(node)
    if op in functions:
        found.insert(0, op)
    return found


def find_loop_bodies(functions: Iterable[Any]) -> frozenset[str]:
    """Finds the functions that are bodies of functional loops, and that nothing else calls."""
    bodies = set()
    others: set[str] = set()
    for function in functions:
        for node in function.node_def:
            names = set(referenced(node))
            if "body" in node.attr and "cond" in node.attr:
                body = node.attr["body"].func.name
                bodies.add(body)
                names.discard(body)
            others |= names
    return frozenset(bodies - others - {""})  # of a graph that is no function
