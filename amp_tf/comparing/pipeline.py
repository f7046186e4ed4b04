"""The comparison: trace, flatten, rewrite, join, run, judge, search."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from amp_tf.comparing import exceptions, run_decisions
from amp_tf.comparing.comparison import Comparison, NodeError
from amp_tf.comparing.default_target import choose_target
from amp_tf.comparing.findings import SearchResult, find
from amp_tf.comparing.progress import Progress, silent
from amp_tf.comparing.running import NodeMeasurement, OutputMeasurement, exact_products
from amp_tf.comparing.steps import check_settings, name_of
from amp_tf.comparing.subjects import flat_step
from amp_tf.comparing.suspects import Patterns
from amp_tf.comparing.trials import Trials
from amp_tf.comparing.verdicts import LIMIT, Output, has_truth, roundoff
from amp_tf.comparing.work import Work, Yardstick
from amp_tf.config import AmpConfig
from amp_tf.errors import ConfigError, GraphError
from amp_tf.graph.names import tell_unmatched
from amp_tf.oplists.hardware import Hardware
from amp_tf.precision import Precision
from amp_tf.reporting import process
from amp_tf.rewriting.fused_names import count_products, find_followers
from amp_tf.rewriting.pipeline import RewriteResult


@exact_products()
def compare(
    model_or_function: Any,
    batches: Iterable[Any],
    config: AmpConfig | None = None,
    *,
    steps: int = 8,
    nodes: str | None = None,
    hardware: Hardware | None = None,
    progress: Progress = silent,
    notes: Sequence[str] = (),
) -> Comparison:
    """Finds where a model goes wrong in 16 bit, and what to set so that it does not.

    One step is traced and run in float32 and as amp_tf rewrites it, with the same inputs, variables and seeds. The
    batches with the largest errors, one of eight, are run again as the ideal mixed program (only products in 16 bit)
    and in float32 with inputs that differ in their last bit, and judged; single nodes are measured in the worst batch.
    The model's own variables are not changed. Nothing is compiled by XLA, and TF32 is off meanwhile. Interrupted by the
    user (Ctrl-C), it returns what is known by then.

    Args:
        model_or_function: a compiled Keras model, whose loss and gradients are compared (in float16 with a loss scale);
            any other Keras model, whose results are; or a ``tf.function``, a signature of a SavedModel or a callable,
            whose results and whose updates of variables are.
        batches: a list of batches: ``(x, y)`` or ``(x, y, sample_weight)`` for a compiled model; tuples of arguments,
            mappings of named ones, or single arguments for functions.
        config: what to convert; the environment's settings by default. Where they convert nothing on this machine,
            what a GPU would run in float16 is compared.
        steps: how many batches are run at most; each begins with the variables' present values.
        nodes: a regular expression, searched in node names, for further nodes to measure; those that are or read 16 bit
            always are.
        hardware: the devices to rewrite for; this machine's CPU by default.
        progress: called with a few words on what is being done, and with an empty text at the end.
        notes: further notes for the result.

    Raises:
        ConfigError: an argument is not valid, there are no batches, or nothing would be converted.
        GraphError: the step cannot be traced or run, or has no floating-point results and updates.
    """
    config, hardware, default = choose_target(check_settings(config, steps, nodes), hardware)
    name = name_of(model_or_function)
    try:
        progress("tracing the step")
        with Work(*flat_step(model_or_function, batches, steps), hardware, progress) as work:
            found = _answer(name, work, config, nodes)
            return dataclasses.replace(found, notes=(*default, *notes, *found.notes))
    finally:
        progress("")


def _answer(name: str, work: Work, config: AmpConfig, nodes: str | None) -> Comparison:
    """Compares a traced step: rewrites it, judges its outputs, then measures nodes and searches for a remedy."""
    if not work.names:
        raise GraphError(
            "it returns no floating-point numbers and writes no variables of them, so there is nothing to compare",
            where=name,
            fix="Return what you want compared: the loss, gradients, predictions",
        )
    result = work.rewritten(config)
    precision = _precision_of(result, name)
    work.begin(precision, config.target)
    measured, scale = work.measure(result.graph, f"float32 and {precision.value}")
    if not any(one.size and one.nonfinite_truth < 1 for one in measured.pooled()):
        raise GraphError(
            "in float32 all outputs are empty, inf or nan, so there is nothing to compare",
            where="compare(batches)",
            fix="Pass batches with examples of which the step makes finite numbers",
        )
    yardstick = work.yardstick(measured, config, scale)
    outputs = work.judge(measured, yardstick)
    if not all(output.is_good for output in outputs) and not (measured.is_cut or yardstick.is_cut):
        yardstick = work.in_any_batch(yardstick, config, scale)
        outputs = work.judge(measured, yardstick)
    is_healthy = all(output.is_good for output in outputs)
    measurements: Sequence[NodeMeasurement] = ()
    found = SearchResult(is_cut=True)
    if not (measured.is_cut or yardstick.is_cut):
        measurements, found = _search(work, result.graph, config, yardstick, outputs, scale, nodes)

    def whole(patterns: Patterns) -> Patterns:  # the line replaces the current setting
        return (*config.keep_float32, *patterns) if patterns else ()

    kept = whole(found.patterns)
    mended = work.rewritten(dataclasses.replace(config, keep_float32=kept)) if kept else result
    products = count_products(result.report)
    return Comparison(
        name=name,
        precision=precision,
        batches=len(measured.rows),
        loss_scale=scale,
        converted=result.report.converted,
        total=result.report.total,
        outputs=tuple(outputs),
        nodes=tuple(_node_error(node, precision) for node in measurements),
        findings=tuple(dataclasses.replace(one, patterns=whole(one.patterns)) for one in found.findings),
        first_divergence=None if is_healthy else _first_divergence(measurements, precision),
        patterns=kept,
        mends=bool(kept),
        trials=found.trials,
        products=products,
        products_kept=products - count_products(mended.report),
        is_cut=found.is_cut,
        notes=(
            *exceptions.describe(measurements, work.flat.graph, precision),
            *run_decisions.describe(result.report, work.flat.graph, process.report(), precision),
            *_notes(work, measured, result),
        ),
    )


def _search(
    work: Work,
    graph: Any,
    config: AmpConfig,
    yardstick: Yardstick,
    outputs: Sequence[Output],
    scale: float,
    nodes: str | None,
) -> tuple[Sequence[NodeMeasurement], SearchResult]:
    """Measures the nodes in the worst batch and, if an output is wrong, searches for what fixes it."""
    measurements: Sequence[NodeMeasurement] = ()
    try:
        measurements = work.measure_nodes(graph, yardstick.numbers[0], scale, nodes)
        if all(output.is_good for output in outputs):
            return measurements, SearchResult()
        followers, trials = find_followers(work.flat.graph), Trials(work, config, yardstick)
        forced = tuple(config.force_f16)
        return measurements, find(measurements, outputs, work.precision, forced, followers, trials)
    except KeyboardInterrupt:
        return measurements, SearchResult(is_cut=True)


def _precision_of(result: RewriteResult, name: str) -> Precision:
    if used := result.report.precisions:
        return used[0]
    raise ConfigError(
        f"nothing would be converted, so there is nothing to compare ({result.report.why_nothing})",
        where=name,
        fix="To see what 16 bit would do, name a precision, bfloat16 or float16: --precision bfloat16 on the command "
        'line, amp_tf.AmpConfig(precision="bfloat16") in Python',
    )


def _node_error(measured: NodeMeasurement, precision: Precision) -> NodeError:
    return NodeError(
        name=measured.probe.name,
        op=measured.probe.op,
        is_f16=measured.probe.is_f16,
        accumulated=measured.accumulated.distance,
        local=None if measured.local is None else measured.local.distance,
        has_truth=all(
            has_truth(found, precision) for found in (measured.accumulated, measured.local) if found is not None
        ),
        underflow=measured.accumulated.underflow,
        largest=measured.accumulated.largest,
        smallest=measured.accumulated.smallest,
    )


def _first_divergence(nodes: Sequence[NodeMeasurement], precision: Precision) -> NodeError | None:
    """The first node whose error is much larger than one rounding."""
    limit = LIMIT * roundoff(precision)
    errors = (_node_error(measured, precision) for measured in nodes if measured.accumulated.distance > limit)
    return next((error for error in errors if error.has_truth), None)


def _notes(work: Work, measured: OutputMeasurement, result: RewriteResult) -> Iterator[str]:
    has_loops = any(node.op == "Enter" for node in work.flat.graph.node)
    if work.is_compiled:
        yield "outputs are those of XLA (jit_compile), in both precisions; nodes were measured without it"
    elif work.flat.is_compiled:
        is_of_loops = "frames" in work.why_not_compiled
        why = "it does not compile loops that were lowered" if is_of_loops else work.why_not_compiled
        yield f"functions for XLA (jit_compile) were run without it: {why}"
    if any(statistics.nonfinite_truth for statistics in measured.pooled()):
        yield "some outputs are inf or nan in float32 already; those numbers are left out"
    if result.report.unmatched:
        names = (node.name for node in result.report.nodes)
        yield f"no node's name matches {tell_unmatched(result.report.unmatched, names)}"
    if has_loops:
        yield "nodes inside of loops are not measured one by one, only the results of loops"
