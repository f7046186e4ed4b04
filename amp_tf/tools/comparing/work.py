"""Runs versions of a step beside float32, and judges their outputs by the yardstick."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from amp_tf.config import AmpConfig
from amp_tf.errors import GraphError
from amp_tf.hooks import layer_paths
from amp_tf.oplists.hardware import Hardware
from amp_tf.oplists.table import CLEAR, INFER, ROWS
from amp_tf.precision import Precision
from amp_tf.rewriting.pipeline import RewriteResult
from amp_tf.tools.comparing.flattening import GRADIENT, UPDATE, FlatStep
from amp_tf.tools.comparing.joining import RunnableStep, titles_of
from amp_tf.tools.comparing.nodes import NodeError, measure_nodes
from amp_tf.tools.comparing.verdicts import NO_TRUTH, Output, Statistics, difference_row, judge
from amp_tf.tools.progress import Progress, lasting

_UNSCALED = 1.0
# loss scales to try; loss scaling itself searches in smaller steps
_SCALES = tuple(2.0**power for power in (15, 11, 7, 3, 0, -5, -10))
_IDEAL = "products alone in 16 bit"
_FEW = 8  # the error of an output with so few numbers varies much between batches
_SHARE_JUDGED = 8  # one batch of so many is judged, because the yardstick costs three more runs
# The time of judging one batch, and of measuring single nodes, in runs of a batch.
_JUDGING = 2
_NODES = 3


@contextlib.contextmanager
def reference_conditions() -> Iterator[None]:
    """Turns TF32 off in the block, so that GPUs compute products of float32 values in float32.

    TensorFlow lets GPUs from Ampere on round the operands of such products to TF32, which has
    float16's mantissa: such a reference would be as inaccurate as what is compared with it. The
    setting is the process'. The layers of the step are recorded as it is traced.
    """
    from tensorflow.config import experimental

    before = experimental.tensor_float_32_execution_enabled()
    experimental.enable_tensor_float_32_execution(False)
    try:
        with layer_paths.recording():
            yield
    finally:
        experimental.enable_tensor_float_32_execution(before)


@dataclasses.dataclass(frozen=True)
class OutputMeasurement:
    """The differences between the outputs of a version and float32's."""

    rows: Mapping[int, np.ndarray]  #: for each batch that ran its number, and a row for each output
    scale: float  #: the loss scale with which they ran

    def pooled(self, numbers: Sequence[int] | None = None) -> list[Statistics]:
        """Returns the statistics of each output, over some batches or all."""
        if numbers is None:
            numbers = list(self.rows)
        return pooled([self.rows[number] for number in numbers])

    def furthest(self) -> list[int]:
        """Returns the batches, those with the largest errors first.

        They are sorted by the share of nonfinite numbers, then by the sum of errors.
        """

        def badness(number: int) -> tuple[float, float]:
            nonfinite = 0.0
            errors = 0.0
            for one in self.pooled([number]):
                nonfinite += one.nonfinite
                errors += min(one.error, 1e9)
            return nonfinite, errors

        return sorted(sorted(self.rows), key=badness, reverse=True)


def pooled(batches: Sequence[np.ndarray]) -> list[Statistics]:
    """Pools the rows of some batches; returns the statistics of each output."""
    return [Statistics.of(rows) for rows in np.stack(batches, axis=1)]


@dataclasses.dataclass(frozen=True)
class Yardstick:
    """How much the outputs of some batches may differ."""

    numbers: Sequence[int]  #: of the batches: those that are furthest off
    ideal: Sequence[Statistics]  #: how far off the ideal mixed program is, for each output
    noise: Sequence[Statistics]  #: how far float32 is with inputs that differ in their last bit
    #: whether ``ideal`` is of all batches; then outputs of a few numbers are judged by all of them
    #: together
    has_all: bool = False


