"""What a rewrite leaves for people: the report of each graph, and the log files (``LOG_PATH``).

A report has counts and, if a report file was asked for, the basis of its figures.

Log files are each graph before and after its rewrite, the op lists and the reason for every node.
Their names are those of TensorFlow's own pass, so that tools that read them go on working;
``reasons_….txt`` is new, and so is ``failure_….txt``, which stands in its place and in that of the
graph after a rewrite that failed. ``index.tsv`` has a line for each rewrite: the end of its files'
names, the way in which the graph came, its function, the name scopes that hold most of its nodes
(layers and models give theirs), and what was converted.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import errno
import functools
import importlib
import itertools
import os
import stat
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from absl import logging

from amp_tf.config import LIST_NAMES, AmpConfig
from amp_tf.errors import AmpError
from amp_tf.graph.edits import Edits
from amp_tf.graph.names import CAST_SUFFIX, HOIST_SUFFIX, scopes
from amp_tf.graph.protos import parse_graph
from amp_tf.graph.sizes import SHAPES_ATTR, KnownShapes, Lifetimes, Shapes, read_shape, shape_of
from amp_tf.graph.view import GraphView
from amp_tf.oplists.table import PRODUCTS, READ_OPS
from amp_tf.oplists.targets import Resolution
from amp_tf.painting.outcome import Painting
from amp_tf.painting.paint import Change
from amp_tf.painting.reasons import Reason
from amp_tf.reporting.figures import Basis, GraphReport, InsertedCast, Products, has_costs
from amp_tf.reporting.reports import RewriteReport
from amp_tf.rewriting.form import Form, Job, cast_sources

INDEX = "index.tsv"
_COLUMNS = ("files", "way", "function", "scopes", "nodes", "converted", "casts")
_SCOPES_SHOWN = 3
_numbers = itertools.count()


def report_of(
    form: Form, casts: Edits, function: Any = None, given: Form | None = None
) -> GraphReport:
    """The report of a graph, as it was painted and as it was given, or of a FunctionDef."""
    painting, has_report = form.painting, form.job.config.report_path
    rule = painting.why_nothing
    view, around = form.view, form.view.nodes_with(PRODUCTS)
    read = (source for product in around for source, _ in view.inputs(product))
    names = (
        view.names if has_report else [view.names[node] for node in dict.fromkeys([*around, *read])]
    )
    shapes = KnownShapes.of(form.shapes, names)
    if function is not None:
        of_arguments = {
            name: [read_shape(shape) for shape in attributes[SHAPES_ATTR].list.shape]
            for name, attributes in zip(view.names, view.argument_attributes, strict=False)
            if SHAPES_ATTR in attributes
        }
        shapes = (shapes or _inferred(function, names, form.job)).and_also(of_arguments)
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
    sources = cast_sources(casts, view.node_count)
    readers.update(node for cast in casts.new for node, _ in cast.inputs)
    to_f16 = painting.precision.data_type if painting.precision else None
    inserted = (
        InsertedCast(*sources[number], cast.attributes.attr["DstT"].type == to_f16, readers[number])
        for number, cast in enumerate(casts.new, view.node_count)
    )

    def paint(change: Change) -> Painting:
        return Form(job, view, shapes, form.edits, form.folded).under(change).painting

    def peak(view: GraphView, shapes: Shapes) -> float:
        """The most bytes of tensors that are live at once, estimated."""
        return float(Lifetimes.of(view, shapes).bytes_over_time(view.dtypes).max(initial=0.0))

    peaks = None
    if given:
        names = view.names
        cast_names = [cast.name for cast in casts.new]
        tensors = zip(cast_names, sources.values(), strict=True)
        of_casts = {name: [shape_of(shapes, names[node], port)] for name, (node, port) in tensors}
        peaks = (
            peak(given.view, shapes),
            peak(view.after(casts, job.templates), shapes.and_also(of_casts)),
        )
    basis = Basis(
        view=view,
        shapes=shapes,
        resolution=job.resolution,
        casts=tuple(inserted),
        hoisted=sum(
            node.op in READ_OPS and node.name.endswith(HOIST_SUFFIX) for node in form.edits.new
        ),
        paint=paint,
        config=job.config,
        folded=form.folded,
        peaks=peaks,
    )
    if has_costs(
        basis
    ):  # for its figures, which may be asked for at exit: by then the package may be another one
        importlib.import_module("amp_tf.cpu.economy")
    return basis


def _inferred(function: Any, names: Sequence[str], job: Job) -> KnownShapes:
    """The shapes of a function whose nodes carry none, from its trace.

    If a report file was asked for, a function without a trace is made a graph.
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
        {
            op.name: [read_shape(out.shape.as_proto()) for out in op.outputs]
            for op in operations
            if op.name in wanted
        }
    )


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


