"""Records rewrites for people: the report of each graph, and the log files (``LOG_PATH``).

A report has counts and, if a report file was asked for, the basis of its figures.

Log files are each graph before and after its rewrite, the op lists and the reason for every node.
Their names are those of TensorFlow's own pass, so that tools that read them go on working. All
graphs are GraphDefs: functions are the library of one without nodes, with those that they call.
``reasons_….txt`` and ``failure_….txt`` are amp_tf's; where a rewrite failed, the latter replaces
the former and the graph afterwards. TensorFlow may pass on a graph twice.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import functools
import importlib
import itertools
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import logging

from amp_tf.config import LIST_NAMES, AmpConfig
from amp_tf.errors import AmpError
from amp_tf.graph.edits import Edits
from amp_tf.graph.names import CAST_SUFFIX, HOIST_SUFFIX
from amp_tf.graph.protos import new_graph, parse_graph
from amp_tf.graph.sizes import KnownShapes, Lifetimes, Shape, Shapes, read_shape, shape_of
from amp_tf.graph.view import GraphView
from amp_tf.oplists.table import PRODUCTS, READ_OPS
from amp_tf.oplists.targets import Resolution
from amp_tf.painting.outcome import Painting
from amp_tf.painting.paint import Change
from amp_tf.painting.reasons import Reason
from amp_tf.reporting.figures import Basis, InsertedCast, Products, has_costs
from amp_tf.reporting.graphs import GraphReport
from amp_tf.reporting.reports import RewriteReport
from amp_tf.rewriting.form import Form, Job
from amp_tf.rewriting.planning import cast_sources

_numbers = itertools.count()


def report_of(
    form: Form, casts: Edits, function: Any = None, as_given: Form | None = None
) -> GraphReport:
    """Reports on a graph or a function.

    Args:
        form: the graph as it was painted.
        casts: the edits that the painting asks for.
        function: the FunctionDef if a function is rewritten.
        as_given: the graph as it was given, for its memory.
    """
    painting = form.painting
    view = form.view
    has_report = form.job.config.report_path
    why_nothing = None
    if painting.why_nothing is not None:
        why_nothing = Reason(painting.why_nothing, detail=painting.detail)
    names: Sequence[str] = view.names
    if not has_report:  # the shapes of products and of their inputs are enough
        counted = view.nodes_with(PRODUCTS)
        for product in counted[:]:
            counted += [source for source, _ in view.inputs(product)]
        names = [view.names[node] for node in dict.fromkeys(counted)]
    shapes = KnownShapes.of(form.shapes, names)
    if function is not None:
        body = [node.name for node in function.node_def]
        if not KnownShapes.of(form.shapes, body):
            shapes = shapes.and_also(_inferred(function, names, form.job))
    basis = None
    if has_report:
        basis = _basis(form, casts, shapes, as_given)
    return GraphReport(
        function=view.function,
        way="offline",
        precision=painting.precision,
        total=view.node_count,
        converted=len(painting.converted_nodes()),
        casts=len(casts.new),
        folded=len(form.folded.scales),
        why_nothing=why_nothing,
        is_revisit=f"{CAST_SUFFIX}\n" in "\n".join([*view.names, ""]),
        painting=painting.detached(),
        products=Products.of(painting, shapes),
        basis=basis,
    )


def _basis(form: Form, casts: Edits, shapes: KnownShapes, as_given: Form | None) -> Basis:
    """Returns the basis of a report's figures, which are computed when somebody asks for them."""
    view = form.view
    job = form.job
    painting = form.painting
    if view.function:  # its definition in the library will be overwritten
        view = dataclasses.replace(view, protos=[copy.deepcopy(proto) for proto in view.protos])
    sources = cast_sources(casts, view.node_count)
    readers = collections.Counter(rewire.src_node for rewire in casts.rewires)
    for cast in casts.new:
        readers.update(node for node, _ in cast.inputs)
    to_f16 = painting.precision.data_type if painting.precision else None
    inserted = []
    for number, cast in enumerate(casts.new, view.node_count):
        is_to_f16 = cast.attributes.attr["DstT"].type == to_f16
        inserted.append(InsertedCast(*sources[number], is_to_f16, readers[number]))

    def paint(change: Change) -> Painting:
        return Form(job, view, shapes, form.edits, form.folded).under(change).painting

    def peak(view: GraphView, shapes: Shapes) -> float:
        """Estimates the most bytes of tensors that are live at once."""
        return float(Lifetimes.of(view, shapes).bytes_over_time(view.dtypes).max(initial=0.0))

    peaks = None
    if as_given:
        of_casts = {}
        for number, cast in enumerate(casts.new, view.node_count):
            source, port = sources[number]
            of_casts[cast.name] = [shape_of(shapes, view.names[source], port)]
        after = view.after(casts, job.templates)
        peaks = peak(as_given.view, shapes), peak(after, shapes.and_also(of_casts))
    hoisted = 0
    for node in form.edits.new:
        hoisted += node.op in READ_OPS and node.name.endswith(HOIST_SUFFIX)
    basis = Basis(
        view=view,
        shapes=shapes,
        resolution=job.resolution,
        casts=tuple(inserted),
        hoisted=hoisted,
        paint=paint,
        config=job.config,
        folded=form.folded,
        peaks=peaks,
    )
    if has_costs(basis):
        # Imported now, because figures may be computed at exit, when the package on disk may be
        # another one.
        importlib.import_module("amp_tf.cpu.prices")
    return basis


