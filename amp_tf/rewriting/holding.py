"""Shortens live ranges where memory counts: nodes and casts wait until their readers need them.

TensorFlow starts a node as soon as it can. *Nodes wait.* Backward nodes that need only forward
values are computed in the forward pass, and their results held. A Gelu has an exponential and two
products of this kind, each as large as its result, although all of them come from one tensor that
is held as well. Here such nodes wait for the other input of their first reader, the gradient.

    before:  x → Exp → Mul(grad, …)
    after:   x → Exp → Mul(grad, …), Exp waits for grad

Connected nodes wait together or not at all, whichever holds less. A value that is read early and
late and is much larger than all that it was computed from, such as the factors of a layer
normalization, is computed again for its late readers. Waiting changes no bit; the type of a copy is
decided anew. Source of the idea: the choice of what is held from forward to backward in
AOTAutograd's min-cut partitioner (PyTorch).

*Casts wait.* One cast serves all readers, so the 16-bit copy of each weight is held until the
backward pass has read it. Here a cast waits for the other input of its first reader, and readers
that come much later have a cast of their own:

    before:  read → Cast → MatMul, MatMul_grad
    after:   read → Cast → MatMul; read → Cast_1 → MatMul_grad
             each Cast waits for the other input of its MatMul

This is done for casts to float32, because their sources are smaller, and where the source is held
in any case: a weight, or a tensor that is read in its own type as late. Values stay the same to the
last bit; the price is one more cast.

No cycle comes about: a node that is waited for gets no wait itself, and by the times of
:mod:`amp_tf.graph.sizes` it comes before the readers of those that wait. Nodes behind a branch or
in a loop are left alone, because one side of it may never run. So are ops with a state, readers of
TF1's reference variables, which change in place, fetched nodes, and functions, because XLA
schedules the programs that it compiles. All is dropped where nothing becomes 16 bit.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from amp_tf.graph.algorithms import connected
from amp_tf.graph.datatypes import SIZES, Indices, Node
from amp_tf.graph.edits import Edits, NewNode, Rewire, Wait
from amp_tf.graph.names import CAST_SUFFIX, FreshNames
from amp_tf.graph.sizes import LONG, Lifetimes, element_count, shape_of
from amp_tf.graph.view import GraphView
from amp_tf.oplists.table import BROADCASTING, WITHOUT_WAITING
from amp_tf.rewriting.form import Form

_LARGER = 4  # a result that is so many times as large as all inputs is computed again
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
        links += [(node, reader) for reader in lifetimes.order.fanouts(node)]
    groups = connected(late, links)
    moved: list[Node] = []
    for group, (now, then) in zip(groups, _bytes_held(view, lifetimes, groups, times), strict=True):
        if now and now >= then:
            moved += group
    return _with_copies(form.then(Edits(waits=tuple(_waits(lifetimes, moved)))))


def _latest_times(form: Form, lifetimes: Lifetimes) -> list[int]:
    """Returns when each node runs if it runs as late as its readers allow.

    It is the node's own time where the latest is not much later.
    """
    view = form.view
    has_effects = (k.is_stateful or k.has_refs or k.holds_functions for k in view.of_kind)
    bound = view.of_kinds(has_effects, np.bool_)
    bound |= view.mask_with(WITHOUT_WAITING) | lifetimes.is_bound
    bound[[node for node, name in enumerate(view.names) if name in form.job.preserve]] = True
    times: list[int] = lifetimes.times.tolist()
    for node in np.argsort(-lifetimes.times, kind="stable").tolist():
        readers = lifetimes.order.fanouts(node)
        if not readers or bound[node]:
            continue
        time = min(times[reader] for reader in readers) - 1
        if time - times[node] >= LONG:
            times[node] = time
    return times


def _with_copies(form: Form) -> Form:
    """Computes results that are much larger than their inputs again, for much later readers."""
    view = form.view
    lifetimes = Lifetimes.of(view, form.shapes)
    fresh = FreshNames(view.names, _SUFFIX)
    new: list[NewNode] = []
    rewires: list[Rewire] = []
    models = {}
    for node in view.nodes_with(BROADCASTING):
        owners = [lifetimes.owners.get(source, source) for source in view.inputs(node)]
        read = sum(lifetimes.elements.get(owner, 0) for owner in owners)
        if read * _LARGER > lifetimes.elements.get((node, 0), 0) or lifetimes.is_bound[node]:
            continue
        readers = sorted(view.readers(node), key=lambda reader: int(lifetimes.times[reader[0]]))
        times = [int(lifetimes.times[reader]) for reader, _ in readers]
        late = _first_gap(times)
        if late is None:
            continue
        awaited = lifetimes.last_input(readers[late][0], (node,))
        if awaited is None or lifetimes.times[awaited] < times[late - 1]:
            continue
        number = view.node_count + len(new)
        rewires += [Rewire(*reader, number, 0) for reader in readers[late:]]
        copy = fresh.make(view.names[node])
        new.append(view.copied(node, copy, view.inputs(node), (awaited,)))
        models[copy] = node
    return form.then(Edits(rewires=tuple(rewires), new=tuple(new)), models)


def _first_gap(times: Sequence[int]) -> int | None:
    """Returns the place of the first time that comes long after the one before it."""
    for place in range(1, len(times)):
        if times[place] - times[place - 1] >= LONG:
            return place
    return None


def _bytes_held(
    view: GraphView, lifetimes: Lifetimes, groups: Sequence[Sequence[Node]], times: Sequence[int]
) -> list[tuple[int, int]]:
    """Returns the bytes held for each group of nodes, as it is and if it runs late.

    As it is, the results of the group are held; if it runs late, the inputs that only it needs so
    late.
    """
    group_of = {node: number for number, group in enumerate(groups) for node in group}
    now = [0] * len(groups)
    then = [0] * len(groups)
    for tensor, count in lifetimes.elements.items():
        size = count * SIZES.get(view.dtypes[lifetimes.units[tensor]], 0)
        readers = [reader for _, reader, _ in lifetimes.reads[tensor]]
        reading = {group_of.get(reader) for reader in readers}
        own = group_of.get(tensor[0])
        if own is not None:
            if reading - {own}:
                now[own] += size
            continue
        for group in reading - {None}:
            assert group is not None
            first = min(times[reader] for reader in readers if group_of.get(reader) == group)
            others = (times[reader] for reader in readers if group_of.get(reader) != group)
            if max(others, default=0) < first - LONG:
                then[group] += size
    return list(zip(now, then, strict=True))


def _waits(lifetimes: Lifetimes, moved: Sequence[Node]) -> Iterator[Wait]:
    """Yields what nodes that run late wait for.

    A node needs no wait of its own if it reads another one with the same wait.
    """
    after: dict[Node, Node | None] = dict.fromkeys(moved)
    # When the first reader that stays runs, perhaps behind others that run late.
    needed: list[int] = lifetimes.times.tolist()
    for node in sorted(moved, key=needed.__getitem__, reverse=True):
        first = min(lifetimes.order.fanouts(node), key=needed.__getitem__)
        after[node] = after[first] if first in after else lifetimes.last_input(first, after)
        needed[node] = needed[first]
    for node, awaited in after.items():
        waits_of_inputs = [after.get(source) for source in lifetimes.order.fanins(node)]
        if awaited is not None and awaited not in waits_of_inputs:
            yield Wait(node, awaited)


def make_late(form: Form, casts: Edits) -> Edits:
    """Returns the edits that a painting asks for with casts that wait."""
    view = form.view
    lifetimes = Lifetimes.of(view, form.shapes)
    dtypes = form.painting.dtypes_after()
    new = list(casts.new)
    fresh = FreshNames([*view.names, *(cast.name for cast in new)], CAST_SUFFIX)
    readers: dict[Node, list[Rewire]] = {}
    for rewire in sorted(casts.rewires, key=lambda rewire: int(lifetimes.times[rewire.node])):
        readers.setdefault(rewire.src_node, []).append(rewire)
    sources = [cast.inputs[0] for cast in casts.new]
    cast_again = {node for node, _ in sources}
    moved = {}
    for number, (cast, (node, port)) in enumerate(zip(casts.new, sources, strict=True)):
        own_number = view.node_count + number
        if node >= view.node_count or own_number in cast_again:  # a part of a chain
            continue
        count = element_count(shape_of(form.shapes, view.names[node], port)) or 0
        if count < _SMALL or lifetimes.is_bound[node]:
            continue
        left = readers.get(own_number, [])
        for after, late in _find_late(cast, left, lifetimes, dtypes):
            left = [rewire for rewire in left if rewire not in late]
            if not left:  # the last readers keep the cast that is there
                new[number] = cast._replace(after=(after,))
                continue
            for rewire in late:
                moved[rewire] = rewire._replace(src_node=view.node_count + len(new))
            name = fresh.make(cast.name.partition(f"-0-{CAST_SUFFIX}")[0])
            new.append(cast._replace(name=name, after=(after,)))
    rewires = tuple(moved.get(rewire, rewire) for rewire in casts.rewires)
    return dataclasses.replace(casts, new=tuple(new), rewires=rewires)


def _find_late(
    cast: NewNode, readers: Sequence[Rewire], lifetimes: Lifetimes, dtypes: Indices
) -> Iterator[tuple[Node, Sequence[Rewire]]]:
    """Yields the readers for which a cast is better made late, and the node that it waits for.

    Readers are grouped by their time; each group gets a cast.
    """
    times = lifetimes.times
    source = cast.inputs[0]
    owner = lifetimes.owners.get(source, source)
    # The time until which the source is held; a tensor without memory of its own is held for ever.
    held = math.inf
    shrinks = SIZES[int(dtypes[lifetimes.units[source]])] > SIZES[cast.attributes.attr["DstT"].type]
    if shrinks and owner in lifetimes.elements:
        reads = lifetimes.reads[owner]
        ends = [times[reader] for unit, reader, end in reads if dtypes[unit] == dtypes[end]]
        held = max(ends, default=0)
    starts = [0]
    for place, (early, late) in enumerate(itertools.pairwise(readers), 1):
        if times[late.node] - times[early.node] >= LONG:
            starts.append(place)
    for start, end in itertools.pairwise([*starts, len(readers)]):
        first = readers[start].node
        after = lifetimes.last_input(first)
        if after is None or times[after] - times[source[0]] < LONG:
            continue
        if held >= times[first] - LONG:
            yield after, readers[start:end]
