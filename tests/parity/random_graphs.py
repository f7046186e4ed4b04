"""Random graphs over the real OpDefs of the lists: loops, TensorLists, casts, variables, control
inputs, devices.

The graphs are well-typed, and that is all that a rewrite looks at; shapes and values mean nothing.
Every choice is a call of ``choose(n)``, which returns a number below n: Hypothesis or
``random.Random`` may stand behind it, so that the same graphs come from a shrinking search and from
a seed.
"""

from __future__ import annotations

import dataclasses

import tensorflow as tf
from tensorflow.core.framework import graph_pb2, node_def_pb2, types_pb2

from amp_tf.config import LIST_NAMES, AmpConfig
from tests import small_graphs
from tests.graph_text import node_to_text
from tests.parity.op_pool import op_def, op_pool
from tests.small_graphs import arg_types

FLOAT = types_pb2.DT_FLOAT
INT32 = types_pb2.DT_INT32
BOOL = types_pb2.DT_BOOL
VARIANT = types_pb2.DT_VARIANT
RESOURCE = types_pb2.DT_RESOURCE
# The kind of a wire is its DataType, and for these also the DataType that they hold.
HOLDERS = (VARIANT, RESOURCE)
RARE_TYPES = (
    INT32,
    types_pb2.DT_HALF,
    types_pb2.DT_BFLOAT16,
    types_pb2.DT_DOUBLE,
    BOOL,
    types_pb2.DT_INT64,
)
# Ops that also pass TensorList handles on.
HANDLE_OPS = {
    "Identity",
    "IdentityN",
    "Pack",
    "Unpack",
    "Reshape",
    "ZerosLike",
    "AddN",
    "Split",
    "ExpandDims",
    "Squeeze",
}
STRINGS = {
    "equation": "ab,bc->ac",
    "mode": "REFLECT",
    "padding": "SAME",
    "message": "m",
    "data_format": "NHWC",
}
GPU = "/job:localhost/replica:0/task:0/device:GPU:0"
CPU = "/job:localhost/replica:0/task:0/device:CPU:0"
DEVICES = (GPU, CPU, "/device:GPU:0", "/device:CPU:0")


@dataclasses.dataclass(frozen=True)
class RandomGraph:
    """A graph with the nodes that are preserved and the settings of the rewrite."""

    graph_def: graph_pb2.GraphDef
    preserve: tuple[str, ...]
    knobs: AmpConfig

    def _repr_pretty_(self, printer, cycle):
        """How Hypothesis prints an example."""
        printer.text(in_words(self))


def random_graph(choose, *, max_nodes=30):
    """A graph of up to about ``max_nodes`` nodes, besides the constants that feed them."""
    builder = _Builder(choose)
    builder.add_nodes(2 + choose(max_nodes - 1))
    knobs = _random_knobs(choose, builder.ops_used())
    return RandomGraph(builder.graph, builder.some_fetches(), knobs)


def in_words(graph, found=()):
    """The graph, one line per node, with what was found about it; for failures and bug reports."""
    changed = {}
    for field in dataclasses.fields(graph.knobs):
        value = getattr(graph.knobs, field.name)
        if value != field.default:
            changed[field.name] = value
    lines = [*map(str, found)]
    lines += [f"preserve: {', '.join(graph.preserve)}", f"settings: {changed or 'default'}"]
    lines += [f"  {node_to_text(node)}" for node in graph.graph_def.node]
    return "\n".join(lines)


def _random_knobs(choose, ops):
    level = ("DEFAULT",) * 7 + ("TREAT_INFER_AS_DENY", "TENSOR_CORES_ONLY", "UNSAFE_FORCE_ALL")
    knobs = AmpConfig(level=level[choose(len(level))])
    if choose(4) or not ops:
        return knobs
    op = ops[choose(len(ops))]
    target = LIST_NAMES[choose(len(LIST_NAMES))]
    # Leaving every list first makes the move valid wherever the op is now.
    moves = {f"{name}_remove": (op,) for name in LIST_NAMES if name != target}
    return dataclasses.replace(knobs, **moves, **{f"{target}_add": (op,)})


