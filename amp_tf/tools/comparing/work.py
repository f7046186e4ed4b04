"""What is done with the outputs of a step: they are run beside those of float32, and judged by the
yardstick.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from amp_tf.config import AmpConfig
from amp_tf.errors import GraphError
from amp_tf.hooks import layer_paths
from amp_tf.oplists.hardware import Hardware
from amp_tf.oplists.table import CLEAR, INFER, ROWS
from amp_tf.precision import Precision
from amp_tf.rewriting.pipeline import RewriteResult
from amp_tf.tools.comparing.flattening import GRADIENT, UPDATE, FlatStep, by_python
from amp_tf.tools.comparing.joining import RunnableStep, output_names
from amp_tf.tools.comparing.nodes import NodeMeasurement, measure_nodes
from amp_tf.tools.comparing.verdicts import NO_TRUTH, Output, Statistics, difference_row, judge
from amp_tf.tools.progress import Progress, lasting

_UNSCALED = 1.0
_SCALES = tuple(
    2.0**power for power in (15, 11, 7, 3, 0, -5, -10)
)  # as loss scaling searches, in larger steps
_IDEAL = "products alone in 16 bit"
_FEW = 8  # numbers of an output whose error varies much between batches
_SHARE_JUDGED = (
    8  # one batch of so many is judged, because the yardstick costs about three more runs
)
_JUDGING, _NODES = (
    2,
    3,
)  # what takes about as long as so many batches: to judge one, and the look at single nodes


@contextlib.contextmanager
def reference_conditions() -> Iterator[None]:
    """Turns TF32 off in the block, so that GPUs compute products of float32 values in float32.

    TensorFlow lets GPUs from Ampere on round the operands of such products to TF32, which has
    float16's mantissa: such a reference would be as inaccurate as what is compared with it. The
    setting is the process'. The layers of the step are recorded as it is traced.
    """
    from tensorflow.config.experimental import (
        enable_tensor_float_32_execution,
        tensor_float_32_execution_enabled,
    )

    before = tensor_float_32_execution_enabled()
    enable_tensor_float_32_execution(False)
    try:
        with layer_paths.recording():
            yield
    finally:
        enable_tensor_float_32_execution(before)


@dataclasses.dataclass(frozen=True)
class OutputMeasurement:
    """How the outputs of a version differ from float32's."""

    rows: Mapping[int, np.ndarray]  #: for each batch that ran its number, and a row for each output
    is_cut: bool = False  #: whether the user interrupted it, and batches are missing

    def pooled(self, numbers: Sequence[int] | None = None) -> list[Statistics]:
        """The statistics of each output, over some batches or all."""
        return pooled([self.rows[number] for number in (self.rows if numbers is None else numbers)])

    def furthest(self, count: int) -> list[int]:
        """The batches with the largest errors: most nonfinite numbers first, then by the sum of
        errors.
        """

        def place(number: int) -> tuple[float, float, int]:
            found = self.pooled([number])
            return (
                -sum(one.nonfinite for one in found),
                -sum(min(one.error, 1e9) for one in found),
                number,
            )

        return sorted(self.rows, key=place)[:count]


def pooled(batches: Sequence[np.ndarray]) -> list[Statistics]:
    """The statistics of each output, over the rows of some batches."""
    return [Statistics.of(rows) for rows in np.stack(batches, axis=1)]


@dataclasses.dataclass(frozen=True)
class Yardstick:
    """How much the outputs of some batches may differ."""

    numbers: Sequence[int]  #: of the batches: those that are furthest off
    ideal: Sequence[Statistics]  #: how far off the ideal mixed program is, for each output
    noise: Sequence[Statistics]  #: how far float32 is with inputs that differ in their last bit
    is_cut: bool = False  #: whether the user interrupted it, and batches are missing
    #: whether ``ideal`` is of all batches; then outputs of a few numbers are judged by all of them
    #: together
    has_all: bool = False


