"""Makes casts when they are read, where memory counts: twice, if some readers come much later than others.

TensorFlow casts as soon as it can, and one cast serves all readers. So the 16-bit copy of each weight is made when a
step begins and held until the backward pass has read it, and a value that both passes read in two types is held twice.
Here a cast waits for what else its first reader reads, and readers that come much later have one of their own:

    before:  read → Cast → MatMul, MatMul_grad
    after:   read → Cast → MatMul; read → Cast_1 → MatMul_grad; each Cast waits for the other input of its MatMul

That is done for casts to float32, because what they are made from is smaller, and where that is held in any case: a
weight, or what is read in its own type as late. Values stay the same to the last bit; a cast more is the price.

No ring comes about: what a cast waits for comes before its readers by the times of :mod:`amp_tf.graph.lifetimes`.
Values that stand behind a branch or in a loop are left alone, and functions: what XLA compiles is scheduled by XLA.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence

from amp_tf.graph.datatypes import SIZES
from amp_tf.graph.edits import Edits, NewNode, Rewire, Tensor
from amp_tf.graph.indices import Indices, Node
from amp_tf.graph.lifetimes import LONG, Lifetimes
from amp_tf.graph.names import FreshNames
from amp_tf.graph.sizes import element_count, shape_of
from amp_tf.painting.outcome import Painting
from amp_tf.rewriting.form import Form
from amp_tf.rewriting.planning import CAST_SUFFIX

_SMALL = 16_384  #: elements: what has fewer is cast once, and at once


def make_late(form: Form, painting: Painting, casts: Edits) -> Edits:
    """The edits with casts that wait.

    Args:
        form: the graph as it was painted.
        painting: what was decided.
        casts: the edits that it asks for.
    """
    view, new = form.view, list(casts.new)
    plan = _Plan(form, Lifetimes.of(view, form.shapes), painting.dtypes_after())
    fresh = FreshNames([*view.names, *(cast.name for cast in new)], CAST_SUFFIX)
    readers: dict[Node, list[Rewire]] = {}
    for rewire in casts.rewires:
        readers.setdefault(rewire.src_node, []).append(rewire)
    moved: dict[Rewire, Rewire] = {}
    for number, cast in enumerate(casts.new):
        left = readers.get(view.node_count + number, [])
        for after, late in plan.late_readers(cast, left):
            left = [rewire for rewire in left if rewire not in late]
            if left:
                name = fresh.make(cast.name.partition(f"-0-{CAST_SUFFIX}")[0])
                moved.update({rewire: rewire._replace(src_node=view.node_count + len(new)) for rewire in late})
                new.append(cast._replace(name=name, after=(after,)))
            else:
                new[number] = cast._replace(after=(after,))
    return dataclasses.replace(casts, new=tuple(new), rewires=tuple(moved.get(each, each) for each in casts.rewires))


@dataclasses.dataclass(frozen=True)
class _Plan:
    """What decides when casts are made.

    Attributes:
        form: the graph as it was painted.
        lifetimes: of its tensors.
        dtypes: of its units once the graph is rewritten.
    """

    form: Form
    lifetimes: Lifetimes
    dtypes: Indices

    def late_readers(self, cast: NewNode, readers: Sequence[Rewire]) -> Iterator[tuple[Node, Sequence[Rewire]]]:
        """The readers of a cast for which it is better made late, those of one time together, and what it waits for."""
        lifetimes, times = self.lifetimes, self.lifetimes.times
        source = cast.inputs[0]
        count = element_count(shape_of(self.form.shapes, self.form.view.names[source[0]], source[1])) or 0
        if count < _SMALL or lifetimes.is_conditional[source[0]]:
            return
        grows = self._size(source) < SIZES[cast.attributes.attr["DstT"].type]
        held = math.inf if grows else self._held_until(lifetimes.owners.get(source, source))
        served = sorted(readers, key=lambda rewire: int(times[rewire.node]))
        gaps = (times[late.node] - times[early.node] >= LONG for early, late in itertools.pairwise(served))
        starts = [0, *(place for place, is_gap in enumerate(gaps, 1) if is_gap), len(served)]
        for start, end in itertools.pairwise(starts):
            first = served[start].node
            after = lifetimes.last_input(first)
            if after is not None and times[after] - times[source[0]] >= LONG and held >= times[first] - LONG:
                yield after, served[start:end]

    def _held_until(self, owner: Tensor) -> float:
        """When the last node runs that reads a tensor without a cast; never, where it takes no memory of its own."""
        reads = self.lifetimes.reads.get(owner, ())
        same = (float(self.lifetimes.times[reader]) for unit, reader, end in reads if self._types_meet(unit, end))
        return max(same, default=0.0) if owner in self.lifetimes.elements else math.inf

    def _types_meet(self, unit: int, end: int) -> bool:
        return bool(self.dtypes[unit] == self.dtypes[end])

    def _size(self, tensor: Tensor) -> int:
        return SIZES.get(int(self.dtypes[self.lifetimes.units[tensor]]), 0)
