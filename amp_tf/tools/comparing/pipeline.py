"""Compares a step: trace, flatten, rewrite, join, run, judge, search.

It also makes the notes beside the verdict.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from amp_tf.config import AmpConfig
from amp_tf.errors import ConfigError, GraphError
from amp_tf.graph.names import describe_unmatched
from amp_tf.oplists.hardware import MIN_COMPUTE_CAPABILITY, Hardware
from amp_tf.oplists.targets import resolve_target
from amp_tf.precision import Precision
from amp_tf.reporting.figures import percent
from amp_tf.rewriting.pipeline import RewriteResult
from amp_tf.tools.comparing.comparison import Comparison
from amp_tf.tools.comparing.findings import Finding, Search, describe
from amp_tf.tools.comparing.flattening import FlatStep
from amp_tf.tools.comparing.joining import titles_of
from amp_tf.tools.comparing.nodes import NodeError
from amp_tf.tools.comparing.steps import check_settings, flat_step, name_of
from amp_tf.tools.comparing.verdicts import are_good, inherent_in
from amp_tf.tools.comparing.work import OutputMeasurement, Work, reference_conditions
from amp_tf.tools.progress import Progress, silent

_EAGER = (
    "a graph of the step was compared; with run_eagerly=True the program runs it eagerly, where "
    "amp_tf converts nothing"
)


@reference_conditions()
def compare(
    model_or_function: Any,
    batches: Iterable[Any],
    config: AmpConfig | None = None,
    *,
    steps: int = 8,
    hardware: Hardware | None = None,
    progress: Progress = silent,
    notes: Sequence[str] = (),
) -> Comparison:
    """Finds where a model goes wrong in 16 bit, and what to set so that it does not.

    One step is traced and run in float32 and as amp_tf rewrites it, with the same inputs, variables
    and seeds. The batches with the largest errors, one of eight, are run again as the ideal mixed
    program (only products in 16 bit) and in float32 with inputs that differ in their last bit, and
    judged; single nodes are measured in the worst batch. The model's own variables are not changed.
    Nothing is compiled by XLA, and TF32 is off meanwhile. On a CPU float16 products are computed as
    tensor cores do: float32 adds up products of rounded operands, and the result is rounded.
    Interrupted by the user (Ctrl-C) while it searches for patterns, it returns the verdict.

    Args:
        model_or_function: a compiled Keras model, whose loss and gradients are compared (in float16
            with a loss scale); any other Keras model, whose results are; or a ``tf.function``, a
            signature of a SavedModel or a callable, whose results and whose updates of variables
            are.
        batches: a list of batches: ``(x, y)`` or ``(x, y, sample_weight)`` for a compiled model;
            tuples of arguments, mappings of named ones, or single arguments for functions.
        config: what to convert; the environment's settings by default. If they convert nothing on
            this machine, the comparison is that of a GPU in float16.
        steps: how many batches are run at most; each begins with the variables' present values.
        hardware: the devices to rewrite for; this machine's CPU by default.
        progress: called with a few words on what is being done, and with an empty text at the end.
        notes: further notes for the result.

    Raises:
        ConfigError: an argument is not valid, there are no batches, or nothing would be converted.
        GraphError: the step cannot be traced or run, or has no floating-point results and updates.
    """
    import tensorflow as tf

    config = check_settings(config, steps)
    has_gpu = bool(tf.config.list_physical_devices("GPU"))
    hardware = dataclasses.replace(hardware or Hardware.detect_cpu(), imitates_gpu=not has_gpu)
    default: tuple[str, ...] = ()
    if why := resolve_target(config, hardware).why_none:
        # Most people develop on a CPU without bfloat16 and train on a GPU. What they want to know
        # is how the model fares there, and that needs no GPU: the same nodes are converted, and
        # rounding is the same.
        for_what = "compared in float16 for a GPU (precision float16, target gpu)"
        default = (f"{for_what}, because auto converts nothing here: {why}",)
        config = dataclasses.replace(config, precision="float16", target="gpu")
        hardware = dataclasses.replace(hardware, gpu_capabilities=(MIN_COMPUTE_CAPABILITY,))
    if getattr(model_or_function, "run_eagerly", False):
        default = (*default, _EAGER)
    try:
        progress("tracing the step")
        name = name_of(model_or_function)
        flat = flat_step(model_or_function, batches, steps)
        result = _rewritten(name, flat, config, hardware)
        precision = result.report.precisions[0]
        with contextlib.closing(Work(flat, hardware, precision, progress)) as work:
            comparison = _compare(name, work, config, result)
            all_notes = (*default, *notes, *comparison.notes)
            return dataclasses.replace(comparison, notes=all_notes)
    finally:
        progress("")


def _compare(name: str, work: Work, config: AmpConfig, result: RewriteResult) -> Comparison:
    """Judges the outputs, measures single nodes, and searches for what fixes the outputs."""
    precision = work.precision
    measured = work.measure(result.graph, f"float32 and {precision.value}", is_first=True)
    if not any(one.largest or one.error or one.nonfinite for one in measured.pooled()):
        raise GraphError(
            "in float32 all outputs are empty, zero, inf or nan, so there is nothing to compare",
            where="compare(batches)",
            fix="Pass batches with examples of which the step makes finite numbers other than zero",
        )
    yardstick = work.yardstick(measured, config)
    outputs = work.judge(measured, yardstick)
    if not are_good(outputs):
        yardstick = work.in_any_batch(yardstick, config, measured.scale)
        outputs = work.judge(measured, yardstick)
    nodes = work.measure_nodes(result.graph, yardstick.numbers[0], measured.scale)
    products = result.report.products.nodes[0]
    patterns = tuple(config.keep_float32)
    findings: list[Finding] = []
    inherent: tuple[str, ...] = ()
    products_kept = 0
    is_cut = False
    if not are_good(outputs):
        search = Search(work, config, yardstick)
        causes = search.suspects(nodes)
        patterns = ()
        try:
            needed, patterns = search.find(causes, outputs)
            causes = needed or causes
            left = outputs
            if patterns:
                left, _ = search.on_all_batches(patterns)
            inherent = inherent_in(left)
        except KeyboardInterrupt:
            is_cut = True
        findings = [describe(node, precision) for node in causes]
        if patterns:
            patterns = (*config.keep_float32, *patterns)  # the line replaces the present setting
            fixed = work.rewritten(dataclasses.replace(config, keep_float32=patterns))
            products_kept = products - fixed.report.products.nodes[0]
    return Comparison(
        name,
        precision,
        batches=len(measured.rows),
        loss_scale=measured.scale,
        converted=result.report.converted,
        total=result.report.total,
        outputs=tuple(outputs),
        nodes=tuple(nodes),
        findings=tuple(findings),
        patterns=patterns,
        products=products,
        products_kept=products_kept,
        inherent=inherent,
        is_cut=is_cut,
        notes=tuple(_notes(work, measured, result, nodes)),
    )


def _rewritten(name: str, flat: FlatStep, config: AmpConfig, hardware: Hardware) -> RewriteResult:
    """Rewrites the step; an error where there is nothing to compare."""
    if not titles_of(flat):
        raise GraphError(
            "it returns no floating-point numbers and writes no variables of them, so there is "
            "nothing to compare",
            where=name,
            fix="Return what you want compared: the loss, gradients, predictions",
        )
    result = flat.rewritten(config, hardware)
    if not result.report.precisions:
        fix = "Only what computes with float32 is converted; NumPy's own type is float64"
        if config.precision == "auto":
            fix = (
                "To see what 16 bit would do, name a precision, bfloat16 or float16: "
                "--precision bfloat16 on the command line, "
                'amp_tf.AmpConfig(precision="bfloat16") in Python'
            )
        raise ConfigError(
            "nothing would be converted, so there is nothing to compare "
            f"({result.report.why_nothing})",
            where=name,
            fix=fix,
        )
    return result


def _notes(
    work: Work, measured: OutputMeasurement, result: RewriteResult, nodes: Sequence[NodeError]
) -> Iterator[str]:
    statistics = measured.pooled()
    if not any(one.nonfinite for one in statistics):
        yield from _hidden_infinity(nodes, work.precision)
    if work.flat.is_compiled:
        yield "functions for XLA (jit_compile) were run without it, which rounds more often"
    if any(one.nonfinite_truth for one in statistics):
        yield "some outputs are inf or nan in float32 already; those numbers are left out"
    if result.report.unmatched:
        names = (node.name for node in result.report.nodes)
        yield f"no node's name matches {describe_unmatched(result.report.unmatched, names)}"
    if any(node.op == "Enter" for node in work.flat.graph.node):
        yield "nodes inside of loops are not measured one by one, only the results of loops"


def _hidden_infinity(nodes: Sequence[NodeError], precision: Precision) -> Iterator[str]:
    """Yields a sentence on the first node with inf or nan that float32 does not have.

    A minimum, a mask or a division may hide it: outputs are then right, and a part of the model no
    longer learns.
    """
    for node in nodes:  # sources come before their readers
        if node.nonfinite:
            share = f"{percent(node.nonfinite)} of the numbers of {node.name} ({node.op})"
            yield f"{share} are inf or nan in {precision.value} alone; no output shows it"
            return
