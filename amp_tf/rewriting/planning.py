"""Plans the edits that a painting asks for: types, successors of ops, and casts between them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from amp_tf.graph import datatypes
from amp_tf.graph.attributes import ROUNDED_ATTR
from amp_tf.graph.datatypes import Indices, Mask, Node, indices
from amp_tf.graph.edits import NO_EDITS, Edits, NewNode, Reader, Reop, Rewire, Tensor, attribute
from amp_tf.graph.names import CAST_SUFFIX, FreshNames
from amp_tf.graph.view import GraphView
from amp_tf.oplists.table import SUCCESSOR_OPS
from amp_tf.painting.outcome import Painting
from amp_tf.precision import Precision

_CAST_NAMES = {
    Precision.FLOAT16.data_type: "CastToFp16",
    Precision.BFLOAT16.data_type: "CastToBf16",
    Precision.FLOAT32.data_type: "CastToFp32",
}


class _Cast(NamedTuple):
    """A cast to plan.

    Attributes:
        tensor: the tensor of the graph that it gives in another type.
        types: the tensor's own type, and the type after each cast up to this one.
        awaited: the nodes that it waits for.
    """

    tensor: Tensor
    types: tuple[int, ...]
    awaited: tuple[Node, ...]


def plan_edits(painting: Painting) -> Edits:
    """Plans the edits that give the painted graph its mixed-precision form.

    An output port that some reader needs in the other precision gets one Cast, shared by all those
    readers and placed on the port's device. New nodes are casts alone. A product that is rounded
    keeps its types and gets a mark.
    """
    if painting.precision is None or not painting.converted:
        return NO_EDITS
    view = painting.view
    f16 = painting.precision.data_type
    is_rounded = painting.rounded_units()
    rewires: list[Rewire] = []
    casts = []
    planned = plan_casts(view, painting.dtypes_after(), is_rounded)
    for number, (cast, readers) in enumerate(planned, view.node_count):
        casts.append(cast)
        rewires += [Rewire(*reader, number, 0) for reader in readers]
    reops = _plan_successors(painting)
    for unit in indices(is_rounded):
        node = view.unit_nodes[unit]
        mark = {ROUNDED_ATTR: attribute(type=f16)}
        reops.setdefault(node, Reop(node, view.ops[node], mark))
    converted = np.asarray(painting.converted, np.int32)
    return Edits(
        reops=tuple(reops.values()),
        retypes=(view.retyped(converted[~is_rounded[converted]], f16),),
        rewires=tuple(rewires),
        new=tuple(casts),
    )


def _plan_successors(painting: Painting) -> dict[Node, Reop]:
    """Replaces the ops of converted nodes that were read as their successor by this successor."""
    view = painting.view
    found = {}
    for node in painting.converted_nodes():
        signature = view.signatures[node]
        if signature.op not in SUCCESSOR_OPS:
            continue
        proto = view.protos[node]
        if proto.op == signature.op:
            continue
        added = {}
        for slot in signature.slots:
            if slot.attr and slot.attr not in proto.attr:
                added[slot.attr] = attribute(type=datatypes.FLOAT)
        found[node] = Reop(node, signature.op, added)
    return found


def cast_sources(casts: Edits, node_count: int) -> dict[Node, Tensor]:
    """Returns the tensor of the graph that each new cast gives in another type.

    Args:
        casts: the planned edits.
        node_count: the number of nodes of the graph; casts are numbered from there.
    """
    found: dict[Node, Tensor] = {}
    for number, cast in enumerate(casts.new, node_count):
        source = cast.inputs[0]
        found[number] = found.get(source[0], source)
    return found


def plan_casts(
    view: GraphView, after: Indices, is_rounded: Mask
) -> Iterator[tuple[NewNode, Sequence[Reader]]]:
    """Plans the casts, each with all readers of its type.

    A cast of a cast comes after its source. A TF1 reference gives the value that the variable has
    when it is read, so a cast of one waits for all that its reader waits for.

    Args:
        after: the type of each unit as it was painted.
        is_rounded: the units that are painted 16 bit but keep a float32 kernel; their inputs and
            results are rounded to 16 bit.
    """
    readers_of = _group_readers(view, after, is_rounded)
    names = FreshNames(view.names if readers_of else (), CAST_SUFFIX)
    number_of = {cast: number for number, cast in enumerate(readers_of, view.node_count)}
    for cast, readers in readers_of.items():
        *before, of, to = cast.types
        source = cast.tensor
        if before:  # a cast of a cast
            source = (number_of[cast._replace(types=cast.types[:-1])], 0)
        node, port = cast.tensor
        name = names.make(f"{view.names[node]}-{port}-{_CAST_NAMES[to]}")
        new = NewNode.cast(name, source, view.devices[node], of=of, to=to)
        yield new._replace(after=cast.awaited), readers


def _group_readers(
    view: GraphView, after: Indices, is_rounded: Mask
) -> Mapping[_Cast, Sequence[Reader]]:
    """Returns the casts that edges need, each after its source, with the inputs that read it.

    Arguments: as for :func:`plan_casts`.
    """
    edges = view.edges
    computed = np.where(is_rounded, datatypes.FLOAT, after)
    has_casts = (after[edges.src_unit] != after[edges.dst_unit]) | is_rounded[edges.src_unit]
    edges = edges.at(has_casts | is_rounded[edges.dst_unit])
    # The types of a tensor on its way from the op that gives it to the one that reads it.
    given = [computed[edges.src_unit], after[edges.src_unit]]
    wanted = [after[edges.dst_unit], computed[edges.dst_unit]]
    ways = list(map(tuple, np.stack([*given, *wanted], axis=1).tolist()))
    types_of = {}
    for way in {*ways}:
        types_of[way] = tuple(data_type for data_type, _ in itertools.groupby(way))
    # Readers share the casts of a tensor as far as their types are the same.
    ends = edges.rows("src_node", "src_port", "dst_node", "dst_position")
    readers_of: dict[_Cast, list[Reader]] = {}
    for (node, port, reader, position), way in zip(ends, ways, strict=True):
        cast = _Cast((node, port), types_of[way], awaited_by_cast(view, node, reader))
        for end in range(2, len(cast.types)):
            readers_of.setdefault(cast._replace(types=cast.types[:end]), [])
        readers_of.setdefault(cast, []).append((reader, position))
    return readers_of


def awaited_by_cast(view: GraphView, node: Node, reader: Node) -> tuple[Node, ...]:
    """Returns the nodes that a cast between two nodes waits for."""
    if view.signatures[node].has_refs:
        return tuple(view.awaited(reader))
    return ()
