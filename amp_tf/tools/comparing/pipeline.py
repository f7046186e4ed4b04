"""The comparison: trace, flatten, rewrite, join, run, judge, search; and what is to be said beside
the verdict.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from amp_tf.config import AmpConfig
from amp_tf.errors import ConfigError, GraphError
from amp_tf.graph.names import describe_unmatched, find_followers, whole_of
from amp_tf.oplists.hardware import MIN_COMPUTE_CAPABILITY, Hardware
from amp_tf.oplists.table import PRODUCTS
from amp_tf.oplists.targets import resolve_target
from amp_tf.precision import Precision
from amp_tf.reporting import reports
from amp_tf.reporting.reports import RewriteReport
from amp_tf.rewriting.pipeline import RewriteResult
from amp_tf.tools import some
from amp_tf.tools.comparing import verdicts
from amp_tf.tools.comparing.comparison import Comparison, NodeError, NodeRange, Ranges
from amp_tf.tools.comparing.findings import Finding, Search
from amp_tf.tools.comparing.flattening import OWN_SCOPE
from amp_tf.tools.comparing.joining import FLOAT32, JointGraph, tensor_name
from amp_tf.tools.comparing.nodes import NodeMeasurement, nodes_run_once
from amp_tf.tools.comparing.steps import check_settings, flat_step, name_of
from amp_tf.tools.comparing.verdicts import LIMIT, Patterns, roundoff
from amp_tf.tools.comparing.work import OutputMeasurement, Work, pooled, reference_conditions
from amp_tf.tools.progress import Progress, silent

_SHOWN = 3


@reference_conditions()
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

    One step is traced and run in float32 and as amp_tf rewrites it, with the same inputs, variables
    and seeds. The batches with the largest errors, one of eight, are run again as the ideal mixed
    program (only products in 16 bit) and in float32 with inputs that differ in their last bit, and
    judged; single nodes are measured in the worst batch. The model's own variables are not changed.
    Nothing is compiled by XLA, and TF32 is off meanwhile. On a CPU float16 products are computed as
    tensor cores do: float32 adds up products of rounded operands, and the result is rounded.
    Interrupted by the user (Ctrl-C), it returns what is known by then.

    Args:
        model_or_function: a compiled Keras model, whose loss and gradients are compared (in float16
            with a loss scale); any other Keras model, whose results are; or a ``tf.function``, a
            signature of a SavedModel or a callable, whose results and whose updates of variables
            are.
        batches: a list of batches: ``(x, y)`` or ``(x, y, sample_weight)`` for a compiled model;
            tuples of arguments, mappings of named ones, or single arguments for functions.
        config: what to convert; the environment's settings by default. Where they convert nothing
            on this machine, what a GPU would run in float16 is compared.
        steps: how many batches are run at most; each begins with the variables' present values.
        nodes: a regular expression, searched in node names, for further nodes to measure; those
            that are or read 16 bit always are.
        hardware: the devices to rewrite for; this machine's CPU by default.
        progress: called with a few words on what is being done, and with an empty text at the end.
        notes: further notes for the result.

    Raises:
        ConfigError: an argument is not valid, there are no batches, or nothing would be converted.
        GraphError: the step cannot be traced or run, or has no floating-point results and updates.
    """
    import tensorflow as tf

    config = check_settings(config, steps, nodes)
    hardware = Hardware.detect_cpu() if hardware is None else hardware
    hardware = dataclasses.replace(
        hardware, imitates_gpu=not tf.config.list_physical_devices("GPU")
    )
    default: tuple[str, ...] = ()
    if why := resolve_target(config, hardware).why_none:
        # Most people develop on a CPU without bfloat16 and train on a GPU. What they want to know
        # is how the model fares there, and that needs no GPU: the same nodes are converted, and
        # rounding is the same.
        for_what = "compared in float16 for a GPU (precision float16, target gpu)"
        default = (f"{for_what}, because auto converts nothing here: {why}",)
        config = dataclasses.replace(config, precision="float16", target="gpu")
        hardware = dataclasses.replace(hardware, gpu_capabilities=(MIN_COMPUTE_CAPABILITY,))
    try:
        progress("tracing the step")
        name, flat = name_of(model_or_function), flat_step(model_or_function, batches, steps)
        with contextlib.closing(Work(flat, hardware, progress)) as work:
            found = _answer(name, work, config, nodes)
            return dataclasses.replace(found, notes=(*default, *notes, *found.notes))
    finally:
        progress("")


