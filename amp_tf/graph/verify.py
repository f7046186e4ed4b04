"""Verification: the conditions that must hold after a rewrite, as rows of checks.

Reading a graph already proves that its names are unique, that no input dangles, that every op has
the inputs it expects, that control inputs come last and that types agree on every edge
(:mod:`amp_tf.graph.reader`). The rows here compare the graph before and after.

New types and casts are checked by what they must be, not by their plan. Other edits are checked
against the painted graph, which must be the result of them. Its edges come from
:meth:`~amp_tf.graph.view.GraphView.after`, which numbers nodes and applies one change after the
other; the editor writes names and makes all changes at once. Ops and attributes come from the
editor on both sides.

All rows compare whole arrays or lists. If nodes read the same tensors as before, apart from casts,
there is no new cycle. So cycles are searched only if edits rewired nodes or made them wait.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from amp_tf.graph.algorithms import is_sorted
from amp_tf.graph.attributes import ROUNDED_ATTR
from amp_tf.graph.datatypes import FLOAT, Indices, Mask, indices, mask_of
from amp_tf.graph.edits import NO_EDITS, Edits
from amp_tf.graph.view import GraphView
from amp_tf.oplists.table import CASTS, LOOP_CLOSERS


@dataclasses.dataclass(frozen=True)
class Case:
    """The graphs that are compared; the nodes of each are the first nodes of the next.

    Attributes:
        original: the graph that was given.
        edits: its edits, except types and casts.
        before: the graph that they make of it.
        after: the rewritten graph, with types and casts.
    """

    original: GraphView
    edits: Edits
    before: GraphView
    after: GraphView

    @functools.cached_property
    def rounded(self) -> Mask:
        """The nodes that got the mark of a rounded product."""
        found = mask_of(self.after.marked(ROUNDED_ATTR), self.after.node_count)
        found[self.original.marked(ROUNDED_ATTR)] = False
        return found

    @functools.cached_property
    def wrong_input(self) -> str:
        """A sentence on the first input that reads neither its old tensor nor a cast of it."""
        names = self.before.names
        edges = self.before.edges
        found_reader, found_node, found_port = _without_casts(self)
        if not np.array_equal(found_reader, edges.dst_node):
            return "a node has not as many inputs as before"
        wrong = np.flatnonzero((found_node != edges.src_node) | (found_port != edges.src_port))
        if not len(wrong):
            return ""
        edge = wrong[0]
        wanted = f"{names[edges.src_node[edge]]}:{edges.src_port[edge]}"
        found = "a new node"
        if found_node[edge] < len(names):
            found = f"{names[found_node[edge]]}:{found_port[edge]}"
        reader = names[edges.dst_node[edge]]
        position = edges.dst_position[edge]
        return f"input {position} of {reader!r} comes from {found} instead of {wanted}"


def _nodes_kept(case: Case) -> str:
    names = case.before.names
    if list(case.after.names[: len(names)]) != list(names):
        return "a node of the original graph is missing"
    return ""


def _first_change(case: Case, what: str, before: Sequence[str], after: Sequence[str]) -> str:
    """Returns a sentence on the first node that has something else than before."""
    kept = after[: case.before.node_count]
    if kept == before:
        return ""
    for name, old, new in zip(case.before.names, before, kept, strict=True):
        if old != new:
            return f"the {what} of {name!r} changed from {old!r} to {new!r}"
    return ""


def _no_new_cycle(case: Case) -> str:
    """Finds a node on a cycle, or behind one, unless the original graph had a cycle, too."""
    is_same = len(case.after.controls) == len(case.original.controls)
    if not case.edits and is_same and not case.wrong_input:
        return ""
    found = _on_cycles(case.after)
    if not found.any() or _on_cycles(case.original).any():
        return ""
    return f"{case.after.names[int(found.argmax())]!r} is on a cycle"


def _on_cycles(view: GraphView) -> Mask:
    """Returns the nodes on cycles that no NextIteration closes, and those behind them."""
    sources, readers = view.links
    free = ~view.mask_with(LOOP_CLOSERS)[sources]
    return ~is_sorted(np.ones(view.node_count, np.bool_), sources[free], readers[free])


def _waits_kept(case: Case) -> str:
    """Finds a node whose control inputs are not the planned ones; casts are new, and may have
    some.
    """
    kept = case.after.controls[:, 1] < case.before.node_count
    found = set(map(tuple, case.after.controls[kept].tolist()))
    wrong = found.symmetric_difference(map(tuple, case.before.controls.tolist()))
    if not wrong:
        return ""
    _, node = min(wrong)
    return f"{case.before.names[node]!r} waits for others than was planned"


def _attributes_kept(case: Case) -> str:
    """Finds a node of which an attribute changed that gives no type."""
    before = case.before
    after = case.after
    # Nodes of one kind have equal attributes, but for the values of marks.
    kinds = before.kinds.astype(np.int64) * len(after.of_kind) + after.kinds[: before.node_count]
    _, firsts = np.unique(kinds, return_index=True)
    is_compared = before.of_kinds(map(bool, before.marks), np.bool_)
    is_compared[firsts] = True
    for node in indices(is_compared):
        old = before.protos[node]
        new = after.protos[node]
        if old != new and _attributes(old) != _attributes(new):
            return f"an attribute of {before.names[node]!r} that is not a type changed"
    return ""


def _roundings_made(case: Case) -> str:
    """Finds an input or result of a newly marked product that is not rounded to the type of the
    mark.

    Float32 tensors must come in by casts from the 16-bit type, and go out by casts to it.
    """
    after = case.after
    rounded = case.rounded
    edges = after.edges
    if not rounded.any():
        return ""
    dtypes = np.asarray(after.dtypes)
    is_float32 = dtypes[edges.src_unit] == FLOAT
    edges = edges.at(is_float32 & (rounded[edges.src_node] | rounded[edges.dst_node]))
    for source, reader in edges.rows("src_node", "dst_node"):
        for node, neighbour in ((source, reader), (reader, source)):
            if not rounded[node]:
                continue
            data_type = after.protos[node].attr[ROUNDED_ATTR].type
            if after.ops[neighbour] not in CASTS or data_type not in dtypes[after.units(neighbour)]:
                names = after.names
                return f"what {names[reader]!r} reads of {names[source]!r} is not rounded"
    return ""


def _attributes(proto: Any) -> dict[str, bytes]:
    """Returns the attributes of a NodeDef that give no types, serialized."""
    attributes = {}
    for key, value in proto.attr.items():
        if not value.type and not value.list.type:
            attributes[key] = value.SerializeToString(deterministic=True)
    return attributes


#: The checks; each returns a sentence on the first violation, or an empty text.
CHECKS: Mapping[str, Callable[[Case], str]] = {
    "nodes kept": _nodes_kept,
    "ops kept": lambda case: _first_change(case, "op", case.before.ops, case.after.ops),
    "devices kept": lambda case: _first_change(
        case, "device", case.before.devices, case.after.devices
    ),
    "no new cycle": _no_new_cycle,
    "inputs kept": lambda case: case.wrong_input,
    "waits kept": _waits_kept,
    "attributes kept": _attributes_kept,
    "roundings made": _roundings_made,
}


def find_violation(
    before: GraphView, after: GraphView, edits: Edits = NO_EDITS, painted: GraphView | None = None
) -> str:
    """Returns the sentence of the first check that finds a violation, or an empty text.

    Args:
        before: the graph that was given.
        after: the rewritten graph.
        edits: the planned changes, except types and casts.
        painted: the graph after these edits; ``before`` if there are none.
    """
    case = Case(before, edits, painted or before, after)
    for name, find in CHECKS.items():
        found = find(case)
        if found:
            return f"{name}: {found}"
    return ""


def _without_casts(case: Case) -> tuple[Indices, Indices, Indices]:
    """Finds the tensors that the old nodes read, with new casts skipped.

    Returns:
        For each input the reader, the node that is read, and its port. A new node that is no cast
        has a number that no old node has.
    """
    after = case.after
    edges = after.edges
    is_old = edges.dst_node < case.before.node_count
    kept = edges.at(is_old)
    casts = edges.at(~is_old & after.mask_with(CASTS)[edges.dst_node])
    behind_node = np.arange(after.node_count, dtype=np.int32)
    behind_node[casts.dst_node] = casts.src_node
    behind_port = np.zeros(after.node_count, np.int32)
    behind_port[casts.dst_node] = casts.src_port
    node = behind_node[kept.src_node]
    port = np.where(node == kept.src_node, kept.src_port, behind_port[kept.src_node])
    # Only inputs and results of products in float32 are rounded, by a cast of a cast.
    before = behind_node[node]
    is_rounded = (before != node) & (case.rounded[kept.dst_node] | case.rounded[before])
    port = np.where(is_rounded, behind_port[node], port)
    node = np.where(is_rounded, before, node)
    return kept.dst_node, node, port
