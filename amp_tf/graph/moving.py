"""Moves: nodes that read other tensors than before, as data; what applies them, and what checks the result.

Casts are planned and verified elsewhere (:mod:`amp_tf.graph.plan`, :mod:`amp_tf.graph.verify`): there every node reads
what it read before. Here it does not, so the result is compared with what the moves say, input by input.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from amp_tf.errors import GraphError
from amp_tf.graph import datatypes
from amp_tf.graph.reader import read_nodes
from amp_tf.graph.serialized import NodesUnderEdit, NodeTable, read_table
from amp_tf.graph.sizes import SHAPES_ATTR
from amp_tf.graph.templates import Templates
from amp_tf.graph.verify import LOOP_ENTRIES, find_new_cycle
from amp_tf.graph.view import GraphView

_INT32 = 3  # its DataType number
_OF_A_LOOP = ("frame_name", "is_constant", "parallel_iterations")  # what the Enters of a loop say of it


class Move(NamedTuple):
    """A data input of a node gets another tensor; numbers from ``view.node_count`` on are those of new nodes."""

    node: int
    position: int
    src_node: int
    src_port: int


class BiasTurn(NamedTuple):
    """A sum of a product's result and a vector becomes BiasAdd."""

    node: int


class NewReshape(NamedTuple):
    """Two new nodes: a constant shape and the Reshape of a float32 tensor to it.

    Attributes:
        names: of the constant and of the Reshape.
        src_node, src_port: the tensor.
        shape: the constant.
        beside: the node on whose device both are.
    """

    names: tuple[str, str]
    src_node: int
    src_port: int
    shape: tuple[int, ...]
    beside: int


class NewRead(NamedTuple):
    """A new node that reads a variable as another does, but elsewhere.

    Attributes:
        name: of the new node.
        model: the node whose op, device and attributes it has.
        src_node, src_port: the variable's handle.
        after: the nodes that it waits for.
    """

    name: str
    model: int
    src_node: int
    src_port: int
    after: tuple[int, ...]


class NewEnter(NamedTuple):
    """A new node that hands a float32 tensor to a loop, for all its turns.

    Attributes:
        name: of the new node.
        model: the Enter whose loop and device it has, and which waits for the same nodes.
        src_node: the node whose first output it reads.
        after: the nodes that it waits for.
    """

    name: str
    model: int
    src_node: int
    after: tuple[int, ...]


class Wait(NamedTuple):
    """A node waits for another one besides."""

    node: int
    after: int


@dataclasses.dataclass(frozen=True)
class Moves:
    """All moves of one graph. New nodes are numbered from ``view.node_count`` on: those of reshapes, reads, Enters.

    Attributes:
        moves, turns, reshapes, reads, enters, waits: what changes.
        resized: nodes whose result has another shape afterwards, and the node whose result has this shape already.
    """

    moves: tuple[Move, ...] = ()
    turns: tuple[BiasTurn, ...] = ()
    reshapes: tuple[NewReshape, ...] = ()
    resized: tuple[tuple[int, int], ...] = ()
    reads: tuple[NewRead, ...] = ()
    enters: tuple[NewEnter, ...] = ()
    waits: tuple[Wait, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.moves)

    @property
    def added(self) -> int:
        """How many nodes are new."""
        return 2 * len(self.reshapes) + len(self.reads) + len(self.enters)

    def links(self, view: GraphView) -> list[tuple[int, int]]:
        """The edges that are new, control edges included: (source, reader)."""
        links = [(move.src_node, move.node) for move in self.moves]
        links += [(wait.after, wait.node) for wait in self.waits]
        for number, node in enumerate(_new_nodes(view, self), view.node_count):
            links += [(source, number) for source, _ in node.inputs]
            links += [(source, number) for source in node.after]
        return links


class _NewNode(NamedTuple):
    """What the result must show of a new node: data inputs as (node, port), and the nodes that it waits for."""

    name: str
    op: str
    device: str
    inputs: tuple[tuple[int, int], ...]
    after: tuple[int, ...] = ()


def move_nodes(
    nodes: NodeTable, view: GraphView, moves: Moves, templates: Templates, where: str
) -> tuple[NodeTable, GraphView]:
    """The graph once the moves are made, and its view.

    Args:
        nodes: the nodes of a graph; they are not changed.
        view: its view.
        moves: the edits.
        templates: the known ops.
        where: what planned the moves, for a message.

    Raises:
        GraphError: the result is broken, or another than was planned. This is a bug.
    """
    edited = NodesUnderEdit(nodes)
    apply_moves(edited, view, moves)
    table = read_table(edited.serialize())
    after = read_nodes(table, templates, view.names)
    if deviation := find_deviation(view, after, moves):
        raise GraphError(deviation, where=where)
    return table, after


def apply_moves(protos: Any, view: GraphView, moves: Moves) -> None:
    """Edits the nodes of a graph in place.

    Args:
        protos: the nodes: :class:`~amp_tf.graph.serialized.NodesUnderEdit`, or the field ``node`` of a GraphDef.
        view: the graph's view.
        moves: the edits.
    """
    names = [*view.names, *(node.name for node in _new_nodes(view, moves))]
    for move in moves.moves:
        protos[move.node].input[move.position] = _tensor(names[move.src_node], move.src_port)
    for turn in moves.turns:
        node = protos[turn.node]
        node.op = "BiasAdd"
        node.attr["data_format"].s = b"NHWC"
        if "N" in node.attr:
            del node.attr["N"]
    for node_number, model in moves.resized:
        node, shapes = protos[node_number], view.protos[model].attr
        if SHAPES_ATTR in node.attr:
            node.attr[SHAPES_ATTR].Clear()
            if SHAPES_ATTR in shapes:
                node.attr[SHAPES_ATTR].CopyFrom(shapes[SHAPES_ATTR])
    for wait in moves.waits:
        protos[wait.node].input.append(f"^{names[wait.after]}")
    for new in _new_nodes(view, moves):
        node = protos.add()
        node.name, node.op, node.device = new.name, new.op, new.device
        node.input.extend(_tensor(names[source], port) for source, port in new.inputs)
        node.input.extend(f"^{names[source]}" for source in new.after)
    _fill_attributes(protos, view, moves)