@reference_conditions()
def find_ranges(
    model_or_function: Any,
    batches: Iterable[Any],
    config: AmpConfig | None = None,
    *,
    steps: int = 8,
    hardware: Hardware | None = None,
    progress: Progress = silent,
    notes: Sequence[str] = (),
) -> Ranges:
    """Finds the tensors that would leave float16's range, and how far, by the arguments of
    :func:`amp_tf.compare`.

    The step runs in float32 only. The loss of a compiled model is multiplied by 2^15, where dynamic
    loss scaling begins.
    """
    import tensorflow as tf

    config = dataclasses.replace(check_settings(config, steps), precision="float16")
    try:
        progress("tracing the step")
        flat = flat_step(model_or_function, batches, steps)
        report = flat.rewritten(config, hardware).report
        converted = {node.name for node in report.nodes if node.precision.is_f16}
        scale = 2.0**15 if flat.is_scaled else 1.0  # where dynamic loss scaling begins
        progress("building the graph")
        joint = JointGraph(flat, {FLOAT32: flat.graph})
        own = [name for name in nodes_run_once(flat.graph) if name not in flat.variables]
        operations = {
            name: joint.graph.get_operation_by_name(
                tensor_name(FLOAT32, name, flat).removesuffix(":0")
            )
            for name in own
            if not name.startswith(f"{OWN_SCOPE}/")
        }
        tensors = {
            name: one.outputs[0]
            for name, one in operations.items()
            if one.outputs and one.type != "Const"
        }
        tensors = {name: tensor for name, tensor in tensors.items() if tensor.dtype == tf.float32}
        with joint.graph.as_default():
            measure = verdicts.rows_in(joint.graph, Precision.FLOAT16.smallest)
            rows = [measure([tf.cast(tensor, tf.float16)], tensor) for tensor in tensors.values()]
        found = []
        for number in range(len(flat.batches)):
            progress(f"float32: batch {number + 1} of {len(flat.batches)}")
            found.append(np.concatenate(joint.fetch(rows, number, scale)))
        joint.close()
    finally:
        progress("")
    nodes = {node.name: node for node in flat.graph.node}
    inputs = (
        text
        for name in converted
        if name in nodes
        for text in nodes[name].input
        if not text.startswith("^")
    )
    in_float16 = {*converted, *(text.partition(":")[0] for text in inputs)}
    ranges = []
    for name, one in zip(tensors, pooled(found), strict=True):
        over = one.nonfinite + one.nonfinite_truth
        figures = over, one.underflow, one.largest, one.smallest
        ranges.append(NodeRange(name, nodes[name].op, name in in_float16, *figures))
    leaving = sorted(
        (node for node in ranges if node.leaves), key=lambda node: (not node.is_f16, -node.distance)
    )
    return Ranges(
        name_of(model_or_function), len(found), scale, tuple(leaving), len(tensors), tuple(notes)
    )


def _answer(name: str, work: Work, config: AmpConfig, nodes: str | None) -> Comparison:
    if not work.names:
        what = (
            "it returns no floating-point numbers and writes no variables of them, so there is "
            "nothing to compare"
        )
        raise GraphError(
            what, where=name, fix="Return what you want compared: the loss, gradients, predictions"
        )
    result = work.rewritten(config)
    if not result.report.precisions:
        raise ConfigError(
            "nothing would be converted, so there is nothing to compare "
            f"({result.report.why_nothing})",
            where=name,
            fix="To see what 16 bit would do, name a precision, bfloat16 or float16: --precision bfloat16 on the "
            'command line, amp_tf.AmpConfig(precision="bfloat16") in Python',
        )
    precision = result.report.precisions[0]
    work.begin(precision, config.target)
    measured, scale = work.measure(result.graph, f"float32 and {precision.value}", is_first=True)
    if not any(one.largest or one.error or one.nonfinite for one in measured.pooled()):
        raise GraphError(
            "in float32 all outputs are empty, zero, inf or nan, so there is nothing to compare",
            where="compare(batches)",
            fix="Pass batches with examples of which the step makes finite numbers other than zero",
        )
    yardstick = work.yardstick(measured, config, scale)
    outputs = work.judge(measured, yardstick)
    if not all(output.is_good for output in outputs) and not (measured.is_cut or yardstick.is_cut):
        yardstick = work.in_any_batch(yardstick, config, scale)
        outputs = work.judge(measured, yardstick)
    is_healthy = all(output.is_good for output in outputs)
    measurements: Sequence[NodeMeasurement] = ()
    findings: tuple[Finding, ...] = ()
    patterns: Patterns = ()
    is_cut, tried = True, 0
    if not (measured.is_cut or yardstick.is_cut):
        with contextlib.suppress(KeyboardInterrupt):
            measurements = work.measure_nodes(result.graph, yardstick.numbers[0], scale, nodes)
            search = Search(work, config, yardstick, outputs)
            findings, patterns, is_cut = (
                ((), (), False) if is_healthy else search.find(measurements)
            )
            tried = search.trials

    before = config.keep_float32  # which the line replaces
    kept = (*before, *patterns) if patterns else ()
    fixed = work.rewritten(dataclasses.replace(config, keep_float32=kept)) if kept else result
    products, kept_products = (
        sum(graph.products.nodes[0] for graph in each.report.graphs) for each in (result, fixed)
    )
    errors = tuple(NodeError.of(node, precision) for node in measurements)
    most = LIMIT * roundoff(precision)
    far_off = (
        node for node in errors if not is_healthy and node.accumulated > most and node.has_truth
    )
    return Comparison(
        name=name,
        precision=precision,
        batches=len(measured.rows),
        loss_scale=scale,
        converted=result.report.converted,
        total=result.report.total,
        outputs=tuple(outputs),
        nodes=errors,
        findings=tuple(
            dataclasses.replace(one, patterns=(*before, *one.patterns)) for one in findings
        ),
        first_divergence=next(far_off, None),
        patterns=kept,
        mends=bool(kept),
        trials=tried,
        products=products,
        products_kept=products - kept_products,
        is_cut=is_cut,
        notes=(
            *_nonfinite_notes(measurements, work.flat.graph, precision),
            *notes_on_run(result.report, work.flat.graph, reports.of_process(), precision),
            *_notes(work, measured, result),
        ),
    )


