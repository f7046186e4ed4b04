"""The rewrite: read, prepare, paint, plan, apply, verify."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from amp_tf.config import AmpConfig
from amp_tf.errors import AmpError, GraphError, RewriteError
from amp_tf.graph import editor, verify
from amp_tf.graph.datatypes import Unit
from amp_tf.graph.edits import NO_EDITS, Edits
from amp_tf.graph.reader import read_function, read_graph, read_nodes
from amp_tf.graph.sizes import Shapes
from amp_tf.graph.view import GraphView
from amp_tf.graph.wire import SerializedGraph, parse_graph, read_table
from amp_tf.oplists import op_names
from amp_tf.oplists.hardware import Hardware
from amp_tf.oplists.targets import Resolution, resolve_target
from amp_tf.painting.outcome import Painting
from amp_tf.reporting.schema import GraphReport, RewriteReport
from amp_tf.rewriting.arguments import check_arguments, graph_def_of, serialize
from amp_tf.rewriting.delaying import delay
from amp_tf.rewriting.folding import fold
from amp_tf.rewriting.form import Form, Job
from amp_tf.rewriting.garbage import pause_garbage_collector
from amp_tf.rewriting.hoisting import with_early_reads
from amp_tf.rewriting.late_casts import make_late
from amp_tf.rewriting.lifting import lift
from amp_tf.rewriting.list_makers import part_lists
from amp_tf.rewriting.log_files import Log
from amp_tf.rewriting.planning import plan_edits
from amp_tf.rewriting.recording import report_of
from amp_tf.rewriting.shared_lists import find_narrow_units
from amp_tf.rewriting.shared_reads import share_reads
from amp_tf.rewriting.splitting import split, with_split_products

#: What changes a graph before it is painted, in order; each gives the form itself where it finds nothing to do.
PREPARATIONS: tuple[Callable[[Form, Job], Form], ...] = (split, part_lists, share_reads, fold, lift, delay)


@dataclasses.dataclass(frozen=True)
class RewriteResult:
    """What a rewrite gives.

    Attributes:
        graph: the new GraphDef or FunctionDef; the one that was passed in, untouched, where nothing changed.
        report: what was converted, what was not, and why.
        changed: whether ``graph`` differs from what was passed in.
    """

    graph: Any
    report: RewriteReport
    changed: bool


@pause_garbage_collector()
def rewrite(
    graph: Any,
    config: AmpConfig | None = None,
    *,
    preserve: Iterable[str] = (),
    hardware: Hardware | None = None,
    library: Any = None,
    functions: bool = True,
    shapes: Shapes | None = None,
    stores_weights: bool = False,
) -> RewriteResult:
    """Rewrites a graph or a function so that it computes in mixed precision.

    Matrix products and convolutions, and what can follow them safely, run in float16 or bfloat16; Cast nodes are
    inserted where precisions meet; everything else stays in float32. The method is that of TensorFlow's
    AutoMixedPrecision pass (core/grappler/optimizers/auto_mixed_precision.cc).

    Args:
        graph: a ``GraphDef`` or ``FunctionDef``, or a ``tf.Graph`` or concrete function, whose GraphDef is taken; it is
            not modified. The inputs and outputs of a concrete function are preserved.
        config: what to convert; the environment's settings by default.
        preserve: names of nodes that must stay as they are, such as feeds and fetches. The arguments and results of
            functions keep their types always.
        hardware: the devices to rewrite for; this machine's CPU by default.
        library: for a FunctionDef, the ``FunctionDefLibrary`` with the functions that it calls.
        functions: for a GraphDef, whether the functions of its library are rewritten too.
        shapes: the static shapes of the graph's own tensors, for the cost model; by default those that its nodes carry
            (``as_graph_def(add_shapes=True)``).
        stores_weights: the cost model reckons that variables will be stored in 16 bit, as by
            ``convert_saved_model(…, weights="f16")``, so that casts of them are not paid.

    Returns:
        A :class:`RewriteResult`. rewrite(rewrite(g)) = rewrite(g).

    Raises:
        ConfigError: a setting from the environment means nothing, or an argument is not what it should be.
        OpListError: a change of the lists names an op that TensorFlow does not know.
        GraphError: the graph is broken, is not a graph, or has no node that is to be preserved; the message names
            function, node and port.
        RewriteError: the result did not pass verification; this is a bug of amp_tf.
    """
    graph, preserve = graph_def_of(graph, preserve)
    names = check_arguments(graph, config, preserve, hardware, library, shapes)
    config = AmpConfig.from_env() if config is None else config
    resolution = settle(config, Hardware.detect_cpu() if hardware is None else hardware)
    resolution = dataclasses.replace(resolution, stores_weights=stores_weights)

    def work() -> tuple[Any, list[GraphReport]]:
        if hasattr(graph, "node_def"):
            job = Job.of(config, resolution, library, names, has_preserved=True)
            return _rewrite_function(graph, job, shapes)
        serialized = SerializedGraph(serialize(graph))
        job = Job.of(config, resolution, serialized.library, names, has_preserved=True)
        data, reports = _rewrite_graph(serialized, job, shapes, functions)
        return parse_graph(data) if data else graph, reports

    return _logged(graph, work, Log(config, resolution))


@pause_garbage_collector()
def rewrite_program(
    root: Any, functions: Sequence[Any], config: AmpConfig, hardware: Hardware, library: Any, traced: Any = None
) -> list[RewriteResult]:
    """Rewrites a function and those that it calls as :func:`rewrite` does each, and TensorLists that they share.

    Args:
        root: a FunctionDef, which others call, too.
        functions: those that it calls, and they, as far as they may be rewritten; their callers are ``root`` and they.
        library: a FunctionDefLibrary with all that is called.
        traced: TensorFlow's AtomicFunction of ``root``, from which a report has shapes.

    Returns:
        The results, ``root``'s first.
    """
    resolution = settle(config, hardware)
    program = {function.signature.name: function for function in (root, *functions)}
    job = Job.of(config, resolution, library, root=root, traced=traced)
    narrow: Mapping[str, Sequence[Unit]] = {}
    if any("TensorList" in node.op for function in functions for node in function.node_def):
        views = {name: read_function(function, job.templates) for name, function in program.items()}
        paintings = {name: job.paint(job.form(view, None)) for name, view in views.items()}
        narrow = find_narrow_units(paintings, root.signature.name)
    results = []
    for name, function in program.items():
        work = functools.partial(_rewrite_function, function, dataclasses.replace(job, narrow=narrow.get(name, ())))
        results.append(_logged(function, work, Log(config, resolution, "xla")))
    return results


@pause_garbage_collector()
def rewrite_serialized(
    graph: bytes,
    config: AmpConfig,
    *,
    hardware: Hardware,
    preserve: Iterable[str] = (),
    functions: bool = True,
    shapes: Shapes | None = None,
) -> RewriteResult:
    """Rewrites a serialized GraphDef as :func:`rewrite` does; the result's ``graph`` is serialized too.

    No more than a part of the graph is parsed at a time, so this takes about a third of the memory.
    """
    resolution = settle(config, hardware)

    def work() -> tuple[bytes, list[GraphReport]]:
        serialized = SerializedGraph(graph)
        job = Job.of(config, resolution, serialized.library, frozenset(preserve))
        data, reports = _rewrite_graph(serialized, job, shapes, functions)
        return data or graph, reports

    return _logged(graph, work, Log(config, resolution, "grappler"))


def settle(config: AmpConfig, hardware: Hardware) -> Resolution:
    """What is converted on some hardware.

    Raises:
        OpListError: a change of the lists names an op that TensorFlow does not know, or contradicts another.
    """
    op_names.check(config)
    return resolve_target(config, hardware)


def _logged(graph: Any, work: Callable[[], tuple[Any, list[GraphReport]]], log: Log) -> RewriteResult:
    """The result of the work on a graph, which gives the new graph, or the graph itself; with its log files."""
    log.write_before(graph)
    try:
        result, reports = work()
    except AmpError as error:
        log.write_failure(error)
        raise
    report = RewriteReport(tuple(reports))
    log.write_after(result, report)
    return RewriteResult(result, report, result is not graph)


def prepare(form: Form, job: Job) -> Form:
    """The graph as it is painted: what fused or shared nodes hold is apart, what can be computed together adjoins."""
    for change in PREPARATIONS:
        form = change(form, job)
    return form


def decide(given: Form, job: Job) -> tuple[Form, Painting, Edits]:
    """Prepare, paint, plan: the graph as it was painted, its painting, and the edits that this asks for.

    In functions nothing is folded or moved.
    """
    if given.view.function:
        painting = job.paint(given)
        return given, painting, plan_edits(painting)
    prepared = prepare(given, job)
    for candidate in (prepared, given) if prepared.edits else (given,):  # dropped where nothing becomes 16 bit
        form, painting = with_split_products(*with_early_reads(candidate, job), job)
        if casts := plan_edits(painting):
            break
    if job.config.goal == "memory":
        casts = make_late(form, painting, casts)
    return form, painting, casts


def _rewrite_function(function: Any, job: Job, shapes: Shapes | None = None) -> tuple[Any, list[GraphReport]]:
    """Read, decide, apply, verify: the new FunctionDef; the function itself if no node changed."""
    view = read_function(function, job.templates)
    form, painting, casts = decide(job.form(view, shapes), job)
    report = report_of(form, painting, casts, job, function)
    result = function
    if casts:
        result = editor.apply_to_function(function, view.names, view.signatures, casts)
        _verify(view, lambda: read_function(result, job.templates))
    return result, [report]


def _rewrite_nodes(graph: SerializedGraph, job: Job, shapes: Shapes | None, rest: bytes) -> tuple[bytes, GraphReport]:
    """Read, decide, apply, verify: the new nodes and what follows; nothing if none changed."""
    view = read_graph(graph, job.templates)
    given = job.form(view, shapes)
    form, painting, casts = decide(given, job)
    report = report_of(form, painting, casts, job, given=given)
    if not casts:
        return b"", report
    result = editor.apply_to_graph(graph.node, view.names, form.edits.then(casts), rest)
    del casts  # verification takes the most memory
    names = painting.view.names
    _verify(view, lambda: read_nodes(read_table(result), job.templates, names), form)
    return result, report


def _rewrite_graph(
    graph: SerializedGraph, job: Job, shapes: Shapes | None, functions: bool
) -> tuple[bytes, list[GraphReport]]:
    """The new graph with its library; nothing if it did not change."""
    rest, reports = graph.rest_data, []
    if functions:
        reports = _rewrite_library(graph.library, dataclasses.replace(job, preserve=frozenset()))
        if any(function.converted for function in reports):
            rest = graph.rest.SerializeToString()
    result, report = _rewrite_nodes(graph, job, shapes, rest)
    if not result and rest is not graph.rest_data:
        result = editor.apply_to_graph(graph.node, (), NO_EDITS, rest)
    return result, [report, *reports]


def _rewrite_library(library: Any, job: Job) -> list[GraphReport]:
    """Rewrites functions in place; those whose types each call chooses are left alone."""
    reports = []
    for function in library.function:
        if function.signature.attr:
            continue
        new_function, function_reports = _rewrite_function(function, job)
        reports += function_reports
        if new_function is not function:
            function.CopyFrom(new_function)
    return reports


def _verify(before: GraphView, read: Callable[[], GraphView], form: Form | None = None) -> None:
    """Judges a result of ours, which is read here: what is wrong with it is no mistake of the graph's."""
    cause = None
    try:
        edited = (form.edits, form.view) if form else ()
        violation = verify.find_violation(before, read(), *edited)
    except GraphError as error:
        violation, cause = f"{error.where}: {error.what}", error
    if violation:
        raise RewriteError(
            f"the rewritten graph did not pass verification: {violation}",
            fix="This is a bug of amp_tf; please report it with the graph. The original graph is untouched",
        ) from cause
