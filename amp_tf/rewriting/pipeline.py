"""The rewrite: read, paint, plan, apply, verify."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from amp_tf.config import AmpConfig
from amp_tf.errors import AmpError, ConfigError, GraphError, RewriteError
from amp_tf.graph import editor, verify
from amp_tf.graph.moving import Moves
from amp_tf.graph.plan import EditPlan
from amp_tf.graph.reader import read_function, read_graph, read_nodes
from amp_tf.graph.serialized import NodesUnderEdit, NodeTable, SerializedGraph, parse_graph, read_table
from amp_tf.graph.sizes import AttributeShapes, NoShapes, Shapes
from amp_tf.graph.templates import Templates
from amp_tf.graph.view import GraphView
from amp_tf.oplists import op_names
from amp_tf.oplists.hardware import Hardware
from amp_tf.oplists.table import ALLOW, SUCCESSORS
from amp_tf.oplists.targets import Resolution, resolve_target
from amp_tf.painting.eligibility import Obstacles, find_obstacles
from amp_tf.painting.folded import NOTHING_FOLDED, Folded
from amp_tf.painting.paint import paint
from amp_tf.painting.painting import Painting
from amp_tf.painting.reasons import Reason
from amp_tf.reporting.schema import GraphReport, RewriteReport
from amp_tf.rewriting import log_files
from amp_tf.rewriting.folding import FoldedGraph, fold
from amp_tf.rewriting.garbage import pause_garbage_collector
from amp_tf.rewriting.hoisting import find_loop_reads, hoist, paint_hoisted
from amp_tf.rewriting.planning import CAST_SUFFIX, plan_edits


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


@dataclasses.dataclass(frozen=True)
class _Job:
    """What stays the same for the graph and all functions of one rewrite."""

    config: AmpConfig
    resolution: Resolution
    templates: Templates

    def paint(
        self, view: GraphView, preserve: Iterable[str], shapes: Shapes | None, folded: Folded = NOTHING_FOLDED
    ) -> Painting:
        return paint(
            view,
            self.resolution,
            self.config,
            preserve=preserve,
            is_function=self.templates.is_function,
            shapes=shapes,
            folded=folded,
        )

    def fold(self, graph: FoldedGraph, preserve: Iterable[str]) -> FoldedGraph | None:
        """The graph with normalization folded, ``None`` where there is nothing to fold.

        It is folded only where amp_tf chooses the precision: naming one means TensorFlow's own conversion.
        """
        if not self.resolution.is_thrifty:
            return None
        with _telling_bugs():
            return fold(graph.nodes, graph.view, graph.shapes, lambda: self._obstacles(graph, preserve), self.templates)

    def paint_form(self, graph: FoldedGraph, preserve: Iterable[str]) -> tuple[FoldedGraph, Painting]:
        """The painting of a graph in which variables are read before loops, likewise only where amp_tf chooses."""

        def paint(form: FoldedGraph) -> Painting:
            return self.paint(form.view, preserve, form.shapes, form.folded)

        def move(moves: Moves) -> FoldedGraph:
            with _telling_bugs():
                return hoist(graph, moves, self.templates)

        target = self.resolution.target
        if target is None or not self.resolution.is_thrifty:
            return graph, paint(graph)
        products = frozenset(target.lists.members(ALLOW))
        is_function = self.templates.is_function
        reads = find_loop_reads(graph.view, products, lambda: self._obstacles(graph, preserve), is_function)
        return paint_hoisted(graph, reads, products, move, paint)

    def _obstacles(self, graph: FoldedGraph, preserve: Iterable[str]) -> Obstacles:
        return find_obstacles(graph.view, self.resolution, self.config, preserve)


_MakeJob = Callable[[Any], _Job]  # takes the function library


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
        graph: a ``GraphDef`` or ``FunctionDef``; it is not modified.
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
        ConfigError: a setting from the environment means nothing, ``config`` is none, or ``preserve`` holds what is no
            node's name.
        OpListError: the lists contradict each other, or a change of them names an op that TensorFlow does not know.
        GraphError: the graph is broken, or is none; the message names function, node and port.
        RewriteError: the result did not pass verification; this is a bug of amp_tf.
    """
    preserve = _check_arguments(graph, config, preserve)

    def work(make_job: _MakeJob) -> tuple[Any, list[GraphReport]]:
        if hasattr(graph, "node_def"):
            return _rewrite_function(graph, make_job(library), preserve, shapes)
        result, reports = _rewrite_graph(_serialize(graph), make_job, preserve, shapes, functions)
        return parse_graph(result) if result else graph, reports

    return _run(graph, config, hardware, work)


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

    def work(make_job: _MakeJob) -> tuple[Any, list[GraphReport]]:
        result, reports = _rewrite_graph(graph, make_job, preserve, shapes, functions)
        return result or graph, reports

    return _run(graph, config, hardware, work, parse_graph)


def _run(
    given: Any,
    config: AmpConfig | None,
    hardware: Hardware | None,
    work: Callable[[_MakeJob], tuple[Any, list[GraphReport]]],
    to_proto: Callable[[Any], Any] = lambda graph: graph,
) -> RewriteResult:
    """Settles what is converted here, has the work done, and writes the log files."""
    config = AmpConfig.from_env() if config is None else config
    op_names.check(config)
    resolution = resolve_target(config, Hardware.detect_cpu() if hardware is None else hardware)
    log = log_files.Log(config)
    log.write_before(lambda: to_proto(given), resolution)
    with pause_garbage_collector():
        try:
            result, reports = work(lambda library: _Job(config, resolution, Templates(library, SUCCESSORS)))
        except AmpError as error:
            log.write_failure(error)
            raise
    report = RewriteReport(tuple(reports))
    log.write_after(lambda: to_proto(result), report)
    return RewriteResult(result, report, result is not given)


