"""Delays nodes until their first reader needs them, where memory counts and their inputs are held anyway.

TensorFlow starts a node as soon as it can. So backward nodes that need only forward values are computed in the forward
pass, and held: of a Gelu an exponential and two products, each as large as its result, although all of them come from
one tensor that is held as well. Here such nodes wait for what else their first reader reads, the gradient.

    before:  x → Exp → Mul(grad, …)
    after:   x → Exp → Mul(grad, …), Exp waits for grad

Nodes that are connected wait together or not at all, as it holds less. What is read early and late and is much larger
than all that it was computed from, such as the factors of a layer normalization, is computed again for its late
readers; nothing else is computed twice. To wait changes no bit, and of what is computed again the type is decided anew.

No ring comes about: what is waited for waits for nothing new, and comes before all that stays and reads what waits, by
the times of :mod:`amp_tf.graph.lifetimes`. What stands behind a branch or in a loop is left alone, for one side of it
may never run. So are ops with a state, what reads TF1's reference variables, which change in place, and what is
fetched. Dropped where nothing becomes 16 bit.

Source of the idea: the choice of what is held from forward to backward in AOTAutograd's min-cut partitioner (PyTorch).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from amp_tf.graph.algorithms import connected
from amp_tf.graph.datatypes import SIZES, Mask, Node
from amp_tf.graph.edits import Edits, NewNode, Rewire, Wait
from amp_tf.graph.lifetimes import LONG, Lifetimes
from amp_tf.graph.names import FreshNames
from amp_tf.graph.view import GraphView
from amp_tf.oplists.table import BROADCASTING, WITHOUT_WAITING
from amp_tf.rewriting.form import Form, Job

_LARGER = 4  #: times as large as what it reads is what is computed again
_SUFFIX = "AmpTfAgain"


def delay(form: Form, job: Job) -> Form:
    """Has nodes wait for what else their readers read; the form itself where none should, or speed counts."""
    if job.config.goal != "memory" or job.resolution.target is None:
        return form
    view, lifetimes = form.view, Lifetimes.of(form.view, form.shapes)
    bound = view.of_kinds(
        (kind.is_stateful or kind.has_refs or kind.holds_functions for kind in view.of_kind), np.bool_
    )
    bound |= view.mask_with(WITHOUT_WAITING) | lifetimes.is_bound
    bound[[node for node, name in enumerate(view.names) if name in job.preserve]] = True
    times = _latest(lifetimes, bound)
    late = [node for node, time in enumerate(times) if time > lifetimes.times[node]]
    groups = connected(late, ((node, reader) for node in late for reader in lifetimes.order.fanouts(node)))
    held = _bytes_held(view, lifetimes, groups, times)
    moved = [node for group, (now, then) in zip(groups, held, strict=True) if now and now >= then for node in group]
    waits = tuple(_waits(lifetimes, moved))
    return _with_copies(form.then(Edits(waits=waits), job.templates, {}) if waits else form, job)


def _with_copies(form: Form, job: Job) -> Form:
    """Computes what is larger than all that it reads once more for those that read it much later."""
    view, lifetimes = form.view, Lifetimes.of(form.view, form.shapes)
    fresh, new, rewires, shapes = FreshNames(view.names, _SUFFIX), list[NewNode](), list[Rewire](), {}
    for node in view.nodes_with(BROADCASTING):
        read = sum(lifetimes.elements.get(lifetimes.owners.get(source, source), 0) for source in view.inputs(node))
        if read * _LARGER > lifetimes.elements.get((node, 0), 0) or lifetimes.is_bound[node]:
            continue
        readers = sorted(view.readers(node), key=lambda reader: int(lifetimes.times[reader[0]]))
        times = [int(lifetimes.times[reader]) for reader, _ in readers]
        late = next((place for place in range(1, len(times)) if times[place] - times[place - 1] >= LONG), 0)
        awaited = lifetimes.last_input(readers[late][0], (node,)) if late else None
        if awaited is not None and lifetimes.times[awaited] >= times[late - 1]:
            rewires += [Rewire(reader, position, view.node_count + len(new), 0) for reader, position in readers[late:]]
            copy = fresh.make(view.names[node])
            new.append(NewNode.like(copy, view, node, tuple(view.inputs(node)), (awaited,)))
            shapes[copy] = form.shapes.output_shapes(view.names[node])
    return form.then(Edits(rewires=tuple(rewires), new=tuple(new)), job.templates, shapes) if new else form


def _latest(lifetimes: Lifetimes, bound: Mask) -> list[int]:
    """When each node runs if it runs as late as it can without any reader running later, and that is much later."""
    latest: list[int] = lifetimes.times.tolist()
    for node in np.argsort(-lifetimes.times, kind="stable").tolist():
        readers = lifetimes.order.fanouts(node)
        if readers and not bound[node]:
            time = min(map(latest.__getitem__, readers)) - 1
            latest[node] = time if time - latest[node] >= LONG else latest[node]
    return latest


def _bytes_held(
    view: GraphView, lifetimes: Lifetimes, groups: Sequence[Sequence[Node]], times: Sequence[int]
) -> list[tuple[int, int]]:
    """What is held for each group as it is, its results, and if it runs late, what it reads and no one else so late."""
    group_of = {node: number for number, group in enumerate(groups) for node in group}
    now, then = [0] * len(groups), [0] * len(groups)
    for tensor, count in lifetimes.elements.items():
        own, size = group_of.get(tensor[0]), count * SIZES.get(view.dtypes[lifetimes.units[tensor]], 0)
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
    """Of the nodes that run late, those that wait for something; one that reads another which waits for it need not."""
    after: dict[Node, Node | None] = dict.fromkeys(moved)
    needed = lifetimes.times.tolist()  # when the first reader that stays runs, be it behind others that run late
    for node in sorted(moved, key=needed.__getitem__, reverse=True):
        first = min(lifetimes.order.fanouts(node), key=needed.__getitem__)
        after[node] = after[first] if first in after else lifetimes.last_input(first, after)
        needed[node] = needed[first]
    for node, awaited in after.items():
        if awaited is not None and all(after.get(source) != awaited for source in lifetimes.order.fanins(node)):
            yield Wait(node, awaited)
