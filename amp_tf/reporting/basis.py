"""What a graph's figures are computed from; kept only if a report was asked for, because it holds the whole graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from amp_tf.graph.sizes import KnownShapes
from amp_tf.graph.view import GraphView
from amp_tf.oplists.targets import Resolution
from amp_tf.painting.changes import Change
from amp_tf.painting.eligibility import NOTHING_FOLDED, Folded
from amp_tf.painting.outcome import Painting


@dataclasses.dataclass(frozen=True)
class InsertedCast:
    """One cast that a rewrite inserted.

    Attributes:
        node, port: the output port whose value is cast; the number of the node in the view.
        to_f16: whether it casts to 16 bit, and else to float32.
        readers: how many inputs read its result.
    """

    node: int
    port: int
    to_f16: bool
    readers: int


@dataclasses.dataclass(frozen=True, eq=False)
class Basis:
    """A graph as it was painted, with what is needed to paint it again.

    Attributes:
        view: the graph, with its edges and nodes, once normalization was folded and reads were moved.
        shapes: the static shapes of its tensors.
        resolution: what was converted here.
        casts: those that the rewrite inserted.
        hoisted: reads of variables that were moved out of loops.
        paint: paints it again under a change, which does not touch the graph that runs.
        patterns: those of ``keep_float32``.
        folded: the nodes that have another meaning since normalization was folded.
        peaks: bytes of tensors at the estimated peak of one run, in float32 and now (:mod:`amp_tf.graph.lifetimes`);
            ``None`` for functions.
    """

    view: GraphView
    shapes: KnownShapes
    resolution: Resolution
    casts: tuple[InsertedCast, ...]
    hoisted: int
    paint: Callable[[Change], Painting]
    patterns: tuple[str, ...] = ()
    folded: Folded = NOTHING_FOLDED
    peaks: tuple[float, float] | None = None