def _check_arguments(graph: Any, config: Any, preserve: Iterable[str]) -> frozenset[str]:
    """Refuses what is no graph, configuration or name of a node. Returns the nodes to preserve."""
    if not hasattr(graph, "node_def") and not hasattr(graph, "library"):
        raise GraphError(
            f"expected a GraphDef or a FunctionDef, got {type(graph).__name__}",
            where="rewrite(graph)",
            fix="Of a tf.Graph or a concrete function's graph, as_graph_def() gives the GraphDef",
        )
    if config is not None and not isinstance(config, AmpConfig):
        raise ConfigError(
            f"expected an AmpConfig, got {type(config).__name__}",
            where="rewrite(config)",
            fix='Write for instance amp_tf.AmpConfig(precision="bfloat16")',
        )
    if isinstance(preserve, str):
        raise ConfigError(
            f"{preserve!r} is one string, not several node names",
            where="rewrite(preserve=…)",
            fix=f"Write preserve=[{preserve!r}]",
        )
    names = list(preserve)
    for name in names:
        if not isinstance(name, str) or ":" in name or name.startswith("^"):
            raise ConfigError(
                f"{name!r} is no node's name, and would preserve nothing",
                where="rewrite(preserve=…)",
                fix="Name nodes: 'logits' has the output 'logits:0'. A tensor's node is tensor.op.name",
            )
    return frozenset(names)


def _serialize(graph: Any) -> bytes:
    from google.protobuf.message import EncodeError

    try:
        return graph.SerializeToString()  # type: ignore[no-any-return]
    except EncodeError as error:
        raise GraphError(
            f"the graph cannot be serialized ({error})",
            where="rewrite(graph)",
            fix="A GraphDef holds at most 2 GiB; keep large constants in variables",
        ) from error


def _rewrite_graph(
    data: bytes,
    make_job: _MakeJob,
    preserve: Iterable[str],
    shapes: Shapes | None,
    functions: bool,
) -> tuple[bytes, list[GraphReport]]:
    """The new graph; nothing if it did not change."""
    graph = SerializedGraph(data)
    job = make_job(graph.library)
    rest, reports = graph.rest_data, []
    if functions:
        reports = _rewrite_library(graph.library, job)
        if any(function.converted for function in reports):
            rest = graph.rest.SerializeToString()
    result, report = _rewrite_nodes(graph, job, preserve, shapes, rest)
    if not result and rest is not graph.rest_data:
        result = NodesUnderEdit(graph.node).serialize(rest)
    return result, [report, *reports]


def _rewrite_nodes(
    graph: SerializedGraph, job: _Job, preserve: Iterable[str], shapes: Shapes | None, rest: bytes
) -> tuple[bytes, GraphReport]:
    """The new graph with what comes after its nodes; nothing if no node changed."""
    view = read_graph(graph, job.templates)
    preserve = frozenset(preserve)
    if shapes is None:
        shapes = AttributeShapes(view.protos) if job.resolution.is_thrifty else NoShapes()
    given = FoldedGraph(graph.node, view, shapes, NOTHING_FOLDED)
    folded = job.fold(given, preserve)
    if folded is not None:
        result, report = _convert_nodes(*job.paint_form(folded, preserve), job, rest)
        if result:
            return result, report
    return _convert_nodes(*job.paint_form(given, preserve), job, rest)


def _convert_nodes(graph: FoldedGraph, painting: Painting, job: _Job, rest: bytes) -> tuple[bytes, GraphReport]:
    view, plan = painting.view, plan_edits(painting)
    casts, result = len(plan.casts), b""
    if plan:
        result = _edit(graph.nodes, view, plan).serialize(rest)
        del plan  # verification takes the most memory
        _verify(view, lambda: read_nodes(read_table(result), job.templates, view.names))
    return result, _report(painting, casts, len(graph.folded.scales))


def _edit(original: NodeTable, view: GraphView, plan: EditPlan) -> NodesUnderEdit:
    retyped, left = editor.retype_in_place(original, view, plan)
    nodes = NodesUnderEdit(retyped, left.edited_nodes())
    editor.apply_to_graph(nodes, view, left)
    return nodes


def _rewrite_function(
    function: Any, job: _Job, preserve: Iterable[str] = (), shapes: Shapes | None = None
) -> tuple[Any, list[GraphReport]]:
    view = read_function(function, job.templates)
    painting = job.paint(view, preserve, shapes)
    plan = plan_edits(painting)
    report = _report(painting, len(plan.casts))
    if not plan:
        return function, [report]
    result = type(function)()
    result.CopyFrom(function)
    editor.apply_to_function(result, view, plan)
    _verify(view, lambda: read_function(result, job.templates))
    return result, [report]


def _rewrite_library(library: Any, job: _Job) -> list[GraphReport]:
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


def _report(painting: Painting, casts: int, folded: int = 0) -> GraphReport:
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
        is_revisit=f"{CAST_SUFFIX}\n" in "\n".join([*painting.view.names, ""]),
        painting=kept,
    )


@contextlib.contextmanager
def _telling_bugs() -> Iterator[None]:
    """What a pass of ours finds wrong with its own result is no mistake of the graph's."""
    try:
        yield
    except GraphError as error:
        raise _bug(f"{error.where}: {error.what}") from error


def _verify(before: GraphView, reread: Callable[[], GraphView]) -> None:
    with _telling_bugs():
        after = reread()
    violation = verify.find_violation(before, after)
    if violation:
        raise _bug(violation)


def _bug(what: str) -> AmpError:
    return RewriteError(
        f"the rewritten graph did not pass verification: {what}",
        fix="This is a bug of amp_tf; please report it with the graph. The original graph is untouched",
    )
