"""What is done with a step: rewritten, run beside float32, and judged by the yardstick."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from amp_tf.comparing.flattening import FlatStep
from amp_tf.comparing.forms import Form, Ruler, output_names
from amp_tf.comparing.instruments import Statistics
from amp_tf.comparing.progress import Progress
from amp_tf.comparing.randomness import by_python
from amp_tf.comparing.running import Looked, Measured, against, look
from amp_tf.comparing.steps import GRADIENT, Step
from amp_tf.comparing.verdicts import NO_TRUTH, Output, judge
from amp_tf.config import AmpConfig
from amp_tf.errors import GraphError
from amp_tf.oplists.hardware import Hardware
from amp_tf.oplists.table import CLEAR, INFER, ROWS
from amp_tf.precision import Precision
from amp_tf.rewriting.pipeline import RewriteResult, rewrite

_UNSCALED = 1.0
_SCALES = (
    2.0**15,
    2.0**11,
    2.0**7,
    2.0**3,
    _UNSCALED,
    2.0**-5,
    2.0**-10,
)  # as loss scaling finds its own, in larger steps
_JUDGED = 8  # of so many batches one is judged: the yardstick costs some four more runs


@dataclasses.dataclass(frozen=True)
class Yardstick:
    """What some batches' outputs may differ by.

    Attributes:
        numbers: of the batches: those that are furthest off.
        ideal: how far off the ideal mixed program is, for each output.
        noise: how far float32 is with inputs that differ in their last bit.
    """

    numbers: tuple[int, ...]
    ideal: Sequence[Statistics]
    noise: Sequence[Statistics]


class Work:
    """A step, with float32's form of it.

    Args:
        step: the step.
        flat: its graph.
        hardware: the devices to rewrite for.
        progress: is told what is done.
    """

    def __init__(self, step: Step, flat: FlatStep, hardware: Hardware | None, progress: Progress) -> None:
        self.step, self.flat, self.names = step, flat, output_names(step, flat)
        self._hardware, self._progress = hardware, progress
        self._float32: Form | None = None

    def __enter__(self) -> Work:
        return self

    def __exit__(self, *_: object) -> None:
        if self._float32 is not None:
            self._float32.close()

    def rewritten(self, config: AmpConfig) -> RewriteResult:
        """The step as amp_tf rewrites it."""
        return rewrite(self.flat.graph, config, preserve=self.flat.ends, hardware=self._hardware)

    def begin(self, precision: Precision) -> None:
        """Prepares what is needed for the runs.

        Args:
            precision: the 16-bit type.
        """
        self._progress("building float32's graph")
        self.precision, self._ruler = precision, Ruler(precision.smallest)
        self._float32 = Form(self.step, self.flat, self.flat.graph)

    def measure(self, graph: Any, what: str, numbers: Sequence[int] | None = None) -> tuple[Measured, float]:
        """Runs a form with the first loss scale at which no gradient overflows; what was measured, and the scale.

        Where gradients overflow at any scale, none is used.

        Args:
            graph: the form's GraphDef.
            what: it is called, for people.
            numbers: of the batches; all by default.
        """
        form = self._form(graph, what)
        try:
            for scale in _SCALES if self.step.is_scaled and self.precision.needs_loss_scaling else ():
                measured = self._against(form, what, numbers, scale, is_over=self._overflows)
                if measured.is_cut or not self._overflows(*measured.rows.values()):
                    return measured, scale
            return self._against(form, what, numbers, _UNSCALED), _UNSCALED
        finally:
            form.close()

    def yardstick(self, measured: Measured, config: AmpConfig, scale: float) -> Yardstick:
        """What the batches may differ by that are furthest off.

        Args:
            measured: how far off they are.
            config: by which they were rewritten.
            scale: of the loss.

        Raises:
            GraphError: float32 itself gives other numbers each time.
        """
        numbers = measured.furthest(max(1, len(measured.rows) // _JUDGED))
        assert self._float32 is not None
        noise = self._against(self._float32, "float32, disturbed", numbers, scale, is_disturbed=True).pooled()
        if any(one.distance > NO_TRUTH for one in noise):
            self._check_again(numbers[:1], scale)
        return Yardstick(tuple(numbers), self._ideal(numbers, config, scale), noise)

    def yardstick_of_trial(self, yardstick: Yardstick, config: AmpConfig, scale: float) -> Yardstick:
        """The yardstick for a trial: without the products that the trial mends, if one of these is not finite.

        Args:
            yardstick: of the step as it was.
            config: by which the trial was rewritten.
            scale: of the loss in the trial.
        """
        if not any(one.nonfinite for one in yardstick.ideal):
            return yardstick
        return dataclasses.replace(yardstick, ideal=self._ideal(yardstick.numbers, config, scale))

    def _ideal(self, numbers: Sequence[int], config: AmpConfig, scale: float) -> Sequence[Statistics]:
        """How far off the ideal mixed program is in some batches."""
        what = "products alone in 16 bit"
        form = self._form(self.rewritten(_ideal(config)).graph, what)
        try:
            return self._against(form, what, numbers, scale).pooled()
        finally:
            form.close()

    def judge(self, measured: Measured, yardstick: Yardstick) -> list[Output]:
        """The verdict on each output."""
        found = measured.pooled([number for number in yardstick.numbers if number in measured.rows])
        return judge(self.names, found, yardstick.ideal, yardstick.noise, measured.pooled(), self.precision)

    def look(self, rewritten: Any, number: int, scale: float, nodes: str | None) -> list[Looked]:
        """What is measured at each node in one batch; the arguments are those of :func:`look`."""
        if self._float32 is not None:
            self._float32.close()  # its variables are as much as the model, and both sides have theirs
        return look(self.step, self.flat, rewritten, self.precision, number, scale, nodes, self._progress)

    def _form(self, graph: Any, what: str) -> Form:
        self._progress(f"{what}: building the graph")
        return Form(self.step, self.flat, graph)

    def _against(self, form: Form, what: str, numbers: Sequence[int] | None, scale: float, **settings: Any) -> Measured:
        def tell(place: int, count: int) -> None:
            self._progress(f"{what}: batch {place} of {count}")

        assert self._float32 is not None
        chosen = range(len(self.step.batches)) if numbers is None else numbers
        measure = functools.partial(self._ruler.measure, kinds=[kind for kind, _ in self.names])
        return against(self._float32, form, measure, chosen, scale, tell=tell, **settings)

    def _overflows(self, *batches: np.ndarray) -> bool:
        gradients = [number for number, (kind, _) in enumerate(self.names) if kind == GRADIENT]
        return any(Statistics.of(rows[number : number + 1]).nonfinite for rows in batches for number in gradients)

    def _check_again(self, numbers: Sequence[int], scale: float) -> None:
        """Sees that float32 says the same twice, where its last bits seem to matter."""
        assert self._float32 is not None
        again = self._against(self._float32, "float32 once more", numbers, scale).pooled()
        names = [name for (_, name), one in zip(self.names, again, strict=True) if one.distance > NO_TRUTH]
        if names:
            python = by_python(self.flat.graph)
            who = f"node {python[0]!r}, which calls Python," if python else "something in the step"
            raise GraphError(
                f"{who} does something else each time: the same batch gives two different values of {names[0]!r} in "
                "float32",
                where="compare(model_or_function)",
                fix="Draw random numbers with tf.random, or feed them",
            )


def _ideal(config: AmpConfig) -> AmpConfig:
    """Products alone: what would follow them into 16 bit, or pass 16 bit on, is on no list, and nothing is forced.

    Products that are kept in float32 by name are so in it, too.
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
