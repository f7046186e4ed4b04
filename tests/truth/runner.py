"""Runs a program in float32, as the ideal mixed program and under amp_tf, and judges every tensor
that it notes.
"""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import tensorflow as tf

from amp_tf.hooks import state as process_state
from tests.truth.bench import Bench
from tests.truth.modes import MODES, default_config, ideal_config, running
from tests.truth.yardstick import LIMIT, distance, judge


@dataclasses.dataclass(frozen=True)
class Row:
    """A tensor of a program in one mode, or what went wrong.

    Attributes:
        program: the program's name.
        way: ``graph`` or ``xla``.
        mode: the precision.
        case: which inputs.
        tensor: the tensor's name.
        ratio, error, ideal: as in :class:`tests.truth.yardstick.Verdict`.
        problem: the exception where the program failed under amp_tf and not in float32; else empty.
    """

    program: str
    way: str
    mode: str
    case: str
    tensor: str
    ratio: float
    error: float
    ideal: float
    problem: str = ""

    @classmethod
    def of_failure(cls, program, way, mode, problem):
        """Makes the row of a program that failed as a whole."""
        endless = float("inf")
        return cls(program, way, mode, "", "", endless, endless, 0.0, problem)


def append(path, rows):
    """Writes rows to a file, one line of JSON each."""
    with path.open("a", encoding="utf-8") as lines:
        lines.writelines(json.dumps(dataclasses.asdict(row)) + "\n" for row in rows)


def read(path):
    """The rows of a file; a last line that was cut off is none."""
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            yield Row(**json.loads(line))
        except json.JSONDecodeError:
            return


def rows_of(program, modes, ways, briefly=False):
    """All rows of a program, in the modes and ways given.

    Briefly, tensors that are good beside an ideal program without any error are judged so: the real
    one, which only allows more, does not run for them.
    """
    for way in ways:
        if way == "graph" or program.compiled:
            yield from _Comparison(program, way, briefly).rows(modes)


DRAWS = 5  # of the inputs of a program that is not good at once
_NOTHING = np.empty(
    0
)  # what a program that was refused by a kernel has of a tensor: infinitely far from the truth


class _Comparison:
    """A program run one way, with the values that were computed so far."""

    def __init__(self, program, way, briefly):
        self._program = program
        self._way = way
        self._briefly = briefly
        self._known = {}

    def rows(self, modes):
        try:
            truth = self._values("float32")
        except tf.errors.InvalidArgumentError:
            if self._way == "xla":
                return  # XLA has no kernel for some op of it
            raise
        for mode in modes:
            if mode == "auto" and self._way == "xla":
                continue  # float32, by decision: tests/oplists/test_targets.py
            try:
                self._values(f"default {mode}")
                judged = [self._judged(key, mode) for key in truth]
            except Exception as error:
                problem = (
                    f"{type(error).__name__}: "
                    f"{str(error).splitlines()[0][:200] if str(error) else ''}"
                )
                yield Row.of_failure(self._program.name, self._way, mode, problem)
                continue
            yield from judged

    def _judged(self, key, mode):
        """The verdict on one tensor; where it is bad, the median one of five draws of the inputs.

        One ideal program rounds one way, and lies nearer to float32 than others by luck: of a
        number that a user reads, once in some thirty. It is not so lucky in three draws of five.
        """
        verdicts = [self._verdict(key, mode)]
        if LIMIT < verdicts[0].ratio < np.inf:
            verdicts += [self._verdict(key, mode, draw) for draw in range(1, DRAWS)]
        verdict = sorted(verdicts, key=lambda one: one.ratio)[len(verdicts) // 2]
        return Row(self._program.name, self._way, mode, *key, **dataclasses.asdict(verdict))

    def _verdict(self, key, mode, draw=0):
        tensor = key[1]
        unit = MODES[mode].unit
        value = self._values(f"default {mode}", draw).get(key, _NOTHING)
        known = self._values("float32", draw).get(key, _NOTHING)
        if self._briefly:
            verdict = judge(tensor, value, known, known, unit)
            if verdict.is_good:
                return verdict
        least = self._values(f"ideal {MODES[mode].ideal}", draw).get(key, _NOTHING)
        verdict = judge(tensor, value, least, known, unit)
        if verdict.ratio > LIMIT:
            noise = distance(self._values("noise", draw).get(key, _NOTHING), known)
            verdict = judge(tensor, value, least, known, unit, noise)
        return verdict

    def _values(self, what, draw=0):
        """The values of the program, run some way; draws differ in their inputs."""
        if (what, draw) not in self._known:
            kind, _, mode = what.partition(" ")
            configs = {
                "default": lambda: default_config(MODES[mode]),
                "ideal": lambda: ideal_config(mode),
            }
            config = configs[kind]() if kind in configs else None
            failures = process_state.current().failures
            name = f"{self._program.name}#{draw}" if draw else self._program.name
            bench = Bench(name, jit=self._way == "xla", noise=float(kind == "noise"))
            with running(config):
                self._program.run(bench)
            if failures != process_state.current().failures:
                raise RuntimeError("amp_tf failed on a graph, which stayed in float32")
            self._known[what, draw] = bench.values()
        return self._known[what, draw]
