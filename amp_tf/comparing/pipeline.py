"""The comparison: trace, flatten, rewrite, join, run, judge, find."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from amp_tf.comparing.comparison import Comparison, NodeError
from amp_tf.comparing.findings import Diagnosis, find
from amp_tf.comparing.flattening import FlatStep, flatten
from amp_tf.comparing.joining import AMP, FLOAT32, IDEAL, NOISE
from amp_tf.comparing.running import JointRun, Looked, Measured, output_names
from amp_tf.comparing.steps import GRADIENT, Step, name_of, trace
from amp_tf.comparing.verdicts import LIMIT, Output, has_truth, judge, roundoff
from amp_tf.config import AmpConfig, check_config
from amp_tf.errors import ConfigError
from amp_tf.oplists.hardware import Hardware
from amp_tf.oplists.table import CLEAR, INFER, ROWS
from amp_tf.precision import Precision
from amp_tf.rewriting.fused_names import count_products, find_followers
from amp_tf.rewriting.pipeline import RewriteResult, rewrite
from amp_tf.values import check_pattern

_SCALES = (2.0**15, 2.0**11, 2.0**7, 2.0**3, 1.0)  # as dynamic loss scaling finds its own, in larger steps


def compare(
    model_or_function: Any,
    batches: Iterable[Any],
    config: AmpConfig | None = None,
    *,
    steps: int = 8,
    nodes: str | None = None,
    hardware: Hardware | None = None,
) -> Comparison:
    """Says where a model goes wrong in 16 bit, and what to write so that it does not.

    One step is traced and run in float32, as amp_tf rewrites it, as the ideal mixed program (products alone in 16 bit)
    and in float32 with inputs that differ in their last bit, all in one graph, with the same inputs, variables and
    seeds. The model's own variables are not changed. Nothing is compiled by XLA. Single nodes are looked at in all
    batches where something is wrong, else in the first.

    Args:
        model_or_function: a compiled Keras model, whose loss and gradients are compared (in float16 with a loss scale);
            any other Keras model, whose results are; or a ``tf.function``, a signature of a SavedModel or a callable,
            whose results and whose updates of variables are.
        batches: a row of batches: ``(x, y)`` or ``(x, y, sample_weight)`` for a compiled model; tuples of arguments,
            mappings of named ones, or single arguments for functions.
        config: what to convert; the environment's settings by default.
        steps: how many batches are run at most; each begins with the variables' present values.
        nodes: a regular expression, searched in node names, for nodes to be looked at besides those that are 16 bit or
            read 16 bit.
        hardware: the devices to rewrite for; this machine's CPU by default.

    Raises:
        ConfigError: an argument is not what it should be, there are no batches, or nothing would be converted.
        GraphError: the step cannot be traced or run, or returns no floating-point numbers.
    """
    config = _check(config, steps, nodes)
    return _answer(name_of(model_or_function), trace(model_or_function, batches, steps), config, nodes, hardware)


def _answer(name: str, step: Step, config: AmpConfig, nodes: str | None, hardware: Hardware | None) -> Comparison:
    """What the traced step says."""
    flat = flatten(step)
    work = _Work(step, flat, hardware)
    result = work.rewritten(config)
    precision = _precision_of(result, name)
    sides = {AMP: result.graph, IDEAL: work.rewritten(_ideal(config)).graph, NOISE: flat.graph}
    measured, scale = work.run(sides, precision)
    names = output_names(step, flat)

    def judged(found: Measured) -> list[Output]:
        return judge(names, found.outputs[AMP], measured.outputs[IDEAL], measured.outputs[NOISE], precision)

    def with_patterns(patterns: tuple[str, ...]) -> AmpConfig:
        return dataclasses.replace(config, keep_float32=(*config.keep_float32, *patterns))

    def trial(patterns: tuple[str, ...]) -> Sequence[Output]:
        return judged(work.run({AMP: work.rewritten(with_patterns(patterns)).graph}, precision)[0])

    outputs = judged(measured)
    is_healthy = all(output.is_good for output in outputs)
    looked = work.look(result.graph, precision, scale, nodes, limit=1 if is_healthy else None)
    found = Diagnosis()
    if not is_healthy:
        found = find(looked, outputs, precision, tuple(config.force_f16), find_followers(flat.graph), trial)
    products = count_products(result.report)
    return Comparison(
        name=name,
        precision=precision,
        batches=len(step.batches),
        loss_scale=scale,
        converted=result.report.converted,
        total=result.report.total,
        outputs=tuple(outputs),
        nodes=tuple(_node_error(node, precision) for node in looked),
        findings=found.findings,
        first_divergence=None if is_healthy else _first_divergence(looked, precision),
        patterns=found.patterns,
        mends=found.mends,
        products=products,
        products_kept=products - count_products(work.rewritten(with_patterns(found.patterns)).report),
        notes=tuple(_notes(flat, measured, config, result)),
    )


class _Work:
    """What a trial needs to run the step in another form."""

    def __init__(self, step: Step, flat: FlatStep, hardware: Hardware | None) -> None:
        self._step, self._flat, self._hardware = step, flat, hardware

    def rewritten(self, config: AmpConfig) -> RewriteResult:
        return rewrite(self._flat.graph, config, preserve=self._flat.ends, hardware=self._hardware)

    def look(
        self, rewritten: Any, precision: Precision, scale: float, nodes: str | None, limit: int | None
    ) -> Sequence[Looked]:
        """What is measured at each node; apart from the other forms, because that takes the most time and memory."""
        sides = {FLOAT32: self._flat.graph, AMP: rewritten}
        return JointRun(self._step, self._flat, sides, precision, wanted=nodes, has_probes=True).run(scale, limit).nodes

    def run(self, sides: dict[str, Any], precision: Precision) -> tuple[Measured, float]:
        """Runs with the first loss scale at which no gradient overflows; what was measured, and the scale."""
        run = JointRun(self._step, self._flat, {FLOAT32: self._flat.graph, **sides}, precision)
        scales = _SCALES if self._step.is_scaled and precision.needs_loss_scaling else (1.0,)
        for scale in scales:
            measured = run.run(scale)
            if not self._overflows(measured):
                return measured, scale
        return measured, scale

    def _overflows(self, measured: Measured) -> bool:
        names = output_names(self._step, self._flat)
        of_sides = zip(names, measured.outputs[AMP], strict=True)
        return any(kind == GRADIENT and statistics.nonfinite for (kind, _), statistics in of_sides)


def _check(config: AmpConfig | None, steps: int, nodes: str | None) -> AmpConfig:
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
        raise ConfigError(f"{steps!r} is no number of batches", where="compare(steps=…)", fix="Write 1 or more")
    if nodes is not None:
        check_pattern(nodes, where="compare(nodes=…)")
    if config is None:
        return AmpConfig.from_env()
    return check_config(
        config, where="compare(config)", fix='Write for instance amp_tf.AmpConfig(precision="bfloat16")'
    )


def _ideal(config: AmpConfig) -> AmpConfig:
    """Products alone: what would follow them into 16 bit, or pass 16 bit on, is on no list, and nothing is forced."""
    infer, clear = (tuple(sorted({row.op for row in ROWS if row.op_list == name})) for name in (INFER, CLEAR))
    return AmpConfig(
        precision=config.precision,
        target=config.target,
        ignore_performance=config.ignore_performance,
        infer_remove=infer,
        clear_remove=clear,
    )


def _precision_of(result: RewriteResult, name: str) -> Precision:
    if used := result.report.precisions:
        return used[0]
    raise ConfigError(
        f"nothing would be converted, so there is nothing to compare ({result.report.why_nothing})",
        where=name,
        fix='To see what 16 bit would do, name it: amp_tf.AmpConfig(precision="bfloat16") or "float16"',
    )


def _node_error(looked: Looked, precision: Precision) -> NodeError:
    return NodeError(
        name=looked.probe.name,
        op=looked.probe.op,
        is_f16=looked.probe.is_f16,
        accumulated=looked.accumulated.distance,
        local=None if looked.local is None else looked.local.distance,
        has_truth=all(has_truth(found, precision) for found in (looked.accumulated, looked.local) if found is not None),
        underflow=looked.accumulated.underflow,
        largest=looked.accumulated.largest,
        smallest=looked.accumulated.smallest,
    )


def _first_divergence(nodes: Sequence[Looked], precision: Precision) -> NodeError | None:
    """The first node that is much further off than one rounding."""
    limit = LIMIT * roundoff(precision)
    errors = (_node_error(looked, precision) for looked in nodes if looked.accumulated.distance > limit)
    return next((error for error in errors if error.has_truth), None)


def _notes(flat: FlatStep, measured: Measured, config: AmpConfig, result: RewriteResult) -> Iterator[str]:
    if flat.is_compiled:
        yield "functions for XLA (jit_compile) were run without it"
    if any(statistics.nonfinite_truth for statistics in measured.outputs[AMP]):
        yield "some outputs are inf or nan in float32 already; those numbers are left out"
    if result.report.unmatched:
        yield f"no node's name matches {', '.join(result.report.unmatched)}"
    if any(node.op == "Enter" for node in flat.graph.node):
        yield "nodes inside of loops are not looked at one by one, only what loops give out"