def _notes(work: Work, measured: OutputMeasurement, result: RewriteResult) -> Iterator[str]:
    has_loops = any(node.op == "Enter" for node in work.flat.graph.node)
    if work.is_compiled:
        yield "outputs are those of XLA (jit_compile), in both precisions; nodes were measured without it"
    elif work.flat.is_compiled:
        is_of_loops = "frames" in work.why_not_compiled
        why = (
            "it does not compile loops that were lowered" if is_of_loops else work.why_not_compiled
        )
        yield f"functions for XLA (jit_compile) were run without it: {why}"
    if any(statistics.nonfinite_truth for statistics in measured.pooled()):
        yield "some outputs are inf or nan in float32 already; those numbers are left out"
    if result.report.unmatched:
        names = (node.name for node in result.report.nodes)
        yield f"no node's name matches {describe_unmatched(result.report.unmatched, names)}"
    if has_loops:
        yield "nodes inside of loops are not measured one by one, only the results of loops"


def _nonfinite_notes(
    measured: Sequence[NodeMeasurement], graph: Any, precision: Precision
) -> Iterator[str]:
    """A sentence on the first nodes with inf or nan that float32 does not have, and where they
    disappear again.

    A minimum, a mask or a division may hide them: outputs are then right, and a part of the model
    no longer learns. Numerical debuggers (GPU-FPX, FPChecker) track such exceptions through a
    program; here they are tracked through the nodes of a graph. Nodes without a measurement pass on
    what they read.
    """
    known = {one.name: one for one in measured}
    reads = {
        node.name: [text.lstrip("^").partition(":")[0] for text in node.input]
        for node in graph.node
    }
    reached: set[str] = set()
    begins: list[NodeMeasurement] = []
    ends: list[NodeMeasurement] = []
    for name in nodes_run_once(graph) if any(one.accumulated.nonfinite for one in measured) else ():
        one, is_reached = known.get(name), not reached.isdisjoint(reads[name])
        is_bad = is_reached if one is None else one.accumulated.nonfinite > 0
        if is_bad:
            reached.add(name)
        if one is not None and is_bad != is_reached:
            (begins if is_bad else ends).append(one)
    if begins:
        shares = [
            f"{one.name} ({one.op}), {100 * one.accumulated.nonfinite:.3g}% of its numbers"
            for one in begins
        ]
        hidden = some([f"{one.name} ({one.op})" for one in ends], _SHOWN, "; ")
        where = f"{some(shares, _SHOWN, '; ')}{f'; hidden again behind {hidden}' if ends else ''}"
        yield f"inf or nan that float32 does not have first appears in {precision.value} at {where}"


def notes_on_run(
    compared: RewriteReport, graph: Any, run: RewriteReport, precision: Precision
) -> Iterator[str]:
    """A sentence if there are products that every graph of this process' own run has in another
    precision.

    TensorFlow may hand over another graph in a run than the one that is compared: of another batch
    size, fused, or of a function that calls the step. What is judged is then not quite what runs.
    Graphs of the run that were rewritten for another 16-bit type are left out.
    """
    in_run: dict[str, list[Any]] = {}  # by the whole name: in whatever function it is inlined into
    for rewritten in run.graphs:
        for other in rewritten.nodes if rewritten.precision is precision else ():
            if other.op in PRODUCTS:
                in_run.setdefault(f"/{whole_of(other.name)}", []).append(other)
    followers = find_followers(graph)
    known, others = 0, []
    for node in compared.nodes if in_run else ():
        if node.op in PRODUCTS and not node.function:
            ends = tuple(f"/{name}" for name in (node.name, *followers.get(node.name, ())))
            found = [
                other for whole, alike in in_run.items() if whole.endswith(ends) for other in alike
            ]
            known += bool(found)
            if found and all(other.precision.is_f16 != node.precision.is_f16 for other in found):
                others.append(
                    f"{node.name} ({found[0].precision.value} there, {node.precision.value} here)"
                )
    if others:
        count = f"{len(others)} of {known} matmuls and convolutions"
        yield f"in this process' own run, {count} had another precision than here: {some(others, _SHOWN)}"
