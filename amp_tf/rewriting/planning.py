"""Plans the edits that a painting asks for: new types, successors of ops, and casts where precisions meet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from amp_tf.graph import datatypes
from amp_tf.graph.edits import NO_EDITS, Edits, NewNode, Reop, Retype, Rewire, attribute
from amp_tf.graph.names import FreshNames
from amp_tf.graph.view import GraphView
from amp_tf.oplists.table import SUCCESSOR_OPS
from amp_tf.painting.outcome import Painting
from amp_tf.precision import Precision

CAST_SUFFIX = "AutoMixedPrecision"  #: ends the name of every cast that a rewrite inserts, as in TensorFlow's own pass
_CAST_NAMES = {
    Precision.FLOAT16.data_type: "CastToFp16",
    Precision.BFLOAT16.data_type: "CastToBf16",
    Precision.FLOAT32.data_type: "CastToFp32",
}


def plan_edits(painting: Painting) -> Edits:
    """The edits that give the painted graph its mixed-precision form.

    An output port that some reader needs in the other precision gets one Cast, shared by all those readers and placed
    on the port's device. New nodes are casts alone.
    """
    if painting.precision is None or not painting.converted:
        return NO_EDITS
    view = painting.view
    rewires: list[Rewire] = []
    casts: list[NewNode] = []
    for number, (cast, readers) in enumerate(plan_casts(view, painting.dtypes_after()), view.node_count):
        casts.append(cast)
        rewires += [Rewire(node, position, number, 0) for node, position in readers]
    return Edits(
        reops=tuple(_plan_reops(view, painting)),
        retypes=(Retype.of_units(view, painting.converted, painting.precision.data_type),),
        rewires=tuple(rewires),
        new=tuple(casts),
    )


def _plan_reops(view: GraphView, painting: Painting) -> Iterator[Reop]:
    for node in painting.converted_nodes():
        signature = view.signatures[node]
        if signature.op not in SUCCESSOR_OPS:
            continue
        proto = view.protos[node]
        if proto.op != signature.op:  # the reader looked at this node as its successor
            added = next(slot.attr for slot in signature.slots if slot.attr and slot.attr not in proto.attr)
            yield Reop(node, signature.op, {added: attribute(type=datatypes.FLOAT)})


def plan_casts(view: GraphView, after: np.ndarray) -> Iterator[tuple[NewNode, Sequence[tuple[int, int]]]]:
    """The casts, each with (node, number of its data input) of all readers that need the other type."""
    edges = view.edges
    source_types, wanted_types = after[edges.src_unit], after[edges.dst_unit]
    meeting = np.flatnonzero(source_types != wanted_types)
    keys = zip(
        edges.src_node[meeting].tolist(),
        edges.src_port[meeting].tolist(),
        source_types[meeting].tolist(),
        wanted_types[meeting].tolist(),
        strict=True,
    )
    inputs = zip(edges.dst_node[meeting].tolist(), edges.dst_position[meeting].tolist(), strict=True)
    readers: dict[tuple[int, int, int, int], list[tuple[int, int]]] = {}
    for key, reader in zip(keys, inputs, strict=True):
        readers.setdefault(key, []).append(reader)
    names = FreshNames(view.names if readers else (), CAST_SUFFIX)
    for (node, port, source_type, wanted_type), served in readers.items():
        name = names.make(f"{view.names[node]}-{port}-{_CAST_NAMES[wanted_type]}")
        yield NewNode.cast(name, (node, port), view.devices[node], of=source_type, to=wanted_type), served
