"""Shortens live ranges where memory counts: nodes and casts wait until their readers need them.

TensorFlow starts a node as soon as it can. *Nodes wait.* Backward nodes that need only forward
values run in the forward pass, and their results are held until they are read. A Gelu has an
exponential and two multiplications of this kind, each as large as its result, although one tensor,
which is held as well, gives all of them. Here such nodes wait for the other input of their first
reader, the gradient.

    before:  x → Exp → Mul(grad, …)
    after:   x → Exp → Mul(grad, …), Exp waits for grad

Connected nodes wait together or not at all, whichever holds less. A value that is read early and
late and is much larger than its inputs, such as the factors of a layer normalization, is computed
again for its late readers. Waiting changes no bit; a copy gets a type of its own. Source of the
idea: the choice of what is held from forward to backward in AOTAutograd's min-cut partitioner
(PyTorch).

*Casts wait.* One cast serves all readers, so the 16-bit copy of each weight is held until the
backward pass has read it. Here a cast waits for the other input of its first reader, and readers
that come much later have a cast of their own:

    before:  read → Cast → MatMul, MatMul_grad
    after:   read → Cast → MatMul; read → Cast_1 → MatMul_grad
             each Cast waits for the other input of its MatMul

This is done for casts to float32, because their sources are smaller. It is also done for sources
that are held in any case: weights, and tensors that another node reads as late without a cast.
Values stay the same to the last bit; the price is one more cast.

This makes no cycle: a node that others wait for does not wait itself, and by the times of
:mod:`amp_tf.graph.sizes` it comes before the readers of those that wait. Whoever runs a part of the
graph needs no more inputs than before (:meth:`Form.may_wait`). Nodes in a loop or behind a branch
are left alone, because they may never run. So are ops with a state, readers of TF1's reference
variables, which change in place, and fetched nodes. Functions are left alone, because XLA schedules
them. All is dropped where nothing becomes 16 bit.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from amp_tf.graph.algorithms import connected, numbers_of
from amp_tf.graph.datatypes import SIZES, Indices, Node
from amp_tf.graph.edits import Edits, NewNode, Rewire, Wait
from amp_tf.graph.names import CAST_SUFFIX, FreshNames
from amp_tf.graph.sizes import LONG, Lifetimes, element_count, shape_of
from amp_tf.graph.view import GraphView
from amp_tf.oplists.table import BROADCASTING, WITHOUT_WAITING
from amp_tf.rewriting.form import Form, NewNodes

_LARGER = 4  # a result so many times larger than all inputs is computed again
_SUFFIX = "AmpTfAgain"
_SMALL = 16_384  # elements; a smaller tensor is cast once, and at once


def delay(form: Form) -> Form:
    """Makes nodes wait for the other inputs of their readers."""
    view = form.view
    lifetimes = Lifetimes.of(view, form.shapes)
    times = _latest_times(form, lifetimes)
    late = [node for node, time in enumerate(times) if time > lifetimes.times[node]]
    links: list[tuple[Node, Node]] = []
    for node in late:
        for reader in lifetimes.order.fanouts(node):
            links.append((node, reader))
    groups = connected(late, links)
    held_now, held_late = _bytes_held(view, lifetimes, groups, times)
    moved: list[Node] = []
    for number, group in enumerate(groups):
        if held_now[number] and held_now[number] >= held_late[number]:
            moved += group
    return _with_copies(form.then(Edits(waits=tuple(_waits(form, lifetimes, moved)))))


def _latest_times(form: Form, lifetimes: Lifetimes) -> list[int]:
    """Returns for each node the latest time that its readers allow.

    If that is not much later than the node's own time, it is the own time.
    """
    view = form.view
    has_effects = (k.is_stateful or k.has_refs or k.holds_functions for k in view.of_kind)
    bound = view.of_kinds(has_effects, np.bool_)
    bound |= view.mask_with(WITHOUT_WAITING) | lifetimes.is_bound
    for node, name in enumerate(view.names):
        if name in form.job.preserve:
            bound[node] = True
    times: list[int] = lifetimes.times.tolist()
    for node in np.argsort(-lifetimes.times, kind="stable").tolist():
        readers = lifetimes.order.fanouts(node)
        if not readers or bound[node]:
            continue
        latest = min(times[reader] for reader in readers) - 1
        if latest - times[node] >= LONG:
            times[node] = latest
    return times


def _bytes_held(
    view: GraphView, lifetimes: Lifetimes, groups: Sequence[Sequence[Node]], times: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Returns for each group of nodes the bytes held if it runs early, and if it runs late.

    Early, the group's results are held; late, the inputs that no other node needs so late.
    """
    group_of = numbers_of(groups)
    now = [0] * len(groups)
    late = [0] * len(groups)
    for tensor, count in lifetimes.elements.items():
        size = count * SIZES.get(view.dtypes[lifetimes.units[tensor]], 0)
        read_at: dict[int | None, list[int]] = {}
        for _, reader, _ in lifetimes.reads[tensor]:
            read_at.setdefault(group_of.get(reader), []).append(times[reader])
        own = group_of.get(tensor[0])
        if own is not None:
            if read_at.keys() != {own}:
                now[own] += size
            continue
        for reading, own_times in read_at.items():
            others = [max(at) for other, at in read_at.items() if other != reading]
            if reading is not None and max(others, default=0) < min(own_times) - LONG:
                late[reading] += size
    return now, late


