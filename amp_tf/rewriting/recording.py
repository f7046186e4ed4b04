"""The report of one graph: counts, and what its figures are found from, where somebody asked for a report."""

from __future__ import annotations

import collections
import copy
import dataclasses
import importlib
from collections.abc import Sequence
from typing import Any

from amp_tf.graph.edits import Edits
from amp_tf.graph.lifetimes import Lifetimes
from amp_tf.graph.names import CAST_SUFFIX, HOIST_SUFFIX
from amp_tf.graph.sizes import SHAPES_ATTR, KnownShapes, Shape, Shapes, read_shape, shape_of
from amp_tf.graph.view import GraphView
from amp_tf.oplists.table import PRODUCTS, READ_OPS
from amp_tf.painting.outcome import Painting
from amp_tf.painting.paint import Change
from amp_tf.painting.reasons import Reason
from amp_tf.reporting.figures import Basis, GraphReport, InsertedCast, Products, has_costs
from amp_tf.rewriting.form import Form, Job


def report_of(form: Form, casts: Edits, function: Any = None, given: Form | None = None) -> GraphReport:
    """The report of a graph, as it was painted and as it was given, or of a FunctionDef."""
    painting, has_report = form.painting, form.job.config.report_path
    rule = painting.why_nothing
    view, around = form.view, form.view.nodes_with(PRODUCTS)
    read = (source for product in around for source, _ in view.inputs(product))
    names = view.names if has_report else [view.names[node] for node in dict.fromkeys([*around, *read])]
    shapes = KnownShapes.of(form.shapes, names)
    if function is not None:
        shapes = (shapes or _inferred(function, names, form.job)).and_also(_of_arguments(function))
    return GraphReport(
        function=form.view.function,
        way="offline",
        precision=painting.precision,
        total=form.view.node_count,
        converted=len(painting.converted_nodes()),
        casts=len(casts.new),
        folded=len(form.folded.scales),
        why_nothing=None if rule is None else Reason(rule, detail=painting.detail),
        is_revisit=f"{CAST_SUFFIX}\n" in "\n".join([*form.view.names, ""]),
        painting=painting.detached(),
        products=Products.of(painting, shapes),
        basis=_basis(form, casts, shapes, given) if has_report else None,
    )


def _basis(form: Form, casts: Edits, shapes: KnownShapes, given: Form | None) -> Basis:
    view, job, painting = form.view, form.job, form.painting
    if view.function:  # of a library, whose function is overwritten by what it becomes
        view = dataclasses.replace(view, protos=[copy.deepcopy(proto) for proto in view.protos])
    readers = collections.Counter(rewire.src_node for rewire in casts.rewires)
    to_f16 = painting.precision.data_type if painting.precision else None
    inserted = (
        InsertedCast(*cast.inputs[0], cast.attributes.attr["DstT"].type == to_f16, readers[number])
        for number, cast in enumerate(casts.new, view.node_count)
    )

    def paint(change: Change) -> Painting:
        known = shapes.filled() if change.shapes else shapes
        return Form(job.under(change), view, known, form.edits, form.folded).painting

    def peak(view: GraphView, shapes: Shapes) -> float:
        """The most bytes of tensors that are live at once, estimated."""
        return float(Lifetimes.of(view, shapes).bytes_over_time(view.dtypes).max(initial=0.0))

    peaks = None
    if given:
        names = view.names
        of_casts = {new.name: [shape_of(shapes, names[node], port)] for new in casts.new for node, port in new.inputs}
        peaks = peak(given.view, shapes), peak(view.after(casts, job.templates), shapes.and_also(of_casts))
    basis = Basis(
        view=view,
        shapes=shapes,
        resolution=job.resolution,
        casts=tuple(inserted),
        hoisted=sum(node.op in READ_OPS and node.name.endswith(HOIST_SUFFIX) for node in form.edits.new),
        paint=paint,
        patterns=tuple(job.config.keep_float32),
        folded=form.folded,
        peaks=peaks,
    )
    if has_costs(basis):  # for its figures, which may be asked for at exit: by then the package may be another one
        importlib.import_module("amp_tf.cpu.economy")
    return basis


def _inferred(function: Any, names: Sequence[str], job: Job) -> KnownShapes:
    """The shapes of a function of which the nodes carry none: as it was traced.

    For figures, which were asked for, a function that nobody traced is made a graph.
    """
    from tensorflow.python.framework import function_def_to_graph

    graph, wanted = _graph_of(job.traced, function.signature.name), frozenset(names)
    try:
        if graph is None and job.config.report_path:
            graph = function_def_to_graph.function_def_to_graph(function)
    except Exception:  # whatever it lacks, its report has no sizes then
        return KnownShapes({})
    operations = graph.get_operations() if graph is not None and wanted else ()
    return KnownShapes(
        {op.name: [read_shape(out.shape.as_proto()) for out in op.outputs] for op in operations if op.name in wanted}
    )


def _of_arguments(function: Any) -> dict[str, list[Shape | None]]:
    found = {}
    for number, argument in enumerate(function.signature.input_arg):
        attributes = function.arg_attr[number].attr if number in function.arg_attr else {}
        if SHAPES_ATTR in attributes:
            found[argument.name] = [read_shape(shape) for shape in attributes[SHAPES_ATTR].list.shape]
    return found


def _graph_of(function: Any, name: str) -> Any:
    waiting, seen = [function], set()
    while waiting:
        function = waiting.pop()
        if function is None or id(function) in seen:
            continue
        seen.add(id(function))
        found = getattr(function, "name", b"")
        if (found.decode() if isinstance(found, bytes) else found) == name:
            return getattr(function, "_cached_graph", None)
        waiting += getattr(function, "_children", ())
    return None
