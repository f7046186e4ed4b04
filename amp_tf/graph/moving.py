"""Moves: nodes that read other tensors than before, as data; what applies them, and what checks the result.

Casts are planned and verified elsewhere (:mod:`amp_tf.graph.plan`, :mod:`amp_tf.graph.verify`): there every node reads
what it read before. Here it does not, so the result is compared with what the moves say, input by input.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from amp_tf.graph import datatypes
from amp_tf.graph.sizes import SHAPES_ATTR
from amp_tf.graph.verify import LOOP_ENTRIES, find_new_cycle
from amp_tf.graph.view import GraphView

_INT32 = 3  # its DataType number


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


@dataclasses.dataclass(frozen=True)
class Moves:
    """All moves of one graph; the number of a new Reshape is ``view.node_count + 2 * its position + 1``.

    Attributes:
        moves, turns, reshapes: what changes.
        resized: nodes whose result has another shape afterwards, and the node whose result has this shape already.
    """

    moves: tuple[Move, ...] = ()
    turns: tuple[BiasTurn, ...] = ()
    reshapes: tuple[NewReshape, ...] = ()
    resized: tuple[tuple[int, int], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.moves)


def apply_moves(protos: Any, view: GraphView, moves: Moves) -> None:
    """Edits the nodes of a graph in place.

    Args:
        protos: the nodes: :class:`~amp_tf.graph.serialized.NodesUnderEdit`, or the field ``node`` of a GraphDef.
        view: the graph's view.
        moves: the edits.
    """
    names = [*view.names, *(name for reshape in moves.reshapes for name in reshape.names)]
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
    has_loops = not LOOP_ENTRIES.isdisjoint(view.ops)
    for reshape in moves.reshapes:
        device = view.devices[reshape.beside]
        # Without a control input a constant stands outside the loop that the tensor may be in.
        order = [f"^{names[reshape.src_node]}"] if has_loops else []
        _fill_shape(protos.add(), reshape, device, order)
        node = protos.add()
        node.name, node.op, node.device = reshape.names[1], "Reshape", device
        node.input.extend([_tensor(names[reshape.src_node], reshape.src_port), reshape.names[0]])
        node.attr["T"].type = datatypes.FLOAT
        node.attr["Tshape"].type = _INT32


def find_deviation(before: GraphView, after: GraphView, moves: Moves) -> str:
    """A sentence on the first thing in the edited graph that the moves do not say, or an empty string."""
    for what, old, new in (
        ("names", [*before.names, *_new(moves, lambda reshape: reshape.names)], after.names),
        ("ops", [*_turned(before, moves), *_new(moves, lambda _: ("Const", "Reshape"))], after.ops),
        ("devices", [*before.devices, *_new(moves, lambda r: (before.devices[r.beside],) * 2)], after.devices),
    ):
        if old != new:
            return f"moves: the {what} of the nodes are not those that were planned"
    if not np.array_equal(_planned_inputs(before, moves), _inputs(after)):
        return "moves: a node reads a tensor that was not planned"
    cycle = find_new_cycle(before, after)
    return cycle and f"moves: {cycle}"


def _tensor(name: str, port: int) -> str:
    return f"{name}:{port}" if port else name


def _fill_shape(node: Any, reshape: NewReshape, device: str, order: Sequence[str]) -> None:
    node.name, node.op, node.device = reshape.names[0], "Const", device
    node.input.extend(order)
    node.attr["dtype"].type = _INT32
    tensor = node.attr["value"].tensor
    tensor.dtype = _INT32
    tensor.tensor_shape.dim.add().size = len(reshape.shape)
    tensor.int_val.extend(reshape.shape)


def _new(moves: Moves, values: Any) -> Iterator[str]:
    return (value for reshape in moves.reshapes for value in values(reshape))


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
    count = before.node_count
    read = {(node, position): (source, port) for node, position, source, port in _inputs(before).tolist()}
    read.update({(move.node, move.position): (move.src_node, move.src_port) for move in moves.moves})
    for number, reshape in enumerate(moves.reshapes):
        constant = count + 2 * number
        read[constant + 1, 0] = (reshape.src_node, reshape.src_port)
        read[constant + 1, 1] = (constant, 0)
    return np.asarray([(*place, *source) for place, source in sorted(read.items())]).reshape(-1, 4)