def _waits(form: Form, lifetimes: Lifetimes, moved: Sequence[Node]) -> Iterator[Wait]:
    """Yields the waits of nodes that are to run late.

    A node needs no wait of its own if it reads another one with the same wait.
    """
    after: dict[Node, Node | None] = dict.fromkeys(moved)
    # The time of the first reader that stays early, directly or through others that run late.
    needed: list[int] = lifetimes.times.tolist()
    for node in sorted(moved, key=needed.__getitem__, reverse=True):
        first = min(lifetimes.order.fanouts(node), key=needed.__getitem__)
        needed[node] = needed[first]
        if first in after:
            after[node] = after[first]
        else:
            after[node] = lifetimes.last_input(first, after)
    for node, awaited in after.items():
        waits_of_inputs = [after.get(source) for source in lifetimes.order.fanins(node)]
        if awaited is None or awaited in waits_of_inputs:
            continue
        if form.may_wait([node], awaited):
            yield Wait(node, awaited)


def _with_copies(form: Form) -> Form:
    """Computes results that are much larger than their inputs again, for much later readers."""
    view = form.view
    lifetimes = Lifetimes.of(view, form.shapes)
    times = lifetimes.times
    kept = form.obstacles.code_of  # such as a node that is fed
    new = NewNodes(view, _SUFFIX)
    rewires: list[Rewire] = []
    for node in view.nodes_with(BROADCASTING):
        if node in kept or lifetimes.is_bound[node]:
            continue
        read = 0
        for source in view.inputs(node):
            owner = lifetimes.owners.get(source, source)
            read += lifetimes.elements.get(owner, 0)
        if read * _LARGER > lifetimes.elements.get((node, 0), 0):
            continue
        readers = sorted(view.readers(node), key=lambda reader: int(times[reader[0]]))
        gaps = _gaps([int(times[reader]) for reader, _ in readers])
        if not gaps:
            continue
        late = gaps[0]
        last_early, _ = readers[late - 1]
        first_late, _ = readers[late]
        awaited = lifetimes.last_input(first_late, (node,))
        if awaited is None or times[awaited] < times[last_early]:
            continue
        if not form.may_wait([reader for reader, _ in readers[late:]], awaited):
            continue
        again = new.copy(node, view.inputs(node), [awaited])
        rewires += [Rewire(*reader, again, 0) for reader in readers[late:]]
    return form.adding(new, rewires=tuple(rewires))


