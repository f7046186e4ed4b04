"""Everything that is done with a step: rewrite it, run it beside float32, and judge it by the yardstick.

Trials run the step with more nodes in float32. Most run only the watched batches: the judged one, and each batch on
which a set of patterns failed that did well on those watched before. So a set that must hold on all batches is found at
the price of a few.
"""

from __future__ import annotations

import contextlib
import dataclasses
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
from amp_tf.tools.comparing import verdicts
from amp_tf.tools.comparing.flattening import GRADIENT, UPDATE, FlatStep, Step, by_python
from amp_tf.tools.comparing.joining import RunnableStep, new_session, output_names
from amp_tf.tools.comparing.nodes import NodeMeasurement, measure_nodes
from amp_tf.tools.comparing.verdicts import NO_TRUTH, Output, Patterns, Statistics, judge
from amp_tf.tools.progress import Progress

_UNSCALED = 1.0
_SCALES = tuple(2.0**power for power in (15, 11, 7, 3, 0, -5, -10))  # as loss scaling searches, in larger steps
_IDEAL = "products alone in 16 bit"
_FEW = 8  # numbers of an output whose error varies much between batches
_JUDGED = 8  # one batch of so many is judged, because the yardstick costs about three more runs


@contextlib.contextmanager
def reference_conditions() -> Iterator[None]:
    """Turns TF32 off in the block, so that GPUs compute products of float32 values in float32.

    TensorFlow lets GPUs from Ampere on round the operands of such products to TF32, which has float16's mantissa: such
    a reference would be as inaccurate as what is compared with it. The setting is the process'. And the layers of the
    step are those of its own trace, not of what was traced with amp_tf on before.
    """
    from tensorflow.config.experimental import enable_tensor_float_32_execution, tensor_float_32_execution_enabled

    before = tensor_float_32_execution_enabled()
    enable_tensor_float_32_execution(False)
    try:
        with layer_paths.of_this_trace():
            yield
    finally:
        enable_tensor_float_32_execution(before)


@dataclasses.dataclass(frozen=True)
class OutputMeasurement:
    """How the outputs of a version differ from float32's.

    Attributes:
        rows: for each batch that ran its number, and a row for each output.
        is_cut: whether the user interrupted it, and batches are missing.
    """

    rows: Mapping[int, np.ndarray]
    is_cut: bool = False

    def pooled(self, numbers: Sequence[int] | None = None) -> list[Statistics]:
        """The statistics of each output, over some batches or all."""
        return pooled([self.rows[number] for number in (self.rows if numbers is None else numbers)])

    def furthest(self, count: int) -> list[int]:
        """The batches with the largest errors: most nonfinite numbers first, then by the sum of errors."""

        def off(number: int) -> tuple[float, float]:
            found = self.pooled([number])
            return sum(one.nonfinite for one in found), sum(min(one.error, 1e9) for one in found)

        return sorted(self.rows, key=lambda number: (*(-figure for figure in off(number)), number))[:count]


def pooled(batches: Sequence[np.ndarray]) -> list[Statistics]:
    """The statistics of each output, over the rows of some batches."""
    return [Statistics.of(rows) for rows in np.stack(batches, axis=1)]


@dataclasses.dataclass(frozen=True)
class Yardstick:
    """How much the outputs of some batches may differ.

    Attributes:
        numbers: of the batches: those that are furthest off.
        ideal: how far off the ideal mixed program is, for each output.
        noise: how far float32 is with inputs that differ in their last bit.
        is_cut: whether the user interrupted it, and batches are missing.
        has_all: whether ``ideal`` is of all batches; then outputs of a few numbers are judged by all of them together.
    """

    numbers: tuple[int, ...]
    ideal: Sequence[Statistics]
    noise: Sequence[Statistics]
    is_cut: bool = False
    has_all: bool = False