def _inferred(
    function: Any, names: Sequence[str], job: Job
) -> Mapping[str, Sequence[Shape | None]]:
    """Takes the shapes of a function whose nodes carry none from its trace.

    If a report file was asked for, a function without a trace is made a graph.
    """
    from tensorflow.python.framework import function_def_to_graph

    graph = _graph_of(job.traced, function.signature.name)
    try:
        if graph is None and job.config.report_path:
            graph = function_def_to_graph.function_def_to_graph(function)
    except Exception:  # an op that is not registered, for instance; the report has no sizes then
        return {}
    if graph is None:
        return {}
    shapes = {}
    wanted = frozenset(names)
    for op in graph.get_operations():
        if op.name in wanted:
            shapes[op.name] = [read_shape(out.shape.as_proto()) for out in op.outputs]
    return shapes


def _graph_of(function: Any, name: str) -> Any:
    """Finds the graph of a traced function among the functions that an AtomicFunction calls."""
    waiting = [function]
    seen = set()
    while waiting:
        function = waiting.pop()
        if function is None or id(function) in seen:
            continue
        seen.add(id(function))
        if getattr(function, "name", b"") in (name, name.encode()):
            return getattr(function, "_cached_graph", None)
        waiting += getattr(function, "_children", ())
    return None


class Log:
    """Writes the files of one rewrite, if the configuration names a folder.

    A folder that cannot be written is a warning, once. A graph is a GraphDef, which may be
    serialized, a FunctionDef, or a list of FunctionDefs.

    Args:
        library: a FunctionDefLibrary with what the FunctionDefs call.
    """

    def __init__(self, config: AmpConfig, resolution: Resolution, library: Any = None) -> None:
        self._path = config.log_path or ""
        self._resolution = resolution
        self._library = library
        # Workers that share a folder begin together, and may have the same number and time.
        self._stamp = f"{os.getpid()}-{next(_numbers)}_{time.time_ns() // 1_000_000}"

    @contextlib.contextmanager
    def before(self, graph: Any) -> Iterator[None]:
        """Writes a graph before its rewrite, which is the block, and why the rewrite failed."""
        self._write_before(graph)
        try:
            yield
        except AmpError as error:
            if self._path:
                text = f"{type(error).__name__}: {error}\n"
                self._write("failure_AutoMixedPrecision", ".txt", text)
            raise

    def _write_before(self, graph: Any) -> None:
        """Writes the graph, and the op lists."""
        if not self._path:
            return
        self._write_graph("preop", graph)
        target = self._resolution.target
        text = f"nothing is converted: {self._resolution.why_none}"
        if target:
            lists = []
            for name in LIST_NAMES:
                lists.append("\n".join([f"{name.capitalize()}List:", *target.lists.members(name)]))
            text = "\n\n".join(lists)
        self._write("paintbuckets_AutoMixedPrecision", ".txt", f"{text}\n")

    def write_after(self, graph: Any, report: RewriteReport) -> None:
        """Writes the graph after its rewrite, and the reasons.

        ``reasons_….txt`` has precision, op, function, name and reason of each node.
        """
        if not self._path:
            return
        self._write_graph("AutoMixedPrecision", graph)
        rows = []
        for node in report.nodes:
            row = (node.precision.value, node.op, node.function, node.name, str(node.reason))
            rows.append("\t".join(row))
        self._write("reasons_AutoMixedPrecision", ".txt", "\n".join(rows) + "\n")

    def _write_graph(self, tag: str, graph: Any) -> None:
        if isinstance(graph, bytes):
            graph = parse_graph(graph)
        if hasattr(graph, "node_def"):
            graph = [graph]
        if isinstance(graph, list):
            graph = self._with_library(graph)
        self._write(f"graphdef_{tag}", ".pb", graph.SerializeToString())
        self._write(f"graphdef_{tag}", ".pb.txt", str(graph))

    def _with_library(self, functions: Sequence[Any]) -> Any:
        """Makes a GraphDef of functions, with those of the library that are not among them."""
        graph = new_graph()
        graph.library.function.extend(functions)
        names = {function.signature.name for function in functions}
        if self._library:
            for function in self._library.function:
                if function.signature.name not in names:
                    graph.library.function.append(function)
        return graph

    def _write(self, stem: str, suffix: str, content: str | bytes) -> None:
        from amp_tf.reporting import files  # nothing else of a rewrite needs it

        try:
            folder = Path(self._path)
            folder.mkdir(parents=True, exist_ok=True)
            files.put(folder / f"{stem}_{self._stamp}{suffix}", content)
        except OSError as error:
            _warn_once(self._path, error.strerror or str(error))


@functools.lru_cache(maxsize=64)
def _warn_once(path: str, why: str) -> None:
    logging.warning(
        "amp_tf: TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_LOG_PATH: cannot write to %r (%s). "
        "Rewrites go on without log files; name a folder that can be written.",
        path,
        why,
    )