class _Builder:
    def __init__(self, choose):
        self.graph = graph_pb2.GraphDef()
        self.graph.versions.producer = 2000
        self._choose = choose
        self._pool = op_pool()
        self._ports = {}
        self._variables = {}
        self._depth = 0

    def add_nodes(self, count):
        for _ in range(count):
            self._add_something()

    def some_fetches(self):
        # Nothing inside a loop can be fetched; for a fetched NextIteration the C++ pass breaks its
        # own rule.
        names = [node.name for node in self.graph.node if node.op != "NextIteration"]
        count = 1 + self._choose(3)
        fetches = dict.fromkeys(self._pick(names) for _ in range(count))
        return tuple(fetches)

    def ops_used(self):
        return sorted({node.op for node in self.graph.node} - {"Const"})

    # Choices

    def _pick(self, items):
        return items[self._choose(len(items))]

    def _pick_recent(self, items):
        """One of the last few mostly, so that long chains arise."""
        if self._choose(4):
            items = items[-4:]
        return self._pick(items)

    def _one_in(self, n):
        return self._choose(n) == n - 1

    def _some_type(self, allowed):
        if (not allowed or FLOAT in allowed) and not self._one_in(8):
            return FLOAT
        usable = RARE_TYPES
        if allowed:
            usable = [rare for rare in RARE_TYPES if rare in allowed]
        return self._pick(usable or list(allowed))

    # Nodes

    def _add_something(self):
        p = self._pool
        groups = (
            p.allow,
            p.allow,
            ("MatMul",),
            p.infer,
            p.infer,
            p.infer,
            p.deny,
            p.clear,
            p.clear,
            p.clear,
            p.clear,
        )
        roll = self._choose(len(groups) + 4)
        if roll < len(groups):
            self._add_op(self._pick(groups[roll]))
        elif roll == len(groups):
            self._add_op(self._pick(p.tensor_lists))
        elif roll == len(groups) + 1:
            self._add_op(self._pick(p.other))
        elif roll == len(groups) + 2:
            self._add_branch()
        elif self._depth < 2:
            self._add_loop()

    def _add_op(self, op):
        definition = op_def(op)
        element = FLOAT if self._choose(5) else INT32
        node = node_def_pb2.NodeDef(op=op)
        self._set_attributes(node, definition, element)
        for arg in definition.input_arg:
            for data_type in arg_types(node, arg):
                if arg.is_ref:
                    source = self._variable(data_type)
                else:
                    source = self._source(_kind(data_type, element))
                node.input.append(source)
        self._finish(node)
        port = 0
        for arg in definition.output_arg:
            for data_type in arg_types(node, arg):
                self._publish(node, port, _kind(data_type, element))
                port += 1

    def _set_attributes(self, node, definition, element):
        numbers = {arg.number_attr for arg in (*definition.input_arg, *definition.output_arg)}
        handles = node.op in HANDLE_OPS and self._one_in(6)
        for attr in definition.attr:
            allowed = list(attr.allowed_values.list.type)
            value = node.attr[attr.name]
            if attr.type == "type":
                takes_handle = handles and attr.name == "T" and (not allowed or VARIANT in allowed)
                holds_element = attr.name == "element_dtype" or (
                    node.op == "AssignVariableOp" and attr.name == "dtype"
                )
                if takes_handle:
                    value.type = VARIANT
                elif holds_element:
                    value.type = element
                else:
                    value.type = self._some_type(allowed)
                if attr.HasField("default_value") and FLOAT not in (allowed or [FLOAT]):
                    value.type = attr.default_value.type
                if node.op == "ReadVariableOp":
                    value.type = element
            elif attr.type == "list(type)":
                count = max(attr.minimum, 1 + self._choose(3))
                for _ in range(count):
                    value.list.type.append(self._some_type(allowed))
            elif attr.name in numbers:
                value.i = max(attr.minimum, 1 + self._choose(3))
            elif attr.HasField("default_value"):
                value.CopyFrom(attr.default_value)
            elif attr.type == "string":
                texts = attr.allowed_values.list.s
                if texts:
                    value.s = texts[0]
                else:
                    value.s = STRINGS[attr.name].encode()
            elif attr.type == "list(int)":
                value.list.i.extend([1] * max(attr.minimum, 4))
            elif attr.type == "int":
                value.i = max(attr.minimum, 1)
            elif attr.type == "bool":
                value.b = False
            elif attr.type == "shape":
                value.shape.unknown_rank = True

    def _written(self, text):
        """Adds a node that is written as in :mod:`tests.small_graphs`, but for its name."""
        node = small_graphs.node(f"node = {text}")
        self._finish(node)
        return node

    def _finish(self, node):
        # Only now: the sources of its inputs were made meanwhile, and names shall count upwards.
        node.name = f"n{len(self.graph.node)}_{node.op}"
        if self._one_in(10):
            node.device = self._pick(DEVICES)
        if self.graph.node and self._one_in(12):
            source = self._pick_recent(self.graph.node).name
            # Grappler drops a control input from a node that is also a data input.
            if source not in {name.partition(":")[0] for name in node.input}:
                node.input.append(f"^{source}")
        self.graph.node.append(node)

    def _publish(self, node, port, kind):
        ports = self._ports.setdefault(kind, [])
        ports.append(f"{node.name}:{port}" if port else node.name)

    def _source(self, kind):
        ports = self._ports.get(kind, ())
        if ports and not self._one_in(12):
            return self._pick_recent(ports)
        return self._new_source(kind)

    def _new_source(self, kind):
        data_type, held = kind
        if data_type == VARIANT:
            shape = self._source((INT32, 0))
            size = self._source((INT32, 0))
            given = f"element_dtype={_name(held)} shape_type=int32"
            node = self._written(f"EmptyTensorList({shape}, {size}) {given}")
        elif data_type == RESOURCE:
            node = self._written(f"VarHandleOp() dtype={_name(held)} shape=?")
        elif data_type == FLOAT and self._one_in(4):
            return self._variable(FLOAT)
        else:
            node = node_def_pb2.NodeDef(op="Const")
            node.attr["dtype"].type = node.attr["value"].tensor.dtype = data_type
            node.attr["value"].tensor.tensor_shape.dim.add(size=0)
            self._finish(node)
        self._publish(node, 0, kind)
        return node.name

    def _variable(self, data_type):
        """A reference variable; its type is the element type, its port is a reference."""
        known = self._variables.setdefault(data_type, [])
        if not known or self._one_in(2):
            node = self._written(f"VariableV2() dtype={_name(data_type)} shape=?")
            known.append(node.name)
            self._publish(node, 0, (data_type, 0))
        return self._pick(known)

    # Control flow

    def _some_kind(self):
        kinds = ((FLOAT, 0), (FLOAT, 0), (FLOAT, 0), (INT32, 0), (VARIANT, FLOAT))
        return self._pick(kinds)

    def _add_branch(self):
        kind = self._some_kind()
        given = self._source(kind)
        taken = self._source((BOOL, 0))
        of_type = f"T={_name(kind[0])}"
        switch = self._written(f"Switch({given}, {taken}) {of_type}")
        self._publish(switch, 0, kind)
        self._publish(switch, 1, kind)
        self.add_nodes(self._choose(3))
        branch = self._source(kind)
        merge = self._written(f"Merge({branch}, {switch.name}:1) {of_type}")
        self._publish(merge, 0, kind)
        self._publish(merge, 1, (INT32, 0))

    def _add_loop(self):
        kinds = [self._some_kind() for _ in range(1 + self._choose(3))]
        frame = f"frame_name='frame{len(self.graph.node)}'"
        predicate = self._source((BOOL, 0))
        merges = []
        exits = []
        for kind in kinds:
            of_type = f"T={_name(kind[0])}"
            enter = self._written(f"Enter({self._source(kind)}) {of_type} {frame}")
            self._publish(enter, 0, kind)
            merge = self._written(f"Merge({enter.name}, {enter.name}) {of_type}")
            switch = self._written(f"Switch({merge.name}, {predicate}) {of_type}")
            self._publish(switch, 1, kind)
            merges.append(merge.name)
            exits.append((f"{switch.name}", kind))
        self._depth += 1
        self.add_nodes(1 + self._choose(4))
        self._depth -= 1
        for name, kind in zip(merges, kinds, strict=True):
            of_type = f"T={_name(kind[0])}"
            following = self._written(f"NextIteration({self._source(kind)}) {of_type}")
            (merge,) = (node for node in self.graph.node if node.name == name)
            merge.input[1] = following.name
            if self._one_in(6):  # some optimised graphs have two Merges of one NextIteration
                self._written(f"Merge({merge.input[0]}, {following.name}) {of_type}")
        for switch, kind in exits:
            leaving = self._written(f"Exit({switch}) T={_name(kind[0])}")
            self._publish(leaving, 0, kind)


def _name(data_type):
    return tf.as_dtype(data_type).name


def _kind(data_type, element):
    return (data_type, element if data_type in HOLDERS else 0)