class Ruler:
    """Measures how outputs differ from the true ones.

    Args:
        smallest: the smallest positive number of the 16-bit type.
    """

    def __init__(self, smallest: float) -> None:
        import tensorflow as tf

        self._smallest = smallest
        self._graph = tf.Graph()
        self._session = new_session(self._graph)
        self._ends: dict[Any, tuple[Any, Any, Any, Any]] = {}

    def measure(self, found: Sequence[np.ndarray], truth: Sequence[np.ndarray], kinds: Sequence[str]) -> np.ndarray:
        """A row for each output, shape (outputs, columns).

        Args:
            found, truth: the outputs.
            kinds: of the outputs. Of updates each number that is zero and not in the truth counts as underflown:
                optimizers make large numbers of small ones.
        """
        rows = []
        for value, right, kind in zip(found, truth, kinds, strict=True):
            of_value, of_truth, quick, thorough = self._of(value.dtype, kind == UPDATE)
            feed = {of_value: value, of_truth: right.astype(np.float32, copy=False)}
            row = self._session.run(quick, feed)
            rows.append(verdicts.settled(row) if verdicts.is_enough(row) else self._session.run(thorough, feed))
        return np.stack(rows)

    def _of(self, dtype: Any, is_update: bool) -> tuple[Any, Any, Any, Any]:
        import tensorflow as tf

        if (dtype, is_update) not in self._ends:
            smallest = float("inf") if is_update else self._smallest
            with self._graph.as_default():
                ends = tf.compat.v1.placeholder(dtype, None), tf.compat.v1.placeholder(tf.float32, None)
                quick = verdicts.quick_row(*ends, smallest)
                self._ends[dtype, is_update] = (*ends, quick, verdicts.thorough_row(*ends, smallest))
        return self._ends[dtype, is_update]