class Log:
    """The files of one rewrite; writes nothing where the configuration names no folder.

    A folder that cannot be written is a warning, once.
    The graph came by a way: ``"offline"``, ``"grappler"`` or ``"xla"``, as in reports.
    """

    def __init__(self, config: AmpConfig, resolution: Resolution, way: str = "offline") -> None:
        self._path, self._resolution, self._way = config.log_path or "", resolution, way
        # Workers that share a folder begin together, and would have number and time in common.
        self._stamp = f"{os.getpid()}-{next(_numbers)}_{time.time_ns() // 1_000_000}"

    def write_before(self, graph: Any) -> None:
        """Writes what is known before a rewrite of a FunctionDef or GraphDef; the latter may be
        serialized.
        """
        if not self._path:
            return
        self._write_graph("preop", graph)
        target = self._resolution.target
        lists = [
            "\n".join([f"{name.capitalize()}List:", *target.lists.members(name)])
            for name in LIST_NAMES
            if target
        ]
        text = "\n\n".join(lists) or f"nothing is converted: {self._resolution.why_none}"
        self._write("paintbuckets_AutoMixedPrecision", ".txt", f"{text}\n")

    def write_after(self, graph: Any, report: RewriteReport) -> None:
        """Writes what is known after it; ``reasons_….txt`` has for each node precision, op,
        function, name, reason.
        """
        if not self._path:
            return
        self._write_graph("AutoMixedPrecision", graph)
        rows = (
            (node.precision.value, node.op, node.function, node.name, str(node.reason))
            for node in report.nodes
        )
        self._write("reasons_AutoMixedPrecision", ".txt", "\n".join(map("\t".join, rows)) + "\n")
        for graph in report.graphs:
            # The outermost name scopes that hold most nodes tell one model from another.
            counts = collections.Counter(
                around[0] for name in graph.painting.view.names if (around := scopes(name))
            )
            most = " ".join(scope for scope, _ in counts.most_common(_SCOPES_SHOWN))
            self._add_to_index(graph.function, most, graph.total, graph.converted, graph.casts)

    def write_failure(self, error: AmpError) -> None:
        """Writes why there is nothing after it: the graph is broken, or the result did not pass
        verification.
        """
        if not self._path:
            return
        self._write("failure_AutoMixedPrecision", ".txt", f"{type(error).__name__}: {error}\n")
        self._add_to_index("", "", "failed", "failed", "failed")

    def _add_to_index(self, *columns: object) -> None:
        line = "\t".join(map(str, (self._stamp, self._way, *columns)))
        with _warned_of(self._path):
            file = Path(self._path) / INDEX
            with contextlib.suppress(FileExistsError):
                _append(file, "\t".join(_COLUMNS), os.O_EXCL)
            _append(file, line)

    def _write_graph(self, tag: str, graph: Any) -> None:
        graph = parse_graph(graph) if isinstance(graph, bytes) else graph
        self._write(f"graphdef_{tag}", ".pb", graph.SerializeToString())
        self._write(f"graphdef_{tag}", ".pb.txt", str(graph))

    def _write(self, stem: str, suffix: str, content: str | bytes) -> None:
        from amp_tf.reporting import (
            files,
        )  # where a folder is named, as nothing else of a rewrite needs it

        with _warned_of(self._path):
            folder = Path(self._path)
            folder.mkdir(parents=True, exist_ok=True)
            files.put(folder / f"{stem}_{self._stamp}{suffix}", content)


def _append(file: Path, line: str, *flags: int) -> None:
    """In one write, because processes share the file; not through a link, nor to a pipe on which
    nobody may read.

    With ``O_EXCL`` the file is there with its line, or not at all.
    """
    descriptor = os.open(
        file,
        sum(flags, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK),
        0o666,
    )
    with os.fdopen(descriptor, "ab", buffering=0) as opened:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, f"{INDEX} is no file", str(file))
        data = f"{line}\n".encode()
        try:
            if opened.write(data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file))
        except OSError:
            if os.O_EXCL in flags:
                file.unlink(missing_ok=True)
            raise


@contextlib.contextmanager
def _warned_of(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        _warn_once(path, error.strerror or str(error))


@functools.lru_cache(maxsize=64)
def _warn_once(path: str, why: str) -> None:
    logging.warning(
        "amp_tf: TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_LOG_PATH: cannot write to %r (%s). "
        "Rewrites go on without log files; name a folder that can be written.",
        path,
        why,
    )
