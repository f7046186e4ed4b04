"""The trials of ``amp-tf doctor``: real conversions, run and timed."""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import time
from collections.abc import Callable
from typing import Any

from amp_tf.config import AmpConfig, with_settings

WAYS = ("grappler", "xla")
PRECISIONS = ("float32", "bfloat16", "float16")
# Relative to the largest magnitude of the float32 result: a few units in the last place of each
# type (2^-8, 2^-11), because two products and their inputs are rounded.
TOLERANCES = {"float32": 0.0, "bfloat16": 2**-5, "float16": 2**-8}
ROUNDS = 9  #: of timed runs
_Made = tuple[
    Callable[[], Any], Any, int
]  # a traced function, its first result, and how many nodes were converted


@dataclasses.dataclass(frozen=True)
class Trial:
    """Two matrix products on one device, the way TensorFlow runs them for a user."""

    device: str  #: such as ``"CPU:0"``
    way: str  #: ``"grappler"`` (tf.function) or ``"xla"`` (``jit_compile=True``)
    precision: str  #: what was asked for; ``"float32"`` is the run without amp_tf
    converted: int = 0  #: nodes converted
    milliseconds: float = (
        0.0  #: median time of a run, over rounds in which each precision runs once
    )
    speedup: float = 0.0  #: float32's ``milliseconds`` over these
    error: float = 0.0  #: largest difference from float32, relative to float32's largest magnitude
    failure: str = ""  #: what went wrong, or ``""``


def run_trials(devices: list[str]) -> list[Trial]:
    """Runs every way in every precision on devices such as ``"CPU:0"``; amp_tf is off again
    afterwards.
    """
    from amp_tf.reporting import reports

    trials = [trial for device in devices for way in WAYS for trial in _run_way(device, way)]
    reports.reset()  # no line at exit for the graphs of the trials
    return trials


def _run_way(device: str, way: str) -> list[Trial]:
    failures: dict[str, str] = {}
    made: dict[str, _Made] = {}
    times: dict[str, list[float]] = {precision: [] for precision in PRECISIONS}  # in milliseconds
    # Alternately, so that other load affects all alike: first each is made, then each runs once a
    # round.
    for precision in PRECISIONS * (1 + ROUNDS):
        if precision in failures:
            continue
        try:
            if precision not in made:
                made[precision] = _make(device, way, precision)
                continue
            begin = time.perf_counter()
            made[precision][0]()
            times[precision].append(1e3 * (time.perf_counter() - begin))
        except Exception as problem:  # whatever TensorFlow or a driver raises is a finding, not the end of the doctor
            failures[precision] = (
                f"{type(problem).__name__}: {(str(problem).splitlines() or [''])[0][:200]}"
            )
            made.pop(precision, None)
    trials = [
        Trial(device, way, precision, failure=failure) for precision, failure in failures.items()
    ]
    for precision, (_, result, converted) in made.items():
        first = next(iter(made))
        baseline = made[first][1]
        error = float(abs(result - baseline).max() / abs(baseline).max())
        milliseconds = statistics.median(times[precision])
        speedup = statistics.median(times[first]) / milliseconds
        figures = converted, milliseconds, speedup, error
        trials.append(Trial(device, way, precision, *figures, _judge(precision, converted, error)))
    return sorted(trials, key=lambda trial: PRECISIONS.index(trial.precision))


def _make(device: str, way: str, precision: str) -> _Made:
    import numpy as np
    import tensorflow as tf

    from amp_tf.hooks import notices, state, switch
    from amp_tf.reporting import reports

    target, width = ("gpu", 4096) if device.startswith("GPU") else ("cpu", 512)
    amp: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    if precision == "float32":
        switch.disable()
    else:
        state.current().warned.add(notices.SLOW_FLOAT16)  # the trial measures it
        settings = {"precision": precision, "target": target, "ignore_performance": True}
        amp = switch.enable(with_settings(AmpConfig(), settings, where="trial"))
    generator = np.random.default_rng(0)
    with tf.device(device), amp:
        before = reports.of_process().converted
        x, first, second = (
            tf.constant(generator.standard_normal((width, width), "float32")) for _ in range(3)
        )

        def products_of(x: Any) -> Any:
            return tf.nn.relu(tf.matmul(tf.nn.relu(tf.matmul(x, first)), second)) + 1.0

        products = tf.function(products_of, jit_compile=way == "xla")

        def run() -> Any:
            with tf.device(device):
                return products(x).numpy()

        result = run()  # traced and converted here, which lasts
        return run, result, reports.of_process().converted - before


def _judge(precision: str, converted: int, error: float) -> str:
    if precision == "float32":
        return "nodes were converted while amp_tf was off" if converted else ""
    if converted == 0:
        return "nothing was converted"
    if not error <= TOLERANCES[precision]:  # also where it is NaN
        return (
            f"the result differs from float32 by {error:.2g}, more than {TOLERANCES[precision]:.2g}"
        )
    return ""
