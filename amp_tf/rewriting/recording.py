"""Keeps what a report's figures are found from, where somebody asked for a report."""

from __future__ import annotations

import collections
import copy
import dataclasses

from amp_tf.graph.edits import Edits
from amp_tf.graph.sizes import AttributeShapes, KnownShapes, NoShapes
from amp_tf.graph.view import GraphView
from amp_tf.painting.changes import Change
from amp_tf.painting.painting import Painting
from amp_tf.reporting.basis import Basis, InsertedCast, is_wanted
from amp_tf.rewriting.form import Form, Job
from amp_tf.rewriting.hoisting import SUFFIX


def basis_of(form: Form, painting: Painting, casts: Edits, job: Job) -> Basis | None:
    """What the figures of a graph are found from; ``None`` where nobody asked for them.

    Args:
        form: the graph as it was painted.
        painting: what was decided.
        casts: the edits that it asks for.
        job: how it was painted.
    """
    if not (job.config.report_path or is_wanted()):
        return None
    view = _lasting(painting.view)
    asked = AttributeShapes(view.protos) if isinstance(form.shapes, NoShapes) else form.shapes
    shapes = KnownShapes.of(asked, view.names)

    def paint(change: Change) -> Painting:
        known = shapes.filled() if change.shapes else shapes
        return job.paint(dataclasses.replace(form, view=view, shapes=known), change)

    return Basis(
        view=view,
        shapes=shapes,
        resolution=job.resolution,
        casts=_inserted(casts, painting),
        hoisted=sum(node.op == "ReadVariableOp" and SUFFIX in node.name for node in form.edits.new),
        paint=paint,
        patterns=tuple(job.config.keep_float32),
    )


def _lasting(view: GraphView) -> GraphView:
    """The view with nodes of its own: a function of a library is overwritten by what it becomes."""
    if not view.function:
        return view
    return dataclasses.replace(view, protos=[copy.deepcopy(proto) for proto in view.protos])


def _inserted(casts: Edits, painting: Painting) -> tuple[InsertedCast, ...]:
    first = painting.view.node_count
    readers = collections.Counter(rewire.src_node for rewire in casts.rewires)
    to_f16 = painting.precision.data_type if painting.precision else None
    return tuple(
        InsertedCast(*cast.inputs[0], cast.attributes.attr["DstT"].type == to_f16, readers[number])
        for number, cast in enumerate(casts.new, first)
    )
