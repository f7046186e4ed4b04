"""Shared values: variables that are read many times, and TensorLists that share a maker.

*A variable is read once* if it is read many times with no write in between, as in a shared layer or
an unrolled recurrent cell. So it is cast once. TensorFlow's pass casts each read (difference
"shared-reads").

    before:  handle → read, read_1, read_2, each → Cast → MatMul
    after:   handle → read → Cast → MatMul, MatMul_1, MatMul_2

A read that waits for nothing, of a handle that the graph is given, comes before every write that it
must not see: a read behind a write waits for it, and in branches and loops the handle comes through
another node. So all such reads give the same value. The other reads stay, for nodes that wait for
them. Functions for XLA are left alone: XLA merges equal casts.

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
from collections.abc import Mapping, Sequence
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
    """Makes the readers of all reads of one variable read the first of them.

    Only reads for products and biases count: elsewhere there is no cast to share.
    """
    view = form.view
    edges = view.edges
    computes = view.mask_with(form.job.products | table.BIASES)
    is_given = view.mask_with(table.VARIABLE_HANDLES | {ARG_OP})
    is_used = np.zeros(view.node_count, np.bool_)
    is_used[edges.src_node[computes[edges.dst_node]]] = True
    is_read = is_used & view.mask_with(table.READ_OPS)
    reads = edges.at(is_read[edges.dst_node] & is_given[edges.src_node])
    alike: dict[tuple[Node, int, str], list[Node]] = {}
    for source, port, node in reads.rows("src_node", "src_port", "dst_node"):
        alike.setdefault((source, port, view.devices[node]), []).append(node)
    rewires: list[Rewire] = []
    for nodes in alike.values():
        if len(nodes) == 1:  # most; NodeDefs are slow to look at
            continue
        at_once = [node for node in nodes if len(view.protos[node].input) == 1]
        for node in at_once[1:]:
            rewires += [Rewire(*reader, at_once[0], 0) for reader in view.readers(node)]
    return form.then(Edits(rewires=tuple(rewires)))


def part_lists(form: Form) -> Form:
    """Parts the TensorLists that become 16 bit by themselves from those that do not."""
    view = form.view
    shared = np.bincount(view.edges.src_node, minlength=view.node_count) > 1
    makers = np.flatnonzero(shared & view.mask_with(table.TENSOR_LIST_MAKERS)).tolist()
    if not makers:
        return form
    is_wide = np.asarray(view.dtypes) == datatypes.FLOAT
    is_wide[form.painting.converted] = False
    kept = form.obstacles.code_of
    makers = [node for node in makers if node not in kept and is_wide[view.units(node)].any()]
    made = view.edges.at(np.isin(view.edges.src_node, makers))
    readers = list(made.rows("dst_node", "dst_position"))
    if not readers:
        return form
    # Every list gets a maker of its own; those that become 16 bit keep it.
    narrow = {*_with_own_makers(form, readers).painting.converted_nodes()}
    makers_of_own = enumerate(readers, view.node_count)
    return _with_own_makers(form, [reader for maker, reader in makers_of_own if maker in narrow])


def _with_own_makers(form: Form, readers: Sequence[Reader]) -> Form:
    """Copies the maker of a list for each of some readers."""
    view = form.view
    waits = control_links(view).tolist()
    fresh = FreshNames(view.names, LIST_SUFFIX)
    new: list[NewNode] = []
    rewires = []
    for reader, position in readers:
        maker, _ = view.inputs(reader)[position]
        after = tuple(source for source, node in waits if node == maker)
        rewires.append(Rewire(reader, position, view.node_count + len(new), 0))
        new.append(view.copied(maker, fresh.make(view.names[maker]), view.inputs(maker), after))
    return form.then(Edits(rewires=tuple(rewires), new=tuple(new)))


def find_narrow_units(paintings: Mapping[str, Painting], root: str) -> dict[str, list[Unit]]:
    """Finds the element types of lists that may hold 16 bit.

    Args:
        paintings: the functions of a program, by name, each as it is painted by itself.
        root: the function that has callers elsewhere.

    Returns:
        The units of these types, by function.
    """
    views = [painting.view for painting in paintings.values()]
    starts = itertools.accumulate((view.unit_count for view in views), initial=0)
    bodies = dict(zip(paintings, map(_Body, views, starts), strict=True))
    list_of, is_shown = _find_lists(bodies, root)
    is_f16 = np.concatenate([painting.is_f16() for painting in paintings.values()])
    may_be_f16 = np.concatenate([painting.may_be_f16() for painting in paintings.values()])
    candidates = ~is_shown
    candidates[list_of[(list_of != _NO_LIST) & ~may_be_f16]] = False
    all_edges = [(body.view.edges, body.start) for body in bodies.values()]
    sources = np.concatenate([edges.src_unit + start for edges, start in all_edges])
    readers = np.concatenate([edges.dst_unit + start for edges, start in all_edges])
    came_from = list_of[sources]
    goes_to = list_of[readers]
    # Float32 values are written to a list, or its values are read in float32.
    written = (goes_to != _NO_LIST) & ~is_f16[sources]
    read = (came_from != _NO_LIST) & ~is_f16[readers]
    exact = _largest(candidates, goes_to[written], came_from[written])
    narrow = exact | _largest(candidates, came_from[read], goes_to[read], exact)
    is_narrow = np.append(narrow, False)[list_of]  # the last is for units of no list
    found = {}
    for name, body in bodies.items():
        end = body.start + body.view.unit_count
        found[name] = np.flatnonzero(is_narrow[body.start : end]).tolist()
    return found


def _largest(candidates: Mask, lists: Indices, needed: Indices, given: Mask | None = None) -> Mask:
    """Returns the largest set of candidates that need only lists of the set, or given ones.

    Args:
        candidates: the lists that may be in it.
        lists, needed: in parallel arrays, a list and another one that it needs.
        given: lists that may be needed without being in the set.
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
        """Returns its arguments or results, in order, as units among those of all functions."""
        return [self.start + self.view.base[node] for node in self.view.nodes_with((op,))]

    def all_ends(self) -> list[int]:
        """Returns its arguments and results, likewise."""
        return [*self.ends(ARG_OP), *self.ends(RETVAL_OP)]

    def inputs(self, node: Node) -> list[int]:
        """Returns the inputs of a node, likewise."""
        first = self.start + self.view.base[node]
        return [first + slot for slot in self.view.signatures[node].inputs]

    def outputs(self, node: Node) -> list[int]:
        """Returns the outputs of a node, likewise."""
        first = self.start + self.view.base[node]
        return [first + slot for slot in self.view.signatures[node].outputs]


