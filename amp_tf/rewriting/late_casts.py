"""Makes casts when they are read, where memory counts: twice, if some readers come much later than others.

TensorFlow casts as soon as it can, and one cast serves all readers. So the 16-bit copy of each weight is made when a
step begins and held until the backward pass has read it, and a value that both passes read in two types is held twice.
Here a cast waits for what else its first reader reads, and readers that come much later have one of their own:

    before:  read → Cast → MatMul, MatMul_grad
    after:   read → Cast → MatMul; read → Cast_1 → MatMul_grad; each Cast waits for the other input of its MatMul

That is done for casts to float32, because what they are made from is smaller, and where that is held in any case: a
weight, or what is read in its own type as late. Values stay the same to the last bit; a cast more is the price. No ring
comes about, and what must not wait is left alone, as in :mod:`amp_tf.rewriting.delaying`; so are functions, because
what XLA compiles is scheduled by XLA.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence

from amp_tf.graph.datatypes import SIZES, Indices, Node
from amp_tf.graph.edits import Edits, NewNode, Rewire
from amp_tf.graph.lifetimes import LONG, Lifetimes
from amp_tf.graph.names import FreshNames
from amp_tf.graph.sizes import element_count, shape_of
from amp_tf.painting.outcome import Painting
from amp_tf.rewriting.form import Form
from amp_tf.rewriting.planning import CAST_SUFFIX

_SMALL = 16_384  #: elements: what has fewer is cast once, and at once


def make_late(form: Form, painting: Painting, casts: Edits) -> Edits:
    """The edits that a painting asks for with casts that wait."""
    view, new = form.view, list(casts.new)
    lifetimes, dtypes = Lifetimes.of(view, form.shapes), painting.dtypes_after()
    fresh = FreshNames([*view.names, *(cast.name for cast in new)], CAST_SUFFIX)
    readers: dict[Node, list[Rewire]] = {}
    for rewire in sorted(casts.rewires, key=lambda rewire: int(lifetimes.times[rewire.node])):
        readers.setdefault(rewire.src_node, []).append(rewire)
    moved: dict[Rewire, Rewire] = {}
    for number, cast in enumerate(casts.new):
        (node, port), left = cast.inputs[0], readers.get(view.node_count + number, [])
        if (element_count(shape_of(form.shapes, view.names[node], port)) or 0) < _SMALL or lifetimes.is_bound[node]:
            continue
        for after, late in _find_late(cast, left, lifetimes, dtypes):
            left = [rewire for rewire in left if rewire not in late]
            if left:
                name = fresh.make(cast.name.partition(f"-0-{CAST_SUFFIX}")[0])
                moved.update({rewire: rewire._replace(src_node=view.node_count + len(new)) for rewire in late})
                new.append(cast._replace(name=name, after=(after,)))
            else:
                new[number] = cast._replace(after=(after,))
    return dataclasses.replace(casts, new=tuple(new), rewires=tuple(moved.get(each, each) for each in casts.rewires))


def _find_late(
    cast: NewNode, readers: Sequence[Rewire], lifetimes: Lifetimes, dtypes: Indices
) -> Iterator[tuple[Node, Sequence[Rewire]]]:
    """The readers for which a cast is better made late, those of one time together, and what it waits for."""
    times, source = lifetimes.times, cast.inputs[0]
    owner = lifetimes.owners.get(source, source)
    held = math.inf  # the time until which its source is held; what has no memory of its own, for ever
    shrinks = SIZES[int(dtypes[lifetimes.units[source]])] > SIZES[cast.attributes.attr["DstT"].type]
    if shrinks and owner in lifetimes.elements:
        reads = lifetimes.reads[owner]
        held = max((times[reader] for unit, reader, end in reads if dtypes[unit] == dtypes[end]), default=0)
    gaps = (times[late.node] - times[early.node] >= LONG for early, late in itertools.pairwise(readers))
    starts = [0, *(place for place, is_gap in enumerate(gaps, 1) if is_gap), len(readers)]
    for start, end in itertools.pairwise(starts):
        first = readers[start].node
        after = lifetimes.last_input(first)
        if after is not None and times[after] - times[source[0]] >= LONG and held >= times[first] - LONG:
            yield after, readers[start:end]
