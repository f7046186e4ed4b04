"""Shared values: variables that are read many times, and TensorLists of which only some may be 16
bit.

*A variable is read once* where it is read many times with no write in between, as in a shared layer
or an unrolled recurrent cell, so that it is cast once. TensorFlow's pass casts each read
(difference "shared-reads").

    before:  handle → read, read_1, read_2, each → Cast → MatMul
    after:   handle → read → Cast → MatMul, MatMul_1, MatMul_2

A read that waits for nothing, of a handle that the graph is given, comes before every write that it
must not see: whatever TensorFlow orders behind a write waits for it, and in branches and loops the
handle comes through another node. So all such reads give the same value. The other reads stay, for
nodes that wait for them. Functions for XLA are left alone: XLA merges equal casts.

*Each TensorList gets a maker of its own.* A list is a value: each op that adds to one gives a new
one. TensorFlow's optimizers merge the ops that make equal empty lists, such as those in which a
recurrent layer keeps gates, states and inputs for its gradient. All these lists would have one
type, float32 as soon as one of them must.

    before:  empty → PushBack of gates, empty → PushBack of states
    after:   empty → PushBack of gates, empty-0-AmpTfList → PushBack of states

Lists that become 16 bit, while others of the same maker do not, get one of their own. Only in
GraphDefs: functions, as they are traced, have a maker for each list. TensorFlow's pass gives all
these lists one type (difference "shared-maker"). Both changes are dropped where nothing becomes 16
bit, and a second rewrite finds nothing to do.

*Functions share TensorLists*, as a loop and the loop of its gradient do. Each function is painted
by itself, and a list that leaves it stays in float32 there. The list may still be 16 bit where that
changes no value: if everything read from it is used in 16 bit alone (the weights and states that
the products of a recurrent layer's gradient read), it may be rounded before it is stored; if
everything written to it is 16 bit, nothing is lost. A value that goes from one list into another
counts as rounded by the other. A list stays in float32 if one of the functions keeps it so by the
user's wish, or if not all of its users are known: the caller of the root function has it, or an op
passes it on in another way than calls, branches and loops do.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from amp_tf.graph import datatypes
from amp_tf.graph.algorithms import connected, control_links, is_sorted
from amp_tf.graph.attributes import ARG_OP
from amp_tf.graph.datatypes import Indices, Mask, Node, Unit
from amp_tf.graph.edits import Edits, NewNode, Reader, Rewire
from amp_tf.graph.names import FreshNames
from amp_tf.graph.reader import RETVAL_OP
from amp_tf.graph.templates import called
from amp_tf.graph.view import GraphView
from amp_tf.oplists import table
from amp_tf.painting.outcome import Painting
from amp_tf.painting.tensor_lists import handles_lists, list_units
from amp_tf.rewriting.form import Form

LIST_SUFFIX = "AmpTfList"  #: ends the names of new makers of lists
_PASSING = frozenset({*table.UNCHANGED, *table.IDENTITIES, ARG_OP, RETVAL_OP})
_NO_LIST = -1


def share_reads(form: Form) -> Form:
    """Has what reads of one variable give read from the first of them.

    Only of reads for products and biases: elsewhere there is no cast to share.
    """
    view, edges = form.view, form.view.edges
    computing, given = map(
        view.mask_with, (form.job.products | table.BIASES, table.VARIABLE_HANDLES | {ARG_OP})
    )
    is_used = np.zeros(view.node_count, np.bool_)
    is_used[edges.src_node[computing[edges.dst_node]]] = True
    reads = edges.at(
        (is_used & view.mask_with(table.READ_OPS))[edges.dst_node] & given[edges.src_node]
    )
    alike: dict[tuple[Node, int, str], list[Node]] = {}
    for source, port, node in reads.rows("src_node", "src_port", "dst_node"):
        alike.setdefault((source, port, view.devices[node]), []).append(node)
    # Those that wait for something are left aside.
    groups = (
        [node for node in nodes if len(view.protos[node].input) == 1]
        for nodes in alike.values()
        if nodes[1:]
    )
    rewires = (
        Rewire(*reader, first, 0)
        for first, *others in filter(None, groups)
        for node in others
        for reader in view.readers(node)
    )
    return form.then(Edits(rewires=tuple(rewires)))


def part_lists(form: Form) -> Form:
    """Parts the TensorLists that become 16 bit by themselves from those that do not."""
    view = form.view
    shared = np.bincount(view.edges.src_node, minlength=view.node_count) > 1
    makers = np.flatnonzero(shared & view.mask_with(table.TENSOR_LIST_MAKERS)).tolist()
    if not makers:
        return form
    is_wide, kept = np.asarray(view.dtypes) == datatypes.FLOAT, form.obstacles.rule_of
    is_wide[form.painting.converted] = False
    makers = [node for node in makers if node not in kept and is_wide[view.units(node)].any()]
    readers = list(
        view.edges.at(np.isin(view.edges.src_node, makers)).rows("dst_node", "dst_position")
    )

    narrow = {*_with_own_makers(form, readers).painting.converted_nodes()} if readers else {}
    return _with_own_makers(
        form, [reader for maker, reader in enumerate(readers, view.node_count) if maker in narrow]
    )


def _with_own_makers(form: Form, readers: Sequence[Reader]) -> Form:
    view, waits = form.view, control_links(form.view).tolist()
    name = FreshNames(view.names, LIST_SUFFIX)
    new: list[NewNode] = []
    for reader, position in readers:
        maker, _ = view.inputs(reader)[position]
        after = tuple(source for source, node in waits if node == maker)
        new.append(view.copied(maker, name.make(view.names[maker]), view.inputs(maker), after))
    rewires = (Rewire(*reader, maker, 0) for maker, reader in enumerate(readers, view.node_count))
    return form.then(Edits(rewires=tuple(rewires), new=tuple(new)))


def find_narrow_units(paintings: Mapping[str, Painting], root: str) -> dict[str, list[Unit]]:
    """The units that are the element types of lists which may hold 16 bit, by function; others call
    the root, too.
    """
    views = [painting.view for painting in paintings.values()]
    starts = itertools.accumulate((view.unit_count for view in views), initial=0)
    bodies = dict(zip(paintings, map(_Body, views, starts), strict=True))
    list_of, is_shown = _find_lists(bodies, root)
    is_f16 = np.concatenate([painting.is_f16() for painting in paintings.values()])
    may_be_f16 = np.concatenate([painting.may_be_f16() for painting in paintings.values()])
    candidates = ~is_shown
    candidates[list_of[(list_of != _NO_LIST) & ~may_be_f16]] = False
    sides = ("src_unit", "dst_unit")
    columns = (
        [getattr(body.view.edges, side) + body.start for body in bodies.values()] for side in sides
    )
    sources, readers = map(np.concatenate, columns)
    came_from, goes_to = list_of[sources], list_of[readers]
    written = (goes_to != _NO_LIST) & ~is_f16[sources]
    read = (came_from != _NO_LIST) & ~is_f16[readers]
    exact = _largest(candidates, goes_to[written], came_from[written])
    narrow = exact | _largest(candidates, came_from[read], goes_to[read], exact)
    is_narrow = np.append(narrow, False)[list_of]  # the last is for units of no list
    return {
        name: np.flatnonzero(is_narrow[body.start : body.start + body.view.unit_count]).tolist()
        for name, body in bodies.items()
    }


def _largest(candidates: Mask, lists: Indices, needed: Indices, given: Mask | None = None) -> Mask:
    """The largest set of candidates in which each one (``lists``) needs only lists of the set, or
    given ones.
    """
    found: Mask = candidates.copy()
    while True:
        there = np.append(found if given is None else found | given, False)
        fallen = lists[found[lists] & ~there[needed]]
        if not len(fallen):
            return found
        found[fallen] = False


class _Body(NamedTuple):
    """A function: its view, and the number of its first unit among those of all functions."""

    view: GraphView
    start: int

    def ends(self, op: str) -> list[int]:
        """Its arguments or results, in order: the numbers of their units among those of all
        functions.
        """
        return [self.start + self.view.base[node] for node in self.view.nodes_with((op,))]

    def ports(self, node: Node) -> Iterator[list[int]]:
        """The inputs of a node, and its outputs, likewise."""
        first, signature = self.start + self.view.base[node], self.view.signatures[node]
        for slots in (signature.inputs, signature.outputs):
            yield [first + slot for slot in slots]


def _find_lists(bodies: Mapping[str, _Body], root: str) -> tuple[Indices, Mask]:
    """For each unit the list whose elements' type it is, and for each list whether others may use
    it.
    """
    count = sum(body.view.unit_count for body in bodies.values())
    handles: list[int] = []
    links: list[Sequence[int]] = []
    known_to_others = [
        root,
        *_that_reach_recursion(bodies),
    ]  # of which a recursive call takes the original
    shown = [
        end
        for name in known_to_others
        for op in (ARG_OP, RETVAL_OP)
        for end in bodies[name].ends(op)
    ]
    elements: list[tuple[int, int]] = []
    for view, start in bodies.values():
        is_handle = np.asarray(view.dtypes) == datatypes.VARIANT
        handles += (np.flatnonzero(is_handle) + start).tolist()
        edges = view.edges.at(is_handle[view.edges.src_unit])
        links += (
            (source + start, reader + start)
            for source, reader in edges.rows("src_unit", "dst_unit")
        )
        for node in range(view.node_count):
            units = [unit for unit in view.units(node) if is_handle[unit]]
            names = called(view.protos[node], bodies) if view.protos[node] is not None else []
            callees = [bodies[name] for name in names if name in bodies]
            if handles_lists(view.signatures[node]):
                shown += (
                    unit + start for unit in units if not view.slot(node, unit).is_fixed
                )  # in another list
                element, handle = list_units(view, node)
                if element is not None and handle is not None:
                    elements.append((element + start, handle + start))
            elif (view.ops[node] in table.HANDING_OVER or view.ops[node] in bodies) and len(
                callees
            ) == len(names):
                given, taken = _Body(view, start).ports(node)
                for callee in callees:
                    links += zip(
                        given[table.HANDING_OVER.get(view.ops[node], 0) :],
                        callee.ends(ARG_OP),
                        strict=False,
                    )
                    links += zip(taken, callee.ends(RETVAL_OP), strict=False)
            elif view.ops[node] not in _PASSING:
                shown += (unit + start for unit in units)
                shown += (
                    end
                    for callee in callees
                    for op in (ARG_OP, RETVAL_OP)
                    for end in callee.ends(op)
                )
    groups = connected(handles, links)
    number_of = {unit: number for number, group in enumerate(groups) for unit in group}
    list_of = np.full(count, _NO_LIST, np.int32)
    for element, handle in elements:
        list_of[element] = number_of[handle]
    is_shown = np.zeros(len(groups), np.bool_)
    is_shown[[number_of[unit] for unit in shown if unit in number_of]] = True
    return list_of, is_shown


def _that_reach_recursion(bodies: Mapping[str, _Body]) -> set[str]:
    """The functions that call themselves, by way of others too, and those that call one of them."""
    number_of = {name: number for number, name in enumerate(bodies)}
    calls = [
        (number_of[callee], number_of[name])
        for name, body in bodies.items()
        for proto in body.view.protos
        if proto is not None
        for callee in called(proto, bodies)
        if callee in bodies
    ]
    callees, callers = np.array(calls, np.int32).reshape(-1, 2).T
    is_free = is_sorted(np.ones(len(bodies), np.bool_), callees, callers)
    return {name for name, is_one in zip(bodies, is_free, strict=True) if not is_one}
