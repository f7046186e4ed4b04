"""Shared values: variables that are read many times, and TensorLists that share a maker.

*A variable is read once* if it is read many times with no write in between, as in a shared layer or
an unrolled recurrent cell. So it is cast once. TensorFlow's pass casts each read (difference
"shared-reads").

    before:  handle → read, read_1, read_2, each → Cast → MatMul
    after:   handle → read → Cast → MatMul, MatMul_1, MatMul_2

Only reads without control inputs are merged, of a handle that the graph is given directly. All of
them give the same value: a read that must see a write waits for it, and in branches and loops the
handle comes through another node. The other reads stay, for nodes that wait for them. Functions for
XLA are left alone, because XLA merges equal casts.

*Each TensorList gets a maker of its own.* A list is a value: each op that adds to one gives a new
one. TensorFlow's optimizers merge the ops that make equal empty lists, such as those in which a
recurrent layer keeps gates, states and inputs for its gradient. All these lists would have one
type, float32 as soon as one of them must.

    before:  empty → PushBack of gates, empty → PushBack of states
    after:   empty → PushBack of gates, empty-0-AmpTfList → PushBack of states

Lists that become 16 bit while others of the same maker do not get one of their own. This is done in
GraphDefs alone: traced functions have a maker for each list. TensorFlow's pass gives all these
lists one type (difference "shared-maker"). Both changes are dropped where nothing becomes 16 bit,
and a second rewrite finds nothing to do.

*Functions share TensorLists*, as a loop and the loop of its gradient do. In the painting, a list
that leaves a function stays in float32. The list may still be 16 bit where that changes no value:
if everything read from it is used in 16 bit alone, but for its shape (the weights and states that
the products of a recurrent layer's gradient read), it may be rounded before it is stored; if
everything written to it is 16 bit, nothing is lost. It may be 16 bit, too, where that rounds a
value once for all who read it: what reads it could be 16 bit but is near no product, and no rule of
accuracy keeps it in float32. So the cell state of an LSTM runs in float32 and is stored in 16 bit
for its gradient; the forget gate, by which the gradient is multiplied in each step, is not. A value
that goes from one list into another counts as rounded by the other. A list stays in float32 if one
of the functions keeps it so by the user's wish, or if not all of its users are known: the caller of
the root function has it, or an op passes it on in another way than calls, branches and loops do.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from amp_tf.graph import datatypes
from amp_tf.graph.algorithms import connected, numbers_of
from amp_tf.graph.attributes import ARG_OP
from amp_tf.graph.datatypes import Indices, Mask, Node, Unit, indices
from amp_tf.graph.edits import Edits, Reader, Rewire, Tensor
from amp_tf.graph.reader import RETVAL_OP
from amp_tf.graph.templates import called
from amp_tf.oplists import table
from amp_tf.painting.outcome import Painting
from amp_tf.painting.programs import Body
from amp_tf.painting.tensor_lists import handles_lists, list_units
from amp_tf.rewriting.form import Form, NewNodes

LIST_SUFFIX = "AmpTfList"  #: ends the names of new makers of lists
_PASSING = frozenset({*table.UNCHANGED, *table.IDENTITIES, ARG_OP, RETVAL_OP})
_NO_LIST = -1


def share_reads(form: Form) -> Form:
    """Makes the readers of all reads of one variable read the first of them.

    Only reads for products and biases count, because others have no cast to share.
    """
    view = form.view
    handles = table.VARIABLE_HANDLES | {ARG_OP}
    alike: dict[tuple[Tensor, str], list[Node]] = {}
    for node in view.nodes_with(table.READ_OPS):
        handle = view.inputs(node)[0]
        if view.ops[handle[0]] in handles:
            alike.setdefault((handle, view.devices[node]), []).append(node)
    rewires: list[Rewire] = []
    for nodes in alike.values():
        if len(nodes) == 1:  # most
            continue
        shared = []
        for node in nodes:
            if not _may_be_fed(form, node) and _is_cast(form, node) and not view.awaited(node):
                shared.append(node)
        for node in shared[1:]:
            rewires += [Rewire(*reader, shared[0], 0) for reader in view.readers(node)]
    return form.then(Edits(rewires=tuple(rewires)))


def _may_be_fed(form: Form, read: Node) -> bool:
    """Tells whether a value may be fed in place of a read, which then keeps its readers.

    Reads of an argument are a function's. They are not fed, although TensorFlow preserves them all,
    because they are stateful.
    """
    handle, _ = form.view.inputs(read)[0]
    return read in form.obstacles.code_of and form.view.ops[handle] != ARG_OP


def _is_cast(form: Form, node: Node) -> bool:
    """Tells whether a product or a bias reads a node."""
    readers = {form.view.ops[reader] for reader, _ in form.view.readers(node)}
    return not readers.isdisjoint(form.job.products | table.BIASES)


def part_lists(form: Form) -> Form:
    """Separates TensorLists that can become 16 bit from those that cannot."""
    view = form.view
    shared = np.bincount(view.edges.src_node, minlength=view.node_count) > 1
    makers = indices(shared & view.mask_with(table.TENSOR_LIST_MAKERS))
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
    # At first every list gets a maker of its own; only those that become 16 bit keep it.
    narrow = {*_with_own_makers(form, readers).painting.converted_nodes()}
    parted = []
    for maker, reader in enumerate(readers, view.node_count):
        if maker in narrow:
            parted.append(reader)
    return _with_own_makers(form, parted)


def _with_own_makers(form: Form, readers: Sequence[Reader]) -> Form:
    """Copies the maker of a list for each of some readers."""
    view = form.view
    new = NewNodes(view, LIST_SUFFIX)
    rewires = []
    for reader, position in readers:
        maker, _ = view.inputs(reader)[position]
        own = new.copy(maker, view.inputs(maker), view.awaited(maker))
        rewires.append(Rewire(reader, position, own, 0))
    return form.adding(new, rewires=tuple(rewires))


def find_narrow_units(paintings: Mapping[str, Painting], root: str) -> dict[str, list[Unit]]:
    """Finds the lists that may hold 16 bit.

    Args:
        paintings: the painting of each function of a program, by name.
        root: the function that has callers elsewhere.

    Returns:
        The units that are the types of their elements, by function.
    """
    bodies = Body.of_all([painting.view for painting in paintings.values()])

    def of_all(find: Callable[[Painting], Mask]) -> Mask:
        """Returns a mask over the units of all functions."""
        return np.concatenate(list(map(find, paintings.values())))

    source = np.concatenate([body.view.edges.src_unit + body.start for body in bodies.values()])
    reader = np.concatenate([body.view.edges.dst_unit + body.start for body in bodies.values()])
    list_of, is_shown = _find_lists(bodies, root)
    candidates = ~is_shown
    candidates[list_of[(list_of != _NO_LIST) & ~of_all(Painting.may_be_f16)]] = False
    came_from = list_of[source]
    goes_to = list_of[reader]
    # Float32 values are written to a list, or its values are read in float32.
    is_wide = ~of_all(Painting.is_f16)
    asks_shape = of_all(lambda painting: painting.view.units_with(table.SHAPES))
    written = (goes_to != _NO_LIST) & is_wide[source]
    read = (came_from != _NO_LIST) & is_wide[reader] & ~asks_shape[reader]
    exact = _largest(candidates, goes_to[written], came_from[written])
    narrow = exact | _largest(candidates, came_from[read], goes_to[read], exact)
    # Values that 16 bit can hold are read by what may round them.
    kept = written & ((came_from != _NO_LIST) | ~of_all(Painting.may_be_stored)[source])
    needed = read & ~of_all(Painting.may_round_inputs)[reader]
    lists = np.concatenate([goes_to[kept], came_from[needed]])
    ends = np.concatenate([came_from[kept], goes_to[needed]])
    narrow |= _largest(candidates, lists, ends, narrow)
    is_narrow = np.append(narrow, False)[list_of]  # the last is for units of no list
    found = {}
    for name, body in bodies.items():
        end = body.start + body.view.unit_count
        found[name] = indices(is_narrow[body.start : end])
    return found


def _largest(
    candidates: Mask, lists: Indices, needed: Indices, allowed: Mask | None = None
) -> Mask:
    """Returns the largest set of candidates that need only lists of the set, or allowed ones.

    Args:
        candidates: the lists that may be in it.
        lists, needed: in parallel arrays, a list and another one that it needs.
        allowed: lists that may be needed without being in the set.
    """
    found: Mask = candidates.copy()
    while True:
        there = np.append(found if allowed is None else found | allowed, False)
        fallen = lists[found[lists] & ~there[needed]]
        if not len(fallen):
            return found
        found[fallen] = False


class _ListSearch:
    """Follows the handles of TensorLists through the functions of a program.

    Attributes:
        handles: the units that are handles.
        links: pairs of handles of the same list.
        shown: units of lists that unknown users may have.
        elements: the units of elements' types, each with the handle of its list.
    """

    def __init__(self, bodies: Mapping[str, Body], root: str) -> None:
        self._bodies = bodies
        self.handles: list[int] = []
        self.links: list[tuple[int, int]] = []
        self.shown: list[int] = []
        self.elements: list[tuple[int, int]] = []
        # A recursive call runs the original of a function, which has other callers, too.
        for name in (root, *_find_recursive(bodies)):
            self.shown += bodies[name].all_ends()
        for body in bodies.values():
            view = body.view
            is_handle = np.asarray(view.dtypes) == datatypes.VARIANT
            self.handles += (np.flatnonzero(is_handle) + body.start).tolist()
            edges = view.edges.at(is_handle[view.edges.src_unit])
            for source, reader in edges.rows("src_unit", "dst_unit"):
                self.links.append((body.start + source, body.start + reader))
            for node, signature in enumerate(view.signatures):
                if handles_lists(signature):
                    self._follow_list(body, node)
                else:
                    self._follow_calls(body, node)

    def _follow_list(self, body: Body, node: Node) -> None:
        """Follows an op that makes, reads or changes a list."""
        for unit in _handles(body, node):
            # A handle whose type is an attribute of the node is an element of another list.
            if not body.view.slot(node, unit - body.start).is_fixed:
                self.shown.append(unit)
        element, handle = list_units(body.view, node)
        if element is not None and handle is not None:
            self.elements.append((body.start + element, body.start + handle))

    def _follow_calls(self, body: Body, node: Node) -> None:
        """Follows the handles that a node passes to functions, or to unknown users."""
        if body.hands_over(node, self._bodies):
            self.links += body.handed(node, self._bodies)
        elif body.view.ops[node] not in _PASSING:
            self.shown += _handles(body, node)
            for name in called(body.view.protos[node], self._bodies):
                if name in self._bodies:
                    self.shown += self._bodies[name].all_ends()


def _handles(body: Body, node: Node) -> list[int]:
    """Returns the units of a node that are handles, with the offset."""
    units = body.view.units(node)
    return [body.start + unit for unit in units if body.view.dtypes[unit] == datatypes.VARIANT]


def _find_lists(bodies: Mapping[str, Body], root: str) -> tuple[Indices, Mask]:
    """Finds the lists of a program.

    Returns:
        For each unit that is the type of a list's elements, this list, and ``_NO_LIST`` for other
        units; for each list, whether unknown users may have it.
    """
    search = _ListSearch(bodies, root)
    groups = connected(search.handles, search.links)
    number_of = numbers_of(groups)
    count = sum(body.view.unit_count for body in bodies.values())
    list_of = np.full(count, _NO_LIST, np.int32)
    for element, handle in search.elements:
        list_of[element] = number_of[handle]
    is_shown = np.zeros(len(groups), np.bool_)
    for unit in search.shown:
        if unit in number_of:
            is_shown[number_of[unit]] = True
    return list_of, is_shown


def _find_recursive(bodies: Mapping[str, Body]) -> list[str]:
    """Finds the functions that call themselves, or call one that does.

    Calls through other functions count, too.
    """
    callees = {}
    for name, body in bodies.items():
        names = itertools.chain.from_iterable(called(proto, bodies) for proto in body.view.protos)
        callees[name] = {callee for callee in names if callee in bodies}
    # A function is left out once all that it calls are.
    left = list(bodies)
    count = 0
    while len(left) != count:
        count = len(left)
        left = [name for name in left if not callees[name].isdisjoint(left)]
    return left
