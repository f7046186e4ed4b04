"""Runs the step with more nodes in float32.

Most trials run only the watched batches: the judged one, and each batch on which a set of patterns failed that did well
on those watched before. So a set that must hold on all batches is found at the price of a few.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from amp_tf.comparing.running import NodeMeasurement
from amp_tf.comparing.suspects import Patterns
from amp_tf.comparing.verdicts import Output
from amp_tf.comparing.work import Work, Yardstick
from amp_tf.config import AmpConfig


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

    def config(self, patterns: Patterns) -> AmpConfig:
        """The configuration with further patterns in ``keep_float32``."""
        return dataclasses.replace(self._config, keep_float32=(*self._config.keep_float32, *patterns))

    def converted(self, patterns: Patterns) -> list[str]:
        """The nodes that are 16 bit with these patterns, by name."""
        return [node.name for node in self._work.rewritten(self.config(patterns)).report.nodes if node.precision.is_f16]

    def outputs(self, patterns: Patterns) -> Sequence[Output]:
        """The outputs on the watched batches.

        Raises:
            KeyboardInterrupt: the user interrupted the trial.
        """
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
        rewritten = self._work.rewritten(self.config(patterns)).graph
        return self._work.measure_nodes(rewritten, tried.furthest[0], tried.scale, None)

    def _run(self, patterns: Patterns, numbers: Sequence[int]) -> _Tried:
        key = frozenset(patterns), tuple(sorted(numbers))
        if key not in self._known:
            self.count += 1
            config = self.config(patterns)
            what = f"a trial with {', '.join(patterns)} in float32"
            measured, scale = self._work.measure(self._work.rewritten(config).graph, what, numbers)
            if measured.is_cut:
                raise KeyboardInterrupt
            yardstick = self._work.yardstick_of_trial(self._yardstick, config, scale)
            outputs = self._work.judge(measured, yardstick)
            self._known[key] = _Tried(outputs, measured.furthest(len(numbers)), scale)
        return self._known[key]
