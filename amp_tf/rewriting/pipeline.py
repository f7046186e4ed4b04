"""The rewrite: read, prepare, paint, plan, apply, verify."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from amp_tf.config import AmpConfig
from amp_tf.errors import GraphError, RewriteError
from amp_tf.graph import editor, verify
from amp_tf.graph.edits import NO_EDITS, Edits
from amp_tf.graph.indices import Unit
from amp_tf.graph.reader import read_function, read_graph, read_nodes
from amp_tf.graph.serialized import SerializedGraph, parse_graph, read_table
from amp_tf.graph.sizes import Shapes
from amp_tf.graph.view import GraphView
from amp_tf.oplists.hardware import Hardware
from amp_tf.painting.outcome import Painting
from amp_tf.painting.reasons import Reason
from amp_tf.reporting.basis import Basis
from amp_tf.reporting.schema import GraphReport, RewriteReport
from amp_tf.rewriting.arguments import check_arguments, graph_def_of, serialize
from amp_tf.rewriting.folding import fold
from amp_tf.rewriting.form import Form, Job
from amp_tf.rewriting.hoisting import with_early_reads
from amp_tf.rewriting.lifting import lift
from amp_tf.rewriting.list_makers import part_lists
from amp_tf.rewriting.planning import CAST_SUFFIX, plan_edits
from amp_tf.rewriting.recording import basis_of
from amp_tf.rewriting.run import Run
from amp_tf.rewriting.shared_lists import find_narrow_units
from amp_tf.rewriting.shared_reads import share_reads
from amp_tf.rewriting.splitting import split, with_split_products

#: What changes a graph before it is painted, in order; each gives the form itself where it finds nothing to do.
PREPARATIONS: tuple[Callable[[Form, Job], Form], ...] = (split, part_lists, share_reads, fold, lift)


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


def rewrite(
    graph: Any,
    config: AmpConfig | None = None,
    *,
    preserve: Iterable[str] = (),
    hardware: Hardware | None = None,
    library: Any = None,
    functions: bool = True,
    shapes: Shapes | None = None,
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
    preserve = check_arguments(graph, config, preserve, hardware, library, shapes)
    run = Run(config, hardware, has_preserved=True)
    with run.working(lambda: graph):
        if hasattr(graph, "node_def"):
            result, reports = _rewrite_function(graph, run.job(library, preserve), shapes)
        else:
            data, reports = _rewrite_graph(serialize(graph), run, preserve, shapes, functions)
            result = parse_graph(data) if data else graph
    report = RewriteReport(tuple(reports))
    run.end(lambda: result, report)
    return RewriteResult(result, report, result is not graph)


def rewrite_program(
    root: Any, functions: Sequence[Any], config: AmpConfig, hardware: Hardware, library: Any
) -> list[RewriteResult]:
    """Rewrites a function and those that it calls as :func:`rewrite` does each, and TensorLists that they share.

    Args:
        root: a FunctionDef, which others call, too.
        functions: those that it calls, and they, as far as they may be rewritten; their callers are ``root`` and they.
        library: a FunctionDefLibrary with all that is called.

    Returns:
        The results, ``root``'s first.
    """
    run = Run(config, hardware)
    program = {function.signature.name: function for function in (root, *functions)}
    job = run.job(library, frozenset(), root)
    narrow: Mapping[str, Sequence[Unit]] = {}
    if any("TensorList" in node.op for function in functions for node in function.node_def):
        views = {name: read_function(function, job.templates) for name, function in program.items()}
        paintings = {name: job.paint(job.form(view, None)) for name, view in views.items()}
        narrow = find_narrow_units(paintings, root.signature.name)
    results = []
    for name, function in program.items():
        run = Run(config, hardware)
        with run.working(functools.partial(program.get, name)):
            result, reports = _rewrite_function(function, dataclasses.replace(job, narrow=narrow.get(name, ())))
        results.append(RewriteResult(result, RewriteReport(tuple(reports)), result is not function))
        run.end(lambda: results[-1].graph, results[-1].report)
    return results


def rewrite_serialized(
    graph: bytes,
    config: AmpConfig | None = None,
    *,
    preserve: Iterable[str] = (),
    hardware: Hardware | None = None,
    functions: bool = True,
    shapes: Shapes | None = None,
) -> RewriteResult:
    """Rewrites a serialized GraphDef as :func:`rewrite` does; the result's ``graph`` is serialized too.

    No more than a part of the graph is parsed at a time, so this takes about a third of the memory.
    """
    run = Run(config, hardware)
    with run.working(lambda: parse_graph(graph)):
        result, reports = _rewrite_graph(graph, run, frozenset(preserve), shapes, functions)
    report = RewriteReport(tuple(reports))
    run.end(lambda: parse_graph(result or graph), report)
    return RewriteResult(result or graph, report, bool(result))


def prepare(form: Form, job: Job) -> Form:
    """The graph as it is painted: what fused or shared nodes hold is apart, what can be computed together adjoins."""
    for change in PREPARATIONS:
        form = change(form, job)
    return form


def _rewrite_nodes(graph: SerializedGraph, job: Job, shapes: Shapes | None, rest: bytes) -> tuple[bytes, GraphReport]:
    """Read, prepare, paint, plan, apply, verify: the new nodes and what follows; nothing if none changed."""
    view = read_graph(graph, job.templates)
    given = job.form(view, shapes)
    prepared = prepare(given, job)
    for candidate in (prepared, given) if prepared.edits else (given,):  # dropped where nothing becomes 16 bit
        form, painting = with_split_products(*with_early_reads(candidate, job), job)
        if casts := plan_edits(painting):
            break
    report = _report(painting, len(casts.new), len(form.folded.scales), basis_of(form, painting, casts, job))
    if not casts:
        return b"", report
    result = editor.apply_to_graph(graph.node, view.names, form.edits.then(casts), rest)
    del casts  # verification takes the most memory
    names = painting.view.names
    _verify(view, lambda: read_nodes(read_table(result), job.templates, names), form.edits, job)
    return result, report


def _rewrite_function(function: Any, job: Job, shapes: Shapes | None = None) -> tuple[Any, list[GraphReport]]:
    """The new FunctionDef, in which nothing is folded or moved; the function itself if no node changed."""
    view = read_function(function, job.templates)
    form = job.form(view, shapes)
    painting = job.paint(form)
    casts = plan_edits(painting)
    report = _report(painting, len(casts.new), 0, basis_of(form, painting, casts, job, function))
    result = function
    if casts:
        result = editor.apply_to_function(function, view.names, view.signatures, casts)
        _verify(view, lambda: read_function(result, job.templates), NO_EDITS, job)
    return result, [report]


def _rewrite_graph(
    data: bytes, run: Run, preserve: frozenset[str], shapes: Shapes | None, functions: bool
) -> tuple[bytes, list[GraphReport]]:
    """The new graph with its library; nothing if it did not change."""
    graph = SerializedGraph(data)
    job = run.job(graph.library, preserve)
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


def _report(painting: Painting, casts: int, folded: int, basis: Basis | None) -> GraphReport:
    kept = painting.detached()
    rule = painting.why_nothing
    return GraphReport(
        function=painting.view.function,
        way="offline",
        precision=painting.precision,
        total=painting.view.node_count,
        converted=len(painting.converted_nodes()),
        casts=casts,
        folded=folded,
        why_nothing=None if rule is None else Reason(rule, detail=painting.detail),
        unmatched=painting.unmatched,
        of_scopes=painting.of_scopes,
        is_revisit=f"{CAST_SUFFIX}\n" in "\n".join([*painting.view.names, ""]),
        painting=kept,
        basis=basis,
    )


def _verify(before: GraphView, read: Callable[[], GraphView], edits: Edits, job: Job) -> None:
    """Judges a result of ours, which is read here: what is wrong with it is no mistake of the graph's."""
    cause = None
    try:
        violation = verify.find_violation(before, read(), edits, job.templates)
    except GraphError as error:
        violation, cause = f"{error.where}: {error.what}", error
    if violation:
        raise RewriteError(
            f"the rewritten graph did not pass verification: {violation}",
            fix="This is a bug of amp_tf; please report it with the graph. The original graph is untouched",
        ) from cause