class _ListSearch:
    """Follows the handles of TensorLists through the functions of a program.

    Attributes:
        handles: the units that are handles.
        links: pairs of handles of the same list.
        shown: units of lists that unknown users may have.
        elements: the units of elements' types, each with the handle of its list.
    """

    def __init__(self, bodies: Mapping[str, _Body], root: str) -> None:
        self._bodies = bodies
        self.handles: list[int] = []
        self.links: list[tuple[int, int]] = []
        self.shown: list[int] = []
        self.elements: list[tuple[int, int]] = []
        # A recursive call takes the original of a function, which other callers know, too.
        for name in (root, *_find_recursive(bodies)):
            self.shown += bodies[name].all_ends()
        for body in bodies.values():
            self._follow(body)

    def _follow(self, body: _Body) -> None:
        view, start = body
        is_handle = np.asarray(view.dtypes) == datatypes.VARIANT
        self.handles += (np.flatnonzero(is_handle) + start).tolist()
        edges = view.edges.at(is_handle[view.edges.src_unit])
        for source, reader in edges.rows("src_unit", "dst_unit"):
            self.links.append((source + start, reader + start))
        for node in range(view.node_count):
            op = view.ops[node]
            units = [unit for unit in view.units(node) if is_handle[unit]]
            proto = view.protos[node]
            names = [] if proto is None else called(proto, self._bodies)
            callees = [self._bodies[name] for name in names if name in self._bodies]
            if handles_lists(view.signatures[node]):
                # A handle of a type that the node chooses is an element of another list.
                self.shown += [unit + start for unit in units if not view.slot(node, unit).is_fixed]
                element, handle = list_units(view, node)
                if element is not None and handle is not None:
                    self.elements.append((element + start, handle + start))
            elif len(callees) == len(names) and (op in table.HANDING_OVER or op in self._bodies):
                handed = body.inputs(node)[table.HANDING_OVER.get(op, 0) :]
                for callee in callees:
                    self.links += zip(handed, callee.ends(ARG_OP), strict=False)
                    self.links += zip(body.outputs(node), callee.ends(RETVAL_OP), strict=False)
            elif op not in _PASSING:
                self.shown += [unit + start for unit in units]
                for callee in callees:
                    self.shown += callee.all_ends()


def _find_lists(bodies: Mapping[str, _Body], root: str) -> tuple[Indices, Mask]:
    """Finds the lists of a program.

    Returns:
        For each unit the list whose elements have this type, ``_NO_LIST`` for other units; for each
        list whether unknown users may have it.
    """
    search = _ListSearch(bodies, root)
    groups = connected(search.handles, search.links)
    number_of: dict[int, int] = {}
    for number, group in enumerate(groups):
        number_of.update(dict.fromkeys(group, number))
    count = sum(body.view.unit_count for body in bodies.values())
    list_of = np.full(count, _NO_LIST, np.int32)
    for element, handle in search.elements:
        list_of[element] = number_of[handle]
    is_shown = np.zeros(len(groups), np.bool_)
    is_shown[[number_of[unit] for unit in search.shown if unit in number_of]] = True
    return list_of, is_shown


def _find_recursive(bodies: Mapping[str, _Body]) -> list[str]:
    """Finds the functions that reach a recursion: they call themselves, or call one that does.

    They may call it by way of others.
    """
    number_of = {name: number for number, name in enumerate(bodies)}
    calls: list[tuple[int, int]] = []
    for name, body in bodies.items():
        for proto in body.view.protos:
            callees = [] if proto is None else called(proto, bodies)
            calls += [(number_of[each], number_of[name]) for each in callees if each in bodies]
    sources, readers = np.array(calls, np.int32).reshape(-1, 2).T
    is_free = is_sorted(np.ones(len(bodies), np.bool_), sources, readers)
    return [name for name, is_one in zip(bodies, is_free, strict=True) if not is_one]
