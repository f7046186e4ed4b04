"""Holds less where memory counts: nodes and casts wait until their readers need them.

TensorFlow starts a node as soon as it can. *Nodes wait.* Backward nodes that need only forward
values are computed in the forward pass, and their results held: of a Gelu an exponential and two
products, each as large as its result, although all of them come from one tensor that is held as
well. Here such nodes wait for the other input of their first reader, the gradient.

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
    after:   read → Cast → MatMul; read → Cast_1 → MatMul_grad; each Cast waits for the other input of its MatMul

This is done for casts to float32, because their sources are smaller, and where the source is held
in any case: a weight, or a tensor that is read in its own type as late. Values stay the same to the
last bit; the price is one more cast.

No ring comes about: what is waited for waits for nothing new, and comes before all that stays and
reads what waits, by the times of :mod:`amp_tf.graph.sizes`. Nodes behind a branch or in a loop are
left alone, because one side of it may never run. So are ops with a state, readers of TF1's
reference variables, which change in place, fetched nodes, and functions, because XLA schedules what
it compiles. Dropped where nothing becomes 16 bit.
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

_LARGER = 4  #: a result that is so many times as large as all inputs is computed again
_SUFFIX = "AmpTfAgain"
_SMALL = 16_384  #: elements; smaller tensors are cast once, and at once


def delay(form: Form) -> Form:
    """Has nodes wait for the other inputs of their readers."""
    view, lifetimes = form.view, Lifetimes.of(form.view, form.shapes)
    bound = view.of_kinds(
        (kind.is_stateful or kind.has_refs or kind.holds_functions for kind in view.of_kind),
        np.bool_,
    )
    bound |= view.mask_with(WITHOUT_WAITING) | lifetimes.is_bound
    bound[[node for node, name in enumerate(view.names) if name in form.job.preserve]] = True
    # When each node runs if it runs as late as its readers allow, where that is much later.
    times: list[int] = lifetimes.times.tolist()
    for node in np.argsort(-lifetimes.times, kind="stable").tolist():
        readers = lifetimes.order.fanouts(node)
        if readers and not bound[node]:
            time = min(map(times.__getitem__, readers)) - 1
            times[node] = time if time - times[node] >= LONG else times[node]
    late = [node for node, time in enumerate(times) if time > lifetimes.times[node]]
    groups = connected(
        late, ((node, reader) for node in late for reader in lifetimes.order.fanouts(node))
    )
    held = _bytes_held(view, lifetimes, groups, times)
    moved = [
        node
        for group, (now, then) in zip(groups, held, strict=True)
        if now and now >= then
        for node in group
    ]
    return _with_copies(form.then(Edits(waits=tuple(_waits(lifetimes, moved)))))


def _with_copies(form: Form) -> Form:
    """Computes results that are much larger than their inputs once more, for readers that run much
    later.
    """
    view, lifetimes = form.view, Lifetimes.of(form.view, form.shapes)
    fresh, new, rewires, models = (
        FreshNames(view.names, _SUFFIX),
        list[NewNode](),
        list[Rewire](),
        {},
    )
    for node in view.nodes_with(BROADCASTING):
        read = sum(
            lifetimes.elements.get(lifetimes.owners.get(source, source), 0)
            for source in view.inputs(node)
        )
        if read * _LARGER > lifetimes.elements.get((node, 0), 0) or lifetimes.is_bound[node]:
            continue
        readers = sorted(view.readers(node), key=lambda reader: int(lifetimes.times[reader[0]]))
        times = [int(lifetimes.times[reader]) for reader, _ in readers]
        late = next(
            (place for place in range(1, len(times)) if times[place] - times[place - 1] >= LONG), 0
        )
        awaited = lifetimes.last_input(readers[late][0], (node,)) if late else None
        if awaited is not None and lifetimes.times[awaited] >= times[late - 1]:
            rewires += [
                Rewire(reader, position, view.node_count + len(new), 0)
                for reader, position in readers[late:]
            ]
            copy = fresh.make(view.names[node])
            new.append(view.copied(node, copy, view.inputs(node), (awaited,)))
            models[copy] = node
    return form.then(Edits(rewires=tuple(rewires), new=tuple(new)), models)


def _bytes_held(
    view: GraphView, lifetimes: Lifetimes, groups: Sequence[Sequence[Node]], times: Sequence[int]
) -> list[tuple[int, int]]:
    """The bytes held for each group as it is (its results), and if it runs late (inputs that only
    it needs so late).
    """
    group_of = {node: number for number, group in enumerate(groups) for node in group}
    now, then = [0] * len(groups), [0] * len(groups)
    for tensor, count in lifetimes.elements.items():
        own, size = (
            group_of.get(tensor[0]),
            count * SIZES.get(view.dtypes[lifetimes.units[tensor]], 0),
        )
        readers = [reader for _, reader, _ in lifetimes.reads[tensor]]
        if own is not None:
            now[own] += size * any(group_of.get(reader) != own for reader in readers)
            continue
        for group in {group_of[reader] for reader in readers if reader in group_of}:
            first = min(times[reader] for reader in readers if group_of.get(reader) == group)
            others = (times[reader] for reader in readers if group_of.get(reader) != group)
            then[group] += size * (max(others, default=0) < first - LONG)
    return list(zip(now, then, strict=True))


def _waits(lifetimes: Lifetimes, moved: Sequence[Node]) -> Iterator[Wait]:
    """What nodes that run late wait for; a node that reads another one with the same wait needs
    none.
    """
    after: dict[Node, Node | None] = dict.fromkeys(moved)
    needed = (
        lifetimes.times.tolist()
    )  # when the first reader that stays runs, be it behind others that run late
    for node in sorted(moved, key=needed.__getitem__, reverse=True):
        first = min(lifetimes.order.fanouts(node), key=needed.__getitem__)
        after[node] = after[first] if first in after else lifetimes.last_input(first, after)
        needed[node] = needed[first]
    for node, awaited in after.items():
        if awaited is not None and all(
            after.get(source) != awaited for source in lifetimes.order.fanins(node)
        ):
            yield Wait(node, awaited)


def make_late(form: Form, casts: Edits) -> Edits:
    """The edits that a painting asks for with casts that wait."""
    view, new = form.view, list(casts.new)
    lifetimes, dtypes = Lifetimes.of(view, form.shapes), form.painting.dtypes_after()
    fresh = FreshNames([*view.names, *(cast.name for cast in new)], CAST_SUFFIX)
    readers: dict[Node, list[Rewire]] = {}
    for rewire in sorted(casts.rewires, key=lambda rewire: int(lifetimes.times[rewire.node])):
        readers.setdefault(rewire.src_node, []).append(rewire)
    moved: dict[Rewire, Rewire] = {}
    cast_again = {node for cast in casts.new for node, _ in cast.inputs if node >= view.node_count}
    for number, cast in enumerate(casts.new):
        (node, port), left = cast.inputs[0], readers.get(view.node_count + number, [])
        if node >= view.node_count or view.node_count + number in cast_again:  # a part of a chain
            continue
        if (
            element_count(shape_of(form.shapes, view.names[node], port)) or 0
        ) < _SMALL or lifetimes.is_bound[node]:
            continue
        for after, late in _find_late(cast, left, lifetimes, dtypes):
            left = [rewire for rewire in left if rewire not in late]
            if left:
                name = fresh.make(cast.name.partition(f"-0-{CAST_SUFFIX}")[0])
                moved.update(
                    {
                        rewire: rewire._replace(src_node=view.node_count + len(new))
                        for rewire in late
                    }
                )
                new.append(cast._replace(name=name, after=(after,)))
            else:
                new[number] = cast._replace(after=(after,))
    return dataclasses.replace(
        casts, new=tuple(new), rewires=tuple(moved.get(each, each) for each in casts.rewires)
    )


def _find_late(
    cast: NewNode, readers: Sequence[Rewire], lifetimes: Lifetimes, dtypes: Indices
) -> Iterator[tuple[Node, Sequence[Rewire]]]:
    """The readers for which a cast is better made late, grouped by their time, and what that cast
    waits for.
    """
    times, source = lifetimes.times, cast.inputs[0]
    owner = lifetimes.owners.get(source, source)
    held = (
        math.inf
    )  # the time until which its source is held; what has no memory of its own, for ever
    shrinks = SIZES[int(dtypes[lifetimes.units[source]])] > SIZES[cast.attributes.attr["DstT"].type]
    if shrinks and owner in lifetimes.elements:
        reads = lifetimes.reads[owner]
        held = max(
            (times[reader] for unit, reader, end in reads if dtypes[unit] == dtypes[end]), default=0
        )
    gaps = (
        times[late.node] - times[early.node] >= LONG for early, late in itertools.pairwise(readers)
    )
    starts = [0, *(place for place, is_gap in enumerate(gaps, 1) if is_gap), len(readers)]
    for start, end in itertools.pairwise(starts):
        first = readers[start].node
        after = lifetimes.last_input(first)
        if (
            after is not None
            and times[after] - times[source[0]] >= LONG
            and held >= times[first] - LONG
        ):
            yield after, readers[start:end]