def find_deviation(before: GraphView, after: GraphView, moves: Moves) -> str:
    """A sentence on the first thing in the edited graph that the moves do not say, or an empty string."""
    new = list(_new_nodes(before, moves))
    for what, old, found in (
        ("names", [*before.names, *(node.name for node in new)], after.names),
        ("ops", [*_turned(before, moves), *(node.op for node in new)], after.ops),
        ("devices", [*before.devices, *(node.device for node in new)], after.devices),
    ):
        if old != found:
            return f"moves: the {what} of the nodes are not those that were planned"
    if not np.array_equal(_planned_inputs(before, moves), _inputs(after)):
        return "moves: a node reads a tensor that was not planned"
    if any(_controls(after, number) != planned for number, planned in _planned_controls(before, moves)):
        return "moves: a node waits for others than was planned"
    cycle = find_new_cycle(before, after)
    return cycle and f"moves: {cycle}"


def _tensor(name: str, port: int) -> str:
    return f"{name}:{port}" if port else name


def _new_nodes(view: GraphView, moves: Moves) -> Iterator[_NewNode]:
    """The new nodes, in the order of their numbers."""
    has_loops = not LOOP_ENTRIES.isdisjoint(view.ops)
    for number, reshape in enumerate(moves.reshapes):
        (shape_name, name), device = reshape.names, view.devices[reshape.beside]
        source = (reshape.src_node, reshape.src_port)
        # Without a control input a constant stands outside the loop that the tensor may be in.
        yield _NewNode(shape_name, "Const", device, (), (reshape.src_node,) if has_loops else ())
        yield _NewNode(name, "Reshape", device, (source, (view.node_count + 2 * number, 0)))
    for read in moves.reads:
        model = read.model
        yield _NewNode(read.name, view.ops[model], view.devices[model], ((read.src_node, read.src_port),), read.after)
    for enter in moves.enters:
        model = enter.model
        yield _NewNode(enter.name, view.ops[model], view.devices[model], ((enter.src_node, 0),), enter.after)


def _fill_attributes(protos: Any, view: GraphView, moves: Moves) -> None:
    number = view.node_count
    for reshape in moves.reshapes:
        _fill_shape(protos[number], reshape.shape)
        node = protos[number + 1]
        node.attr["T"].type = datatypes.FLOAT
        node.attr["Tshape"].type = _INT32
        number += 2
    for read in moves.reads:
        attributes = view.protos[read.model].attr
        for name in attributes:
            protos[number].attr[name].CopyFrom(attributes[name])
        number += 1
    for enter in moves.enters:
        attributes = view.protos[enter.model].attr
        node = protos[number]
        node.attr["T"].type = datatypes.FLOAT
        for name in _OF_A_LOOP:
            if name in attributes:
                node.attr[name].CopyFrom(attributes[name])
        number += 1


def _fill_shape(node: Any, shape: tuple[int, ...]) -> None:
    node.attr["dtype"].type = _INT32
    tensor = node.attr["value"].tensor
    tensor.dtype = _INT32
    tensor.tensor_shape.dim.add().size = len(shape)
    tensor.int_val.extend(shape)


def _turned(before: GraphView, moves: Moves) -> list[str]:
    ops = before.ops.copy()
    for turn in moves.turns:
        ops[turn.node] = "BiasAdd"
    return ops


def _inputs(view: GraphView) -> Any:
    """The data inputs: rows of (node, position, source node, source port), in order."""
    edges = view.edges
    return np.stack([edges.dst_node, edges.dst_position, edges.src_node, edges.src_port], axis=1)


def _planned_inputs(before: GraphView, moves: Moves) -> Any:
    read = {(node, position): (source, port) for node, position, source, port in _inputs(before).tolist()}
    read.update({(move.node, move.position): (move.src_node, move.src_port) for move in moves.moves})
    for number, node in enumerate(_new_nodes(before, moves), before.node_count):
        read.update({(number, position): source for position, source in enumerate(node.inputs)})
    return np.asarray([(*place, *source) for place, source in sorted(read.items())]).reshape(-1, 4)


def _planned_controls(before: GraphView, moves: Moves) -> Iterator[tuple[int, list[str]]]:
    """The control inputs of the nodes that get any: the new ones, and those that wait for one more."""
    new = list(_new_nodes(before, moves))
    names = [*before.names, *(node.name for node in new)]
    more: dict[int, list[str]] = {}
    for wait in moves.waits:
        more.setdefault(wait.node, _controls(before, wait.node)).append(f"^{names[wait.after]}")
    yield from more.items()
    for number, node in enumerate(new, before.node_count):
        yield number, [f"^{names[source]}" for source in node.after]


def _controls(view: GraphView, node: int) -> list[str]:
    return [source for source in view.protos[node].input if source.startswith("^")]
