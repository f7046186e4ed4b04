"""Plans the edits that a painting asks for: new types, successors of ops, and casts where precisions meet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from amp_tf.graph import datatypes
from amp_tf.graph.plan import EditPlan, NewCast, Rename, Retypes
from amp_tf.graph.view import GraphView, compact
from amp_tf.oplists.table import SUCCESSOR_OPS
from amp_tf.painting.painting import Painting
from amp_tf.precision import Precision

CAST_SUFFIX = "AutoMixedPrecision"  #: ends the name of every cast that a rewrite inserts, as in TensorFlow's own pass
_CAST_NAMES = {
    Precision.FLOAT16.data_type: "CastToFp16",
    Precision.BFLOAT16.data_type: "CastToBf16",
    Precision.FLOAT32.data_type: "CastToFp32",
}


def plan_edits(painting: Painting) -> EditPlan:
    """The edits that turn the painted graph into its mixed-precision form.

    An output port that some reader needs in the other precision gets one Cast, shared by all those readers and placed
    on the port's device.
    """
    if painting.precision is None or not painting.converted:
        return EditPlan()
    view = painting.view
    retypes = _plan_retypes(view, painting.converted, painting.precision.data_type)
    return EditPlan(tuple(_plan_renames(view, painting)), retypes, tuple(_plan_casts(view, painting.dtypes_after())))


def _plan_retypes(view: GraphView, units: Sequence[int], data_type: int) -> Retypes:
    nodes = view.spread(np.arange(view.node_count, dtype=np.int32))[units]
    slots = np.asarray(units) - np.asarray(view.base)[nodes]
    return Retypes(compact(nodes), compact(slots), data_type)


def _plan_renames(view: GraphView, painting: Painting) -> Iterator[Rename]:
    for node in painting.converted_nodes():
        signature = view.signatures[node]
        if signature.op not in SUCCESSOR_OPS:
            continue
        proto = view.protos[node]
        if proto.op != signature.op:  # the reader looked at this node as its successor
            added = next(slot.attr for slot in signature.slots if slot.attr and slot.attr not in proto.attr)
            yield Rename(node, signature.op, added, datatypes.FLOAT)


def _plan_casts(view: GraphView, after: np.ndarray) -> Iterator[NewCast]:
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
    taken = set(view.names) if readers else set()
    for (node, port, source_type, wanted_type), served in readers.items():
        name = _fresh_name(f"{view.names[node]}-{port}-{_CAST_NAMES[wanted_type]}", taken)
        yield NewCast(name, node, port, source_type, wanted_type, tuple(served))


def _fresh_name(stem: str, taken: set[str]) -> str:
    number = 0
    while (name := f"{stem}-{number}-{CAST_SUFFIX}") in taken:
        number += 1
    taken.add(name)
    return name
