"""The rewrite: read, prepare, paint, plan, apply, verify."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import gc
import importlib
import itertools
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

from amp_tf.config import AmpConfig
from amp_tf.errors import GraphError, RewriteError
from amp_tf.graph import editor, verify
from amp_tf.graph.datatypes import Unit
from amp_tf.graph.edits import Edits
from amp_tf.graph.inference import BatchShapes
from amp_tf.graph.protos import parse_graph
from amp_tf.graph.reader import read_function, read_graph
from amp_tf.graph.sizes import Shape, Shapes
from amp_tf.graph.templates import referenced, rename_functions
from amp_tf.graph.view import GraphView
from amp_tf.oplists import op_names
from amp_tf.oplists.hardware import Hardware
from amp_tf.oplists.targets import Resolution, hardware_for, resolve_target
from amp_tf.reporting.graphs import GraphReport
from amp_tf.reporting.reports import RewriteReport
from amp_tf.rewriting.arguments import check_arguments, graph_def_of
from amp_tf.rewriting.form import Form, Job, Pass, Program
from amp_tf.rewriting.hoisting import hoist
from amp_tf.rewriting.holding import delay, make_late
from amp_tf.rewriting.loop_casts import move_casts
from amp_tf.rewriting.planning import plan_edits
from amp_tf.rewriting.recording import Log, report_of
from amp_tf.rewriting.sharing import find_narrow_units, part_lists, share_reads
from amp_tf.rewriting.splitting import split, split_in_float32
from amp_tf.values import check_batch


def _run_late(module: str, name: str, form: Form) -> Form:
    """Runs a pass of a module that is imported where it is needed."""
    found: Form = getattr(importlib.import_module(f"amp_tf.rewriting.{module}"), name)(form)
    return found


#: The passes that change a graph before its types are decided, in order. Fused or shared nodes come
#: apart, and nodes that can be computed together become neighbours.
PREPARATIONS = (
    Pass("split", "converts", split),
    Pass("part lists", "converts", part_lists),
    Pass("share reads", "converts", share_reads),
    Pass("fold", "folds", functools.partial(_run_late, "folding", "fold"), changes_functions=True),
    Pass("lift", "lifts", functools.partial(_run_late, "lifting", "lift"), changes_functions=True),
    Pass("delay", "saves_memory", delay),
)
#: The passes that change a graph where a painting shows that it helps.
CORRECTIONS = (
    Pass("hoist", "converts", hoist),
    Pass("split in float32", "converts", split_in_float32),
)


# Numbers the clones of functions. TensorFlow has all functions of a process by name, so no number
# may come twice in a process.
clone_numbers = itertools.count()


@contextlib.contextmanager
def pause_garbage_collector() -> Iterator[None]:
    """Keeps Python's cyclic garbage collector out of a rewrite or a report, for the length of a
    ``with`` block.

    Reading a graph makes tens of thousands of small objects, none of them in a cycle. Each few
    thousand start a collection, and in a process that holds TensorFlow and Keras a full one takes
    about 0.2 s, several times the rewrite itself (measured with cProfile on ResNet-50's training
    graph). It is turned on again by whoever found it on.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@dataclasses.dataclass(frozen=True)
