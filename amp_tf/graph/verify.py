"""Verification: what must hold after a rewrite, as rows of checks.

Reading a graph already proves that its names are unique, that no input dangles, that every op has
the inputs it expects, that control inputs come last and that types agree on every edge
(:mod:`amp_tf.graph.reader`). The rows here compare the graph before and after.

New types and casts are judged without their plan. What else was edited is not: the graph must be
the one that was painted. Its edges come from :meth:`~amp_tf.graph.view.GraphView.after`, change by
change, which works with numbers where the editor writes names and all changes at once, and its
control inputs from the edits themselves; for ops and attributes both ask the editor.

All rows look at arrays or lists as a whole. That there is no new cycle follows from the inputs:
where each node reads what it read before, apart from casts in between, a cycle would have been
there before. Where edits made nodes read something else, or nodes and casts wait for others, it is
searched for.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from amp_tf.graph.algorithms import control_links, is_sorted
from amp_tf.graph.attributes import ROUNDED_ATTR, nodes_with
from amp_tf.graph.datatypes import FLOAT, Indices, Mask
from amp_tf.graph.edits import NO_EDITS, Edits
from amp_tf.graph.reader import RETVAL_OP
from amp_tf.graph.view import GraphView
from amp_tf.oplists.table import CASTS, LOOP_CLOSERS


@dataclasses.dataclass(frozen=True)
class Case:
    """What is compared: the original, the graph before casts, which the edits make of it, and the
    one after.
    """

    original: GraphView
    edits: Edits
    before: GraphView
    after: GraphView

    @functools.cached_property
    def old_numbers(self) -> Indices:
        """For each node, the number that it had before, -1 for a new one: these follow the graph or
        function body.
        """
        results = self.before.ops.count(RETVAL_OP) if self.before.function else 0  # its last nodes
        first, count = self.before.node_count - results, self.after.node_count
        numbers = np.full(count, -1, np.int32)
        numbers[:first] = np.arange(min(first, count))
        numbers[count - results :] = np.arange(first, first + results)
        return numbers

    def old_ones(self, values: Sequence[str]) -> list[str]:
        """Of one value a node, those of nodes that were there before."""
        return list(itertools.compress(values, (self.old_numbers >= 0).tolist()))

    @functools.cached_property
    def rounded(self) -> Mask:
        """The nodes, as they are after, that got the mark of what is rounded."""
        had_it = {node for node, _ in nodes_with(self.original.protos, ROUNDED_ATTR)}
        found = np.zeros(self.after.node_count, np.bool_)
        for node, _ in nodes_with(self.after.protos, ROUNDED_ATTR):
            found[node] = self.old_numbers[node] not in had_it
        return found

    @functools.cached_property
    def wrong_input(self) -> str:
        """A sentence on the first node that no longer reads the tensor that it read, or a cast of
        it; or nothing.
        """
        before, after, old_number = self.before, self.after, self.old_numbers
        edges = before.edges
        found_reader, found_node, found_port = _without_casts(after, old_number, self.rounded)
        if not np.array_equal(found_reader, edges.dst_node):
            return "a node has not as many inputs as before"
        wrong = np.flatnonzero((found_node != edges.src_node) | (found_port != edges.src_port))
        if not len(wrong):
            return ""
        edge = wrong[0]
        new_number = np.flatnonzero(old_number >= 0)
        wanted = f"{before.names[edges.src_node[edge]]}:{edges.src_port[edge]}"
        found = (
            f"{after.names[new_number[found_node[edge]]]}:{found_port[edge]}"
            if found_node[edge] >= 0
            else "a new node"
        )
        reader = before.names[edges.dst_node[edge]]
        return (
            f"input {edges.dst_position[edge]} of {reader!r} comes from {found} instead of {wanted}"
        )


def _first_change(case: Case, what: str, before: Sequence[str], after: Sequence[str]) -> str:
    kept = case.old_ones(after)
    changes = zip(case.before.names, before, kept, strict=True) if kept != before else ()
    found = (
        f"the {what} of {name!r} changed from {old!r} to {new!r}"
        for name, old, new in changes
        if old != new
    )
    return next(found, "")


def _no_new_cycle(case: Case) -> str:
    """A graph that had a cycle before proves nothing."""
    new = () if case.after.function else case.after.protos[case.before.node_count :]
    have_waits = case.edits.waits or any(_controls(proto) for proto in new)
    if not case.edits and not have_waits and not case.wrong_input:
        return ""

    def waiting(view: GraphView) -> Mask:
        """The nodes that wait for themselves, by a ring that no NextIteration closes, or for one
        that does.
        """
        controls = control_links(view) if have_waits else np.zeros((0, 2), np.int32)
        sources = np.concatenate([view.edges.src_node, controls[:, 0]])
        readers = np.concatenate([view.edges.dst_node, controls[:, 1]])
        free = ~view.mask_with(LOOP_CLOSERS)[sources]
        return ~is_sorted(np.ones(view.node_count, np.bool_), sources[free], readers[free])

    found = waiting(case.after)
    is_new = found.any() and not waiting(case.original).any()
    return f"{case.after.names[int(found.argmax())]!r} is on a cycle" if is_new else ""


def _waits_kept(case: Case) -> str:
    """What waits for more than before, and what is new, must wait for just what was planned."""
    names, edits, protos = case.before.names, case.edits, case.original.protos
    planned = {
        number: [names[each] for each in node.after]
        for number, node in enumerate(edits.new, len(protos))
    }
    for wait in edits.waits:
        if wait.node not in planned:  # new ones are, and the original graph has no such number
            planned[wait.node] = _controls(protos[wait.node])
        planned[wait.node].append(names[wait.after])
    wrong = (node for node, waits in planned.items() if _controls(case.after.protos[node]) != waits)
    node = next(wrong, None)
    return "" if node is None else f"{names[node]!r} waits for others than was planned"


def _rest_kept(case: Case) -> str:
    """What is neither a type nor a data input must be as it was: other attributes, control inputs."""
    before = case.before
    original, after, planned = _nodes(case.original), _nodes(case.after), _nodes(before)
    edited = set(case.edits.remade(case.original.node_count))
    changed = [
        node for node, (old, new) in enumerate(zip(original, after, strict=False)) if old != new
    ]
    for node in sorted(edited.union(changed)):
        if _rest(planned[node]) != _rest(after[node]):
            if before.function:  # its arguments come first
                node += next(
                    number for number, proto in enumerate(before.protos) if proto is not None
                )
            return (
                f"an attribute that is not a type, or a control input, of {before.names[node]!r} "
                "changed"
            )
    return ""


def _roundings_made(case: Case) -> str:
    """What a new mark says is rounded must be: float32 tensors come in by casts from the type, and
    go out by such.
    """
    after, rounded, edges = case.after, case.rounded, case.after.edges
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
                return (
                    f"what {after.names[reader]!r} reads of {after.names[source]!r} is not rounded"
                )
    return ""


def _rest(proto: Any) -> tuple[list[str], dict[str, bytes]]:
    attributes = {
        key: value for key, value in proto.attr.items() if not (value.type or value.list.type)
    }
    return (
        _controls(proto),
        {key: value.SerializeToString(deterministic=True) for key, value in attributes.items()},
    )


def _controls(proto: Any) -> list[str]:
    return [text[1:] for text in proto.input if text[:1] == "^"]


def _nodes(view: GraphView) -> Sequence[Any]:
    """The NodeDefs of a graph, or of a function's body."""
    return [proto for proto in view.protos if proto is not None] if view.function else view.protos