def _gaps(times: Sequence[int]) -> list[int]:
    """Returns the places of the times that are much later than those before them."""
    pairs = enumerate(itertools.pairwise(times), 1)
    return [place for place, (before, time) in pairs if time - before >= LONG]


def make_late(form: Form, casts: Edits) -> Edits:
    """Returns the edits for a painting, with casts that wait."""
    view = form.view
    lifetimes = Lifetimes.of(view, form.shapes)
    dtypes = form.painting.dtypes_after()
    new = list(casts.new)
    fresh = FreshNames([*view.names, *(cast.name for cast in new)], CAST_SUFFIX)
    readers: dict[Node, list[Rewire]] = {}
    for rewire in sorted(casts.rewires, key=lambda rewire: int(lifetimes.times[rewire.node])):
        readers.setdefault(rewire.src_node, []).append(rewire)
    cast_again = {cast.inputs[0][0] for cast in casts.new}
    # The rewires of readers that get another cast, by the planned ones.
    moved = {}
    for number, cast in enumerate(casts.new):
        node, port = cast.inputs[0]
        own_number = view.node_count + number
        if node >= view.node_count or own_number in cast_again:  # a part of a chain
            continue
        count = element_count(shape_of(form.shapes, view.names[node], port)) or 0
        if count < _SMALL or lifetimes.is_bound[node]:
            continue
        # Each late group gets a copy of the cast; the last group gets the cast itself.
        left = readers.get(own_number, [])
        for after, late in _find_late(cast, left, lifetimes, dtypes):
            if not form.may_wait([rewire.node for rewire in late], after):
                continue
            left = [rewire for rewire in left if rewire not in late]
            if not left:  # the last readers keep the cast that is there
                new[number] = cast._replace(after=(*cast.after, after))
                continue
            for rewire in late:
                moved[rewire] = rewire._replace(src_node=view.node_count + len(new))
            name = fresh.make(cast.name.partition(f"-0-{CAST_SUFFIX}")[0])
            new.append(cast._replace(name=name, after=(*cast.after, after)))
    rewires = tuple(moved.get(rewire, rewire) for rewire in casts.rewires)
    return dataclasses.replace(casts, new=tuple(new), rewires=rewires)


def _find_late(
    cast: NewNode, readers: Sequence[Rewire], lifetimes: Lifetimes, dtypes: Indices
) -> Iterator[tuple[Node, Sequence[Rewire]]]:
    """Yields groups of readers with a cast of their own, and the node that the cast waits for.

    A gap in the readers' times begins a new group.
    """
    times = lifetimes.times
    source = cast.inputs[0]
    held_until = _held_until(cast, lifetimes, dtypes)
    gaps = _gaps([int(times[rewire.node]) for rewire in readers])
    for start, end in itertools.pairwise([0, *gaps, len(readers)]):
        first = readers[start].node
        after = lifetimes.last_input(first)
        if after is None or times[after] - times[source[0]] < LONG:
            continue
        if held_until >= times[first] - LONG:
            yield after, readers[start:end]


def _held_until(cast: NewNode, lifetimes: Lifetimes, dtypes: Indices) -> float:
    """Returns the time until which a cast can wait without holding its source longer.

    That is infinite if the source is no larger than the cast, or has no memory of its own; else the
    time of its last reader in its own type.
    """
    source = cast.inputs[0]
    owner = lifetimes.owners.get(source, source)
    size = SIZES[int(dtypes[lifetimes.units[source]])]
    if size <= SIZES[cast.attributes.attr["DstT"].type] or owner not in lifetimes.elements:
        return math.inf
    last = 0
    for unit, reader, end in lifetimes.reads[owner]:
        if dtypes[unit] == dtypes[end]:
            last = max(last, int(lifetimes.times[reader]))
    return last