class Work:
    """A step together with its float32 version; ``titles`` are those of its outputs."""

    def __init__(
        self, flat: FlatStep, hardware: Hardware, precision: Precision, progress: Progress
    ) -> None:
        self.flat = flat
        self.titles = titles_of(flat)
        self.precision = precision
        self._hardware = hardware
        self._progress = progress
        self._float32 = self._version(flat.graph, "float32")

    def close(self) -> None:
        """Frees the memory of the float32 version; the next run fills it again. Idempotent."""
        self._float32.close()

    def rewritten(self, config: AmpConfig) -> RewriteResult:
        """Returns the step as amp_tf rewrites it."""
        return self.flat.rewritten(config, self._hardware)

    def measure(
        self, graph: Any, what: str, numbers: Sequence[int] | None = None, *, is_first: bool = False
    ) -> OutputMeasurement:
        """Runs a version with the first loss scale at which no gradient overflows.

        If gradients overflow at every scale, none is used.

        Args:
            graph: the version.
            what: its name, for people.
            numbers: the batches; all by default.
            is_first: whether it is the first version, whose batches tell how long the whole
                comparison may take.
        """
        later = 0
        if is_first:
            later = _JUDGING * _judged(len(self.flat.batches)) + _NODES
        scales: tuple[float, ...] = ()
        if self.flat.is_scaled and self.precision is Precision.FLOAT16:
            scales = _SCALES
        with contextlib.closing(self._version(graph, what)) as version:
            for scale in scales:
                rows: dict[int, np.ndarray] = {}
                for number, row in self._differences(version, what, numbers, scale, later):
                    rows[number] = row
                    if self._overflows(row):
                        break
                else:
                    return OutputMeasurement(rows, scale)
            rows = dict(self._differences(version, what, numbers, _UNSCALED, later))
            return OutputMeasurement(rows, _UNSCALED)

    def _overflows(self, rows: np.ndarray) -> bool:
        """Tells whether a gradient is not finite."""
        for (kind, _), row in zip(self.titles, rows, strict=True):
            if kind == GRADIENT and Statistics.of([row]).nonfinite:
                return True
        return False

    def yardstick(self, measured: OutputMeasurement, config: AmpConfig) -> Yardstick:
        """Measures how much the batches with the largest errors may differ.

        Raises a GraphError if float32 itself differs each time.
        """
        scale = measured.scale
        numbers = measured.furthest()[: _judged(len(measured.rows))]
        noise: list[np.ndarray] = []
        for place, number in enumerate(numbers, 1):
            self._progress(f"float32, disturbed: batch {place} of {len(numbers)}")
            # The disturbed run comes first, so that its copies of all variables are freed before
            # the next version.
            disturbed = self._float32.run(number, scale, is_disturbed=True)
            truth = self._float32.run(number, scale)
            noise.append(self._rows(disturbed, truth))
            del disturbed
            if place == 1 and self._without_truth(noise[0]):
                self._progress("float32 once more")
                again = self._rows(self._float32.run(number, scale), truth)
                for name in self._without_truth(again):
                    raise GraphError(
                        "something in the step does something else each time: the same batch gives "
                        f"two different values of {name!r} in float32",
                        where="compare(model_or_function)",
                        fix="Draw random numbers with tf.random, not in Python, or feed them",
                    )
        ideal = self.measure_ideal(config, numbers, scale)
        return Yardstick(numbers, ideal.pooled(), pooled(noise))

    def _without_truth(self, rows: np.ndarray) -> list[str]:
        """Names the outputs of which float32 has fewer than two digits."""
        found = zip(self.titles, pooled([rows]), strict=True)
        return [name for (_, name), one in found if one.distance > NO_TRUTH]

    def in_any_batch(self, yardstick: Yardstick, config: AmpConfig, scale: float) -> Yardstick:
        """Returns the yardstick with the ideal program's largest error in any batch.

        One batch can flatter the reference.

        An output of few numbers, such as a loss, may be near the truth in one batch and far from it
        in another, so its error over all batches is taken.
        """
        measured = self.measure_ideal(config, None, scale)
        batches = [measured.pooled([number]) for number in measured.rows]
        ideal = []
        for together, *each in zip(measured.pooled(), *batches, strict=True):
            largest = max(each, key=lambda one: one.error)
            if largest.size <= _FEW:
                largest = together
            ideal.append(largest)
        return dataclasses.replace(yardstick, ideal=ideal, has_all=True)

    def measure_ideal(
        self, config: AmpConfig, numbers: Sequence[int] | None, scale: float
    ) -> OutputMeasurement:
        """Measures the ideal mixed program: only products are on a list, and nothing is forced.

        Products that are kept in float32 by name stay so.
        """
        infer = {row.op for row in ROWS if row.op_list == INFER}
        clear = {row.op for row in ROWS if row.op_list == CLEAR}
        ideal = AmpConfig(
            precision=config.precision,
            target=config.target,
            ignore_performance=config.ignore_performance,
            infer_remove=sorted(infer),
            clear_remove=sorted(clear),
            keep_float32=config.keep_float32,
        )
        with contextlib.closing(self._version(self.rewritten(ideal).graph, _IDEAL)) as version:
            rows = dict(self._differences(version, _IDEAL, numbers, scale))
            return OutputMeasurement(rows, scale)

    def judge(self, measured: OutputMeasurement, yardstick: Yardstick) -> list[Output]:
        """Returns the verdict on each output."""
        numbers = [number for number in yardstick.numbers if number in measured.rows]
        errors = measured.pooled(numbers)
        everywhere = measured.pooled()
        if yardstick.has_all:
            for place, every in enumerate(everywhere):
                if every.size <= _FEW * len(measured.rows):
                    errors[place] = every
        return judge(
            self.titles, errors, yardstick.ideal, yardstick.noise, everywhere, self.precision
        )

    def measure_nodes(self, rewritten: Any, number: int, scale: float) -> list[NodeError]:
        """Measures each node in one batch."""
        # Frees variables, which are as large as the model: both sides have their own.
        self.close()
        return measure_nodes(self.flat, rewritten, self.precision, number, scale, self._progress)

    def _version(self, graph: Any, what: str) -> RunnableStep:
        self._progress(f"{what}: building the graph")
        return RunnableStep(self.flat, graph)

    def _differences(
        self,
        version: RunnableStep,
        what: str,
        numbers: Sequence[int] | None,
        scale: float,
        later: int = 0,
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Runs a version and float32 alternately; yields the number of each batch and its rows.

        The rest of the comparison takes about as long as ``later`` batches. Unless that is zero,
        the progress tells the time left.
        """
        chosen = numbers
        if chosen is None:
            chosen = range(len(self.flat.batches))
        left = ""
        for place, number in enumerate(chosen, 1):
            self._progress(f"{what}: batch {place} of {len(chosen)}{left}")
            begin = time.monotonic()
            truth = self._float32.run(number, scale)
            rows = self._rows(version.run(number, scale), truth)
            del truth  # before the next batch has its own
            if later:
                seconds = (time.monotonic() - begin) * (len(chosen) - place + later)
                left = f", about {lasting(seconds)} left if all is well"
            yield number, rows

    def _rows(self, found: Sequence[np.ndarray], truth: Sequence[np.ndarray]) -> np.ndarray:
        """Returns a row for each output, shape (outputs, columns)."""
        from tensorflow.python.eager import context

        rows = []
        with context.eager_mode():  # which a program of TF1's has turned off
            for (kind, name), value, right in zip(self.titles, found, truth, strict=True):
                if value.shape != right.shape:
                    raise GraphError(
                        f"the shape of {name!r} depends on values: it was {right.shape}, and then "
                        f"{value.shape}",
                        where="compare(model_or_function)",
                        fix="Return what it is made of, such as the numbers before a threshold",
                    )
                # Optimizers make large numbers out of small ones, so in an update every zero counts
                # that is not zero in the truth.
                smallest = self.precision.smallest
                if kind == UPDATE:
                    smallest = math.inf
                right = right.astype(np.float32, copy=False)
                rows.append(difference_row(value, right, smallest).numpy())
        return np.stack(rows)


def _judged(count: int) -> int:
    """Returns how many of so many batches are judged."""
    return max(1, count // _SHARE_JUDGED)