#: What is checked, with what gives a sentence on the first violation, or an empty string.
CHECKS: Mapping[str, Callable[[Case], str]] = {
    "nodes kept": lambda case: (
        ""
        if case.old_ones(case.after.names) == case.before.names
        else "a node of the original graph is missing"
    ),
    "ops kept": lambda case: _first_change(case, "op", case.before.ops, case.after.ops),
    "devices kept": lambda case: _first_change(
        case, "device", case.before.devices, case.after.devices
    ),
    "no new cycle": _no_new_cycle,
    "inputs kept": lambda case: case.wrong_input,
    "waits kept": _waits_kept,
    "rest kept": _rest_kept,
    "roundings made": _roundings_made,
}


def find_violation(
    before: GraphView, after: GraphView, edits: Edits = NO_EDITS, painted: GraphView | None = None
) -> str:
    """A sentence on the first row that does not hold, or an empty string. Edits are what should
    have changed, but for types and casts; the painted graph is the one once they are made.
    """
    case = Case(before, edits, painted or before, after)
    return next((f"{name}: {found}" for name, find in CHECKS.items() if (found := find(case))), "")


def _without_casts(
    after: GraphView, old_number: Indices, rounded: Mask
) -> tuple[Indices, Indices, Indices]:
    """What the nodes that were there before read once new casts are skipped, input by input.

    The numbers that reader and node had before (-1 for a new one that is no cast, or feeds one),
    and a port.
    """
    edges = after.edges
    into_old = old_number[edges.dst_node] >= 0
    kept, casts = edges.at(into_old), edges.at(~into_old & after.mask_with(CASTS)[edges.dst_node])
    behind_node, behind_port = np.arange(after.node_count), np.zeros(after.node_count, np.int32)
    behind_node[casts.dst_node], behind_port[casts.dst_node] = casts.src_node, casts.src_port
    node = behind_node[kept.src_node]
    port = np.where(node == kept.src_node, kept.src_port, behind_port[kept.src_node])
    # Casts of casts round what a product in float32 reads or gives, and nothing else.
    before = behind_node[node]
    is_rounded = (before != node) & (rounded[kept.dst_node] | rounded[before])
    port = np.where(is_rounded, behind_port[node], port)
    node = np.where(is_rounded, before, node)
    return old_number[kept.dst_node], old_number[node], port