class Work:
    """A step together with its float32 version.

    Args:
        step: the step.
        flat: its graph.
        hardware: the devices to rewrite for.
        progress: called with what is being done.

    Attributes:
        is_compiled: whether versions are run by XLA, as the program runs the step or a part of it.
        why_not_compiled: what XLA says where it cannot.
    """

    def __init__(self, step: Step, flat: FlatStep, hardware: Hardware | None, progress: Progress) -> None:
        self.step, self.flat, self.names = step, flat, output_names(step, flat)
        self._hardware, self._progress = hardware, progress
        self.is_compiled, self.why_not_compiled = flat.is_compiled, ""
        self._float32: RunnableStep | None = None

    def __enter__(self) -> Work:
        return self

    def __exit__(self, *_: object) -> None:
        if self._float32 is not None:
            self._float32.close()

    def rewritten(self, config: AmpConfig) -> RewriteResult:
        """The step as amp_tf rewrites it."""
        return self.flat.rewritten(config, self._hardware)

    def begin(self, precision: Precision, target: str | None) -> None:
        """Prepares the runs.

        Args:
            precision: the 16-bit type.
            target: the device kind that the verdict is for, of ``AmpConfig``.
        """
        import tensorflow as tf

        self.precision, self._ruler = precision, Ruler(precision.smallest)
        if self.is_compiled and target == "gpu" and not tf.config.list_physical_devices("GPU"):
            self.is_compiled, self.why_not_compiled = False, "on CPUs it leaves out most roundings, on GPUs it does not"
        if self.is_compiled:
            try:
                self._float32 = self._version(self.flat.graph, "float32, by XLA")
                self._float32.run(0, _UNSCALED)
                return
            except (GraphError, ValueError) as error:  # as it runs, and as it is imported
                self.is_compiled, self.why_not_compiled = False, str(getattr(error, "what", error))
        if self._float32 is not None:
            self._float32.close()
        self._float32 = self._version(self.flat.graph, "float32")

    def measure(self, graph: Any, what: str, numbers: Sequence[int] | None = None) -> tuple[OutputMeasurement, float]:
        """Runs a version with the first loss scale at which no gradient overflows; returns errors and scale.

        If gradients overflow at every scale, none is used.

        Args:
            graph: the version's GraphDef.
            what: it is called, for people.
            numbers: of the batches; all by default.
        """
        with contextlib.closing(self._version(graph, what)) as version:
            for scale in _SCALES if self.step.is_scaled and self.precision.needs_loss_scaling else ():
                measured = self._compare_with_float32(version, what, numbers, scale, self._overflows)
                if measured.is_cut or not self._overflows(*measured.rows.values()):
                    return measured, scale
            return self._compare_with_float32(version, what, numbers, _UNSCALED), _UNSCALED

    def yardstick(self, measured: OutputMeasurement, config: AmpConfig, scale: float) -> Yardstick:
        """How much the batches with the largest errors may differ.

        Args:
            measured: how far off they are.
            config: by which they were rewritten.
            scale: of the loss.

        Raises:
            GraphError: float32 itself gives different numbers each time.
        """
        numbers = measured.furthest(max(1, len(measured.rows) // _JUDGED))
        noise: list[np.ndarray] = []
        ideal: list[np.ndarray] = []
        assert self._float32 is not None
        version = None
        try:
            for place, number in enumerate(numbers, 1):
                self._progress(f"float32, disturbed: batch {place} of {len(numbers)}")
                # The disturbed run comes first, so that its copies of all variables are freed before the next version.
                disturbed = self._float32.run(number, scale, is_disturbed=True)
                truth = self._float32.run(number, scale)
                noise.append(self._measure(disturbed, truth))
                del disturbed
                if place == 1 and self._without_truth(noise[0]):
                    self._check_again(number, scale, truth)
                version = version or self._version(self.rewritten(_ideal(config)).graph, _IDEAL)
                self._progress(f"{_IDEAL}: batch {place} of {len(numbers)}")
                ideal.append(self._measure(version.run(number, scale), truth))
        except KeyboardInterrupt:
            if not ideal:
                raise
        finally:
            if version is not None:
                version.close()
        done = len(ideal)
        return Yardstick(tuple(numbers[:done]), pooled(ideal), pooled(noise[:done]), is_cut=done < len(numbers))

    def in_any_batch(self, yardstick: Yardstick, config: AmpConfig, scale: float) -> Yardstick:
        """The yardstick with the largest error of the ideal program in any batch: one batch can flatter the reference.

        A few numbers, such as a loss, may be near the truth in one batch, and far from it in another: of these it is
        the error over all batches.

        Args:
            yardstick: of the step.
            config: by which it was rewritten.
            scale: of the loss.
        """
        measured = self._measure_ideal(config, None, scale)
        batches = zip(*(measured.pooled([number]) for number in measured.rows), strict=True)
        largest = [max(of_output, key=lambda one: one.error) for of_output in batches]
        ideal = [
            together if one.size <= _FEW else one for one, together in zip(largest, measured.pooled(), strict=True)
        ]
        return dataclasses.replace(yardstick, ideal=ideal, is_cut=measured.is_cut, has_all=True)

    def yardstick_of_trial(self, yardstick: Yardstick, config: AmpConfig, scale: float) -> Yardstick:
        """The yardstick for a trial; where a product that was fixed is not finite, computed without it.

        Args:
            yardstick: of the step as it was.
            config: by which the trial was rewritten.
            scale: of the loss in the trial.
        """
        if not any(one.nonfinite for one in yardstick.ideal):
            return yardstick
        return dataclasses.replace(yardstick, ideal=self._measure_ideal(config, yardstick.numbers, scale).pooled())

    def judge(self, measured: OutputMeasurement, yardstick: Yardstick) -> list[Output]:
        """The verdict on each output."""
        numbers = [number for number in yardstick.numbers if number in measured.rows]
        found, everywhere = measured.pooled(numbers), measured.pooled()
        if yardstick.has_all:
            most = _FEW * len(measured.rows)
            found = [every if every.size <= most else one for one, every in zip(found, everywhere, strict=True)]
        return judge(self.names, found, yardstick.ideal, yardstick.noise, everywhere, self.precision)

    def measure_nodes(self, rewritten: Any, number: int, scale: float, nodes: str | None) -> list[NodeMeasurement]:
        """Measures each node in one batch; arguments as for :func:`running.measure_nodes`."""
        if self._float32 is not None:
            self._float32.close()  # frees its variables, which are as large as the model: both sides have their own
        return measure_nodes(self.step, self.flat, rewritten, self.precision, number, scale, nodes, self._progress)

    def _version(self, graph: Any, what: str) -> RunnableStep:
        self._progress(f"{what}: building the graph")
        return RunnableStep(self.step, self.flat, graph, is_compiled=self.is_compiled)

    def _measure_ideal(self, config: AmpConfig, numbers: Sequence[int] | None, scale: float) -> OutputMeasurement:
        with contextlib.closing(self._version(self.rewritten(_ideal(config)).graph, _IDEAL)) as version:
            return self._compare_with_float32(version, _IDEAL, numbers, scale)

    def _compare_with_float32(
        self,
        version: RunnableStep,
        what: str,
        numbers: Sequence[int] | None,
        scale: float,
        is_over: Callable[[np.ndarray], bool] = lambda _: False,
    ) -> OutputMeasurement:
        """Runs a version and float32 alternately, until a batch's rows make the next ones needless."""
        assert self._float32 is not None
        chosen = range(len(self.step.batches)) if numbers is None else numbers
        rows: dict[int, np.ndarray] = {}
        try:
            for place, number in enumerate(chosen, 1):
                self._progress(f"{what}: batch {place} of {len(chosen)}")
                right = self._float32.run(number, scale)
                rows[number] = self._measure(version.run(number, scale), right)
                del right  # before the next batch has its own
                if is_over(rows[number]):
                    break
        except KeyboardInterrupt:
            if not rows:
                raise
            return OutputMeasurement(rows, is_cut=True)
        return OutputMeasurement(rows)

    def _measure(self, found: Sequence[np.ndarray], truth: Sequence[np.ndarray]) -> np.ndarray:
        """A row for each output."""
        return self._ruler.measure(found, truth, [kind for kind, _ in self.names])

    def _without_truth(self, rows: np.ndarray) -> list[str]:
        """The outputs on which float32 disagrees with itself."""
        found = zip(self.names, pooled([rows]), strict=True)
        return [name for (_, name), one in found if one.distance > NO_TRUTH]

    def _overflows(self, *batches: np.ndarray) -> bool:
        gradients = [number for number, (kind, _) in enumerate(self.names) if kind == GRADIENT]
        return any(Statistics.of(rows[number : number + 1]).nonfinite for rows in batches for number in gradients)

    def _check_again(self, number: int, scale: float, truth: Sequence[np.ndarray]) -> None:
        """Checks that float32 gives the same result twice."""
        assert self._float32 is not None
        self._progress("float32 once more")
        if names := self._without_truth(self._measure(self._float32.run(number, scale), truth)):
            python = by_python(self.flat.graph)
            who = f"node {python[0]!r}, which calls Python," if python else "something in the step"
            raise GraphError(
                f"{who} does something else each time: the same batch gives two different values of {names[0]!r} in "
                "float32",
                where="compare(model_or_function)",
                fix="Draw random numbers with tf.random, or feed them",
            )


def _ideal(config: AmpConfig) -> AmpConfig:
    """The configuration of the ideal mixed program: only products are on a list, and nothing is forced.

    Products that are kept in float32 by name stay so.
    """
    infer, clear = (tuple(sorted({row.op for row in ROWS if row.op_list == name})) for name in (INFER, CLEAR))
    return AmpConfig(
        precision=config.precision,
        target=config.target,
        ignore_performance=config.ignore_performance,
        infer_remove=infer,
        clear_remove=clear,
        keep_float32=config.keep_float32,
    )


@dataclasses.dataclass(frozen=True)
class _Tried:
    """The result of a trial: the outputs, its batches with the largest errors first, and the loss scale."""

    outputs: Sequence[Output]
    furthest: Sequence[int]
    scale: float


class Trials:
    """Trials of a step; each is made only once.

    Args:
        work: the step.
        config: the settings without further patterns.
        yardstick: by which outputs are judged, with the batches that are watched first.

    Attributes:
        count: how many trials were made.
    """

    def __init__(self, work: Work, config: AmpConfig, yardstick: Yardstick) -> None:
        self._work, self._config, self._yardstick = work, config, yardstick
        self._watched = yardstick.numbers
        self._known: dict[tuple[frozenset[str], Sequence[int]], _Tried] = {}
        self.count = 0

    def _config_with(self, patterns: Patterns) -> AmpConfig:
        return dataclasses.replace(self._config, keep_float32=(*self._config.keep_float32, *patterns))

    def converted(self) -> list[str]:
        """The nodes that are 16 bit without further patterns, by name."""
        return [node.name for node in self._work.rewritten(self._config).report.nodes if node.precision.is_f16]

    def outputs(self, patterns: Patterns) -> Sequence[Output]:
        """The outputs on the watched batches; an interrupt of the user's ends the trial."""
        return self._run(patterns, self._watched).outputs

    def is_right(self, patterns: Patterns) -> bool:
        """Whether all outputs are good on the watched batches."""
        return all(output.is_good for output in self.outputs(patterns))

    def holds(self, patterns: Patterns) -> bool:
        """Whether all outputs are good on all batches; if not, the worst batch is watched from now on."""
        everything = tuple(range(len(self._work.step.batches)))
        if not self.is_right(patterns):
            return False
        tried = self._run(patterns, everything)
        if all(output.is_good for output in tried.outputs):
            return True
        self._watched += tuple(number for number in tried.furthest if number not in self._watched)[:1]
        return False

    def measure_nodes(self, patterns: Patterns) -> list[NodeMeasurement]:
        """Measures each node with these patterns, in the batch with the largest error."""
        tried = self._run(patterns, self._watched)
        rewritten = self._work.rewritten(self._config_with(patterns)).graph
        return self._work.measure_nodes(rewritten, tried.furthest[0], tried.scale, None)

    def _run(self, patterns: Patterns, numbers: Sequence[int]) -> _Tried:
        key = frozenset(patterns), tuple(sorted(numbers))
        if key not in self._known:
            self.count += 1
            config = self._config_with(patterns)
            what = f"a trial with {', '.join(patterns)} in float32"
            measured, scale = self._work.measure(self._work.rewritten(config).graph, what, numbers)
            if measured.is_cut:
                raise KeyboardInterrupt
            yardstick = self._work.yardstick_of_trial(self._yardstick, config, scale)
            outputs = self._work.judge(measured, yardstick)
            self._known[key] = _Tried(outputs, measured.furthest(len(numbers)), scale)
        return self._known[key]