class Work:
    """A step together with its float32 version.

    Versions are run by XLA where it ``is_compiled``, as the program runs the step or a part of it;
    ``why_not_compiled`` is what XLA says where it cannot. ``names`` are kind and name of each
    output.
    """

    _float32: RunnableStep | None = None

    def __init__(self, flat: FlatStep, hardware: Hardware | None, progress: Progress) -> None:
        self.flat, self.names = flat, output_names(flat)
        self._hardware, self._progress = hardware, progress
        self.is_compiled, self.why_not_compiled = flat.is_compiled, ""

    def close(self) -> None:
        """Frees the memory of the float32 version; the next run fills it again. Idempotent."""
        if self._float32 is not None:
            self._float32.close()

    def rewritten(self, config: AmpConfig) -> RewriteResult:
        """The step as amp_tf rewrites it."""
        return self.flat.rewritten(config, self._hardware)

    def begin(self, precision: Precision, target: str | None) -> None:
        """Prepares the runs for a 16-bit type, and for the device kind that the verdict is for, of
        ``AmpConfig``.
        """
        import tensorflow as tf

        self.precision = precision
        if self.is_compiled and target == "gpu" and not tf.config.list_physical_devices("GPU"):
            self.is_compiled, self.why_not_compiled = (
                False,
                "on CPUs it leaves out most roundings, on GPUs it does not",
            )
        if self.is_compiled:
            try:
                self._float32 = self._version(self.flat.graph, "float32, by XLA")
                self._float32.run(0, _UNSCALED)
                return
            except (GraphError, ValueError) as error:  # as it runs, and as it is imported
                self.is_compiled, self.why_not_compiled = False, str(getattr(error, "what", error))
                self.close()
        self._float32 = self._version(self.flat.graph, "float32")

    def measure(
        self, graph: Any, what: str, numbers: Sequence[int] | None = None, *, is_first: bool = False
    ) -> tuple[OutputMeasurement, float]:
        """Runs a version with the first loss scale at which no gradient overflows; returns errors
        and scale.

        If gradients overflow at every scale, none is used. ``what`` names the version for people;
        ``numbers`` are those of the batches, all by default. The first version's batches tell how
        long the whole comparison may take.
        """
        later = _JUDGING * self._judged(len(self.flat.batches)) + _NODES if is_first else 0
        gradients = [number for number, (kind, _) in enumerate(self.names) if kind == GRADIENT]

        def overflows(rows: np.ndarray) -> bool:
            return any(Statistics.of(rows[number : number + 1]).nonfinite for number in gradients)

        with contextlib.closing(self._version(graph, what)) as version:
            for scale in (
                _SCALES if self.flat.is_scaled and self.precision is Precision.FLOAT16 else ()
            ):
                measured = self._compare_with_float32(
                    version, what, numbers, scale, overflows, later=later
                )
                if measured.is_cut or not any(map(overflows, measured.rows.values())):
                    return measured, scale
            return self._compare_with_float32(
                version, what, numbers, _UNSCALED, later=later
            ), _UNSCALED

    def _judged(self, count: int) -> int:
        """How many of so many batches are judged."""
        return max(1, count // _SHARE_JUDGED)

    def yardstick(self, measured: OutputMeasurement, config: AmpConfig, scale: float) -> Yardstick:
        """How much the batches with the largest errors may differ; a GraphError if float32 itself
        differs each time.
        """
        numbers = measured.furthest(self._judged(len(measured.rows)))
        noise: list[np.ndarray] = []
        try:
            for place, number in enumerate(numbers, 1):
                self._progress(f"float32, disturbed: batch {place} of {len(numbers)}")
                # The disturbed run comes first, so that its copies of all variables are freed
                # before the next version.
                disturbed, truth = (
                    self._right(number, scale, is_disturbed=change) for change in (True, False)
                )
                noise.append(self._measure(disturbed, truth))
                del disturbed
                if place == 1 and self._without_truth(noise[0]):
                    self._progress("float32 once more")
                    if names := self._without_truth(
                        self._measure(self._right(number, scale), truth)
                    ):
                        python = by_python(self.flat.graph)
                        who = (
                            f"node {python[0]!r}, which calls Python,"
                            if python
                            else "something in the step"
                        )
                        raise GraphError(
                            f"{who} does something else each time: the same batch gives two "
                            "different values of "
                            f"{names[0]!r} in float32",
                            where="compare(model_or_function)",
                            fix="Draw random numbers with tf.random, or feed them",
                        )
        except KeyboardInterrupt:
            if not noise:
                raise
        ideal = self.measure_ideal(config, numbers[: len(noise)], scale)
        is_cut = len(ideal.rows) < len(numbers)
        return Yardstick([*ideal.rows], ideal.pooled(), pooled(noise[: len(ideal.rows)]), is_cut)

    def in_any_batch(self, yardstick: Yardstick, config: AmpConfig, scale: float) -> Yardstick:
        """The yardstick with the largest error of the ideal program in any batch: one batch can
        flatter the reference.

        A few numbers, such as a loss, may be near the truth in one batch, and far from it in
        another: of these it is the error over all batches.
        """
        measured = self.measure_ideal(config, None, scale)
        batches = zip(*(measured.pooled([number]) for number in measured.rows), strict=True)
        largest = [max(of_output, key=lambda one: one.error) for of_output in batches]
        both = zip(largest, measured.pooled(), strict=True)
        ideal = [together if one.size <= _FEW else one for one, together in both]
        return dataclasses.replace(yardstick, ideal=ideal, is_cut=measured.is_cut, has_all=True)

    def measure_ideal(
        self, config: AmpConfig, numbers: Sequence[int] | None, scale: float
    ) -> OutputMeasurement:
        """The errors of the ideal mixed program: only products are on a list, and nothing is
        forced.

        Products that are kept in float32 by name stay so.
        """
        infer, clear = (
            tuple(sorted({row.op for row in ROWS if row.op_list == name}))
            for name in (INFER, CLEAR)
        )
        ideal = AmpConfig(
            precision=config.precision,
            target=config.target,
            ignore_performance=config.ignore_performance,
            infer_remove=infer,
            clear_remove=clear,
            keep_float32=config.keep_float32,
        )
        with contextlib.closing(self._version(self.rewritten(ideal).graph, _IDEAL)) as version:
            return self._compare_with_float32(version, _IDEAL, numbers, scale)

    def judge(self, measured: OutputMeasurement, yardstick: Yardstick) -> list[Output]:
        """The verdict on each output."""
        numbers = [number for number in yardstick.numbers if number in measured.rows]
        found, everywhere = measured.pooled(numbers), measured.pooled()
        if yardstick.has_all:
            most = _FEW * len(measured.rows)
            found = [
                every if every.size <= most else one
                for one, every in zip(found, everywhere, strict=True)
            ]
        return judge(
            self.names, found, yardstick.ideal, yardstick.noise, everywhere, self.precision
        )

    def measure_nodes(
        self, rewritten: Any, number: int, scale: float, nodes: str | None
    ) -> list[NodeMeasurement]:
        """Measures each node in one batch."""
        # frees its variables, which are as large as the model: both sides have their own
        self.close()
        return measure_nodes(
            self.flat, rewritten, self.precision, number, scale, nodes, self._progress
        )

    def _version(self, graph: Any, what: str) -> RunnableStep:
        self._progress(f"{what}: building the graph")
        return RunnableStep(self.flat, graph, is_compiled=self.is_compiled)

    def _right(self, number: int, scale: float, *, is_disturbed: bool = False) -> list[np.ndarray]:
        assert self._float32 is not None
        return self._float32.run(number, scale, is_disturbed=is_disturbed)

    def _compare_with_float32(
        self,
        version: RunnableStep,
        what: str,
        numbers: Sequence[int] | None,
        scale: float,
        is_over: Callable[[np.ndarray], bool] = lambda _: False,
        later: int = 0,
    ) -> OutputMeasurement:
        """Runs a version and float32 alternately, until a batch's rows make the next ones needless.

        What comes ``later`` takes about as long as so many batches; if something does, the time
        that is left is told.
        """
        chosen = range(len(self.flat.batches)) if numbers is None else numbers
        rows: dict[int, np.ndarray] = {}
        try:
            left = ""
            for place, number in enumerate(chosen, 1):
                self._progress(f"{what}: batch {place} of {len(chosen)}{left}")
                begin = time.monotonic()
                right = self._right(number, scale)
                rows[number] = self._measure(version.run(number, scale), right)
                del right  # before the next batch has its own
                if later:
                    seconds = (time.monotonic() - begin) * (len(chosen) - place + later)
                    left = f", about {lasting(seconds)} left if all is well"
                if is_over(rows[number]):
                    break
        except KeyboardInterrupt:
            if not rows:
                raise
            return OutputMeasurement(rows, is_cut=True)
        return OutputMeasurement(rows)

    def _measure(self, found: Sequence[np.ndarray], truth: Sequence[np.ndarray]) -> np.ndarray:
        """A row for each output, shape (outputs, columns)."""
        from tensorflow.python.eager import context

        rows = []
        with context.eager_mode():  # which a program of TF1's has turned off
            for (kind, _), value, right in zip(self.names, found, truth, strict=True):
                # Optimizers make large numbers of small ones: of updates each zero that is none in
                # the truth counts.
                smallest = math.inf if kind == UPDATE else self.precision.smallest
                rows.append(
                    difference_row(value, right.astype(np.float32, copy=False), smallest).numpy()
                )
        return np.stack(rows)

    def _without_truth(self, rows: np.ndarray) -> list[str]:
        found = zip(self.names, pooled([rows]), strict=True)
        return [name for (_, name), one in found if one.distance > NO_TRUTH]