class RewriteResult:
    """The result of a rewrite.

    Attributes:
        graph: the new GraphDef or FunctionDef; the given one, untouched, where nothing changed.
        report: what was converted, what was not, and why.
        changed: whether ``graph`` differs from the given one.
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
    batch: int | tuple[int, int] | None = None,
    beyond_range: Mapping[str, Container[str]] | None = None,
) -> RewriteResult:
    """Rewrites a graph or a function so that it computes in mixed precision.

    Matrix products and convolutions, and nodes that can follow them safely, run in float16 or
    bfloat16. Cast nodes are inserted where precisions meet. Everything else stays in float32. The
    method is that of TensorFlow's AutoMixedPrecision pass
    (core/grappler/optimizers/auto_mixed_precision.cc).

    Args:
        graph: a ``GraphDef`` or ``FunctionDef``, or a ``tf.Graph`` or concrete function, whose
            GraphDef is taken; it is not modified. The inputs and outputs of a concrete function are
            preserved.
        config: what to convert; the environment's settings by default.
        preserve: names of nodes that must stay as they are, such as feeds and fetches. The
            arguments and results of functions keep their types always.
        hardware: the devices to rewrite for; by default any current GPU for the target ``gpu``, a
            CPU with kernels of bfloat16 for ``cpu``, else this machine's CPU.
        library: for a FunctionDef, the ``FunctionDefLibrary`` with the functions that it calls.
        functions: for a GraphDef, whether the functions of its library are rewritten too.
        shapes: the static shapes of the graph's own tensors, for the cost model; by default those
            that its nodes carry (``as_graph_def(add_shapes=True)``).
        stores_weights: whether variables will be stored in 16 bit, as by ``convert_saved_model(…,
            weights="f16")``, so that the cost model counts no casts of them.
        batch: the batch size that the cost model takes if the graph leaves it open, or the smallest
            and the largest. By default nodes must be faster both for a single example and for a
            large batch.
        beyond_range: by function, ``""`` for the graph itself, the names of nodes that give values
            of variables which the 16-bit type cannot hold. Nodes that compute with them stay in
            float32.

    Returns:
        A :class:`RewriteResult`. rewrite(rewrite(g)) = rewrite(g).

    Raises:
        ConfigError: a setting from the environment means nothing, or an argument is not what it
            should be.
        OpListError: a change of the lists names an op that TensorFlow does not know.
        GraphError: the graph is broken, is not a graph, or has no node that is to be preserved; the
            message names function, node and port.
        RewriteError: the result did not pass verification; this is a bug of amp_tf.
    """
    graph, preserve = graph_def_of(graph, preserve)
    names = check_arguments(graph, config, preserve, hardware, library, shapes)
    sizes = check_batch(batch, where="rewrite(batch=…)")
    if config is None:
        config = AmpConfig.from_env()
    resolution = settle(config, hardware)
    resolution = dataclasses.replace(resolution, stores_weights=stores_weights)

    is_function = hasattr(graph, "node_def")
    batches = BatchShapes(graph, library if is_function else graph.library, sizes)
    known = {"is_callers": True, "batches": batches, "beyond_range": beyond_range or {}}

    def work() -> tuple[Any | None, list[GraphReport]]:
        if is_function:
            job = Job.of(config, resolution, library, names, **known)
            result, report = _rewrite_nodes(graph, job, shapes)
            return result, [report]
        own = graph
        if functions and graph.library.function:  # these are changed in their place
            own = copy.deepcopy(graph)
        job = Job.of(config, resolution, own.library, names, **known)
        return _rewrite_graph(own, job, shapes, functions)

    return _logged(graph, work, Log(config, resolution, library))


@pause_garbage_collector()
def rewrite_program(
    root: Any,
    functions: Sequence[Any],
    config: AmpConfig,
    hardware: Hardware,
    library: Any,
    traced: Any = None,
) -> list[RewriteResult]:
    """Rewrites a function and those that it calls, each as :func:`rewrite` does, with the
    TensorLists that they share.

    Args:
        root: the FunctionDef of the function, which has callers outside of the program.
        functions: the functions that ``root`` calls, directly or not, and that may be rewritten;
            they have no other callers.
        library: a FunctionDefLibrary with all that is called.
        traced: TensorFlow's AtomicFunction of ``root``, from which a report has shapes.

    Returns:
        The results, ``root``'s first.
    """
    resolution = settle(config, hardware)
    log = Log(config, resolution, library)
    with log.before([root, *functions]):
        job = Job.of(config, resolution, library, root=root, traced=traced, is_compiled=True)
        results = _rewrite_functions([root, *functions], job)
        moved = move_casts([result.graph for result in results], job.templates)
    for number, result in enumerate(results):
        name = result.graph.signature.name
        if name in moved:
            results[number] = RewriteResult(moved[name], result.report, changed=True)
    reports: list[GraphReport] = []
    for result in results:
        reports += result.report.graphs
    log.write_after([result.graph for result in results], RewriteReport(tuple(reports)))
    return results


def _rewrite_functions(functions: Sequence[Any], job: Job) -> list[RewriteResult]:
    """Rewrites the functions of a program, of which the first has callers outside of it."""
    ops: set[str] = set()
    for function in functions[1:]:
        ops.update(node.op for node in function.node_def)
    program = Program(functions, job)
    narrow: Mapping[str, Sequence[Unit]] = {}
    if any("TensorList" in op for op in ops):
        narrow = find_narrow_units(program.paintings(job.change), functions[0].signature.name)
    results = []
    for function in functions:
        units = narrow.get(function.signature.name, ())
        own = dataclasses.replace(job, program=program, narrow=units)
        result, report = _rewrite_nodes(function, own, None)
        results.append(_result(function, result, [report]))
    return results


def name_clones(
    originals: Sequence[Any], results: Sequence[RewriteResult], *, prefix: str = ""
) -> dict[str, Any]:
    """Clones the functions of a program that change, under new names.

    A callee (a nested call, a branch of an If or Case, the condition or body of a While, a gradient
    function) may have other callers, so it is never changed: its callers here are pointed at the
    clone.

    Args:
        originals: the functions, each after those that it calls; the last is the program, which
            keeps its name.
        results: the result for each of them.
        prefix: begins the names of the clones.

    Returns:
        The changed FunctionDefs, by the names that they had.
    """
    names: dict[str, str] = {}
    changed = {}
    for original, result in zip(originals, results, strict=True):
        name = original.signature.name
        body = result.graph
        if not result.changed:
            called = itertools.chain.from_iterable(map(referenced, body.node_def))
            if names.keys().isdisjoint(called):
                continue
            body = copy.deepcopy(original)
        for node in body.node_def:
            rename_functions(node, names)
        if original is not originals[-1]:
            names[name] = f"{prefix}{name}_amp_tf_{next(clone_numbers)}"
            body.signature.name = names[name]
        changed[name] = body
    return changed


@pause_garbage_collector()
def rewrite_serialized(
    graph: bytes,
    config: AmpConfig,
    *,
    hardware: Hardware,
    preserve: Iterable[str] = (),
    functions: bool = True,
    shapes: Shapes | None = None,
    given: Sequence[Shape | None] = (),
) -> RewriteResult:
    """Rewrites a serialized GraphDef as :func:`rewrite` does; the result is serialized, too.

    Args:
        given: the shapes of the arguments of the call for which the graph is made, as far as they
            are known.
    """
    resolution = settle(config, hardware)

    def work() -> tuple[bytes | None, list[GraphReport]]:
        parsed = parse_graph(graph)
        job = Job.of(config, resolution, parsed.library, frozenset(preserve), given=given)
        result, reports = _rewrite_graph(parsed, job, shapes, functions)
        if result is None:
            return None, reports
        return result.SerializeToString(deterministic=True), reports

    return _logged(graph, work, Log(config, resolution))


def settle(config: AmpConfig, hardware: Hardware | None) -> Resolution:
    """Settles what is converted on some hardware; by default that of :func:`hardware_for`.

    Raises:
        OpListError: a change of the lists names an op that TensorFlow does not know, or contradicts
            another.
    """
    op_names.check(config)
    return resolve_target(config, hardware or hardware_for(config))


def _logged(
    graph: Any, work: Callable[[], tuple[Any | None, list[GraphReport]]], log: Log
) -> RewriteResult:
    """Does the work on a graph, with log files; it gives the new graph, ``None`` for no change."""
    with log.before(graph):
        new, reports = work()
    result = _result(graph, new, reports)
    log.write_after(result.graph, result.report)
    return result


def _result(original: Any, new: Any | None, reports: Iterable[GraphReport]) -> RewriteResult:
    """Makes the result of a graph; the new one is ``None`` where nothing changed."""
    report = RewriteReport(tuple(reports))
    if new is None:
        return RewriteResult(original, report, changed=False)
    return RewriteResult(new, report, changed=True)


def run_passes(form: Form, passes: Iterable[Pass]) -> Form:
    """Returns the form after some passes, as far as its job needs them."""
    for change in passes:
        is_needed = getattr(form.job, change.needed_if)
        if is_needed and (change.changes_functions or not form.view.function):
            form = change.run(form)
    return form


def decide(as_given: Form) -> tuple[Form, Edits]:
    """Prepares, paints and plans.

    Returns the painted form, and the edits of types and casts.
    """
    form = run_passes(run_passes(as_given, PREPARATIONS), CORRECTIONS)
    casts = plan_edits(form.painting)
    if not casts and form.edits:  # nothing becomes 16 bit, so the preparations are dropped
        form = run_passes(as_given, CORRECTIONS)
        casts = plan_edits(form.painting)
    if casts and as_given.job.saves_memory and not as_given.view.function:
        casts = make_late(form, casts)
    return form, casts


def _rewrite_nodes(
    original: Any, job: Job, shapes: Shapes | None
) -> tuple[Any | None, GraphReport]:
    """Reads, decides, applies and verifies.

    Returns the new GraphDef or FunctionDef, or ``None`` if no node changed, and its report.
    """
    is_function = hasattr(original, "node_def")
    read = read_function if is_function else read_graph
    view = read(original, job.templates)
    as_given = job.form(view, shapes)
    form, casts = decide(as_given)
    if is_function:
        report = report_of(form, casts, function=original)
    else:
        report = report_of(form, casts, as_given=as_given)
    if not casts:
        return None, report
    edits = form.edits.then(casts)
    if is_function:
        result = editor.apply_to_function(original, view, edits, form.view.signatures)
    else:
        result = editor.apply_to_graph(original, view.names, edits)
    _verify(view, result, form)
    return result, report


def _rewrite_graph(
    graph: Any, job: Job, shapes: Shapes | None, functions: bool
) -> tuple[Any | None, list[GraphReport]]:
    """Rewrites a GraphDef; functions of the library change in the given graph.

    Returns the new GraphDef, or ``None`` if it did not change, and the reports.
    """
    of_library = dataclasses.replace(job, preserve=frozenset())
    reports = []
    changed = None
    for function in graph.library.function:
        if functions and not function.signature.attr:  # else each call chooses its types
            result, report = _rewrite_nodes(function, of_library, None)
            reports.append(report)
            if result is not None:
                function.CopyFrom(result)
                changed = graph
    result, report = _rewrite_nodes(graph, job, shapes)
    if result is None:
        result = changed
    return result, [report, *reports]


def _verify(before: GraphView, result: Any, form: Form) -> None:
    """Raises a RewriteError where a result is wrong.

    The result is read here, because an error in it is amp_tf's and not the graph's.
    """
    templates = form.job.templates
    cause = None
    try:
        if before.function:
            after = read_function(result, templates)
        else:
            after = read_graph(result, templates, before)
        violation = verify.find_violation(before, after, form.edits, form.view)
    except GraphError as error:
        violation = f"{error.where}: {error.what}"
        cause = error
    if violation:
        raise RewriteError(
            f"the rewritten graph did not pass verification: {violation}",
            fix=(
                "This is a bug of amp_tf; please report it with the graph. The original graph is "
                "untouched"
            ),
        ) from cause
