"""Times a function in this process: what ``amp_tf.time`` does."""

from __future__ import annotations

import contextlib
import numbers
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

from amp_tf.config import AmpConfig, check_config
from amp_tf.errors import AmpError, ConfigError
from amp_tf.hooks import summary, switch
from amp_tf.reporting import reports
from amp_tf.tools.timing.recording import LEAST, device
from amp_tf.tools.timing.rounds import Run, Timed, take_rounds
from amp_tf.values import check_count, invalid

_WHERE = "amp_tf.time"
_SECONDS = 0.5  # of one way in a round


def time(
    function: Callable[..., Any],
    *inputs: Any,
    config: AmpConfig | None = None,
    rounds: int = 20,
    minutes: float = 5.0,
) -> Timed:
    """Times a function in float32 and with amp_tf, in turns, and says which is faster.

    ``print(amp_tf.time(model, x))`` times a model's call; ``model.train_step`` with ``(x, y)`` its
    training step, which then trains. The function is traced once for each way.

    Args:
        function: a ``tf.function``, a Keras model, or a function that TensorFlow can trace.
        *inputs: its arguments.
        config: what to convert; the environment's settings by default.
        rounds: how many rounds are made at most; each takes about a second, and three are made in
            any case.
        minutes: after so many no further round begins.

    Returns:
        The times, and the verdict that is made of them.

    Raises:
        ConfigError: an argument is not valid, or amp_tf is on already.
        AmpError: amp_tf converts nothing in the function.
    """
    check_count(rounds, where=f"{_WHERE}, rounds")
    if not isinstance(minutes, numbers.Real) or not minutes > 0:  # also where it is NaN
        raise invalid(minutes, f"{_WHERE}, minutes", "a number above 0")
    if switch.is_enabled():
        raise ConfigError(
            "amp_tf is on",
            where=_WHERE,
            fix="Call it with amp_tf off: it is turned on for each second run",
        )
    if config is None:
        config = AmpConfig.from_env()
    check_config(config, where=_WHERE)
    call = _traced(function, inputs)
    first_s = {False: _seconds(call)}
    with reports.apart(), switch.enable(config):  # the process' own report is of other graphs
        first_s[True] = _seconds(call)
        line = summary.line()
        converted = reports.totals().converted
    if not converted:
        fix = "Only what computes with float32 is converted; NumPy's own type is float64"
        if config.precision == "auto":
            fix = 'Name a precision, as in config=amp_tf.AmpConfig(precision="bfloat16")'
        raise AmpError(f"there is nothing to time ({line})", where=_WHERE, fix=fix)

    def run(is_mixed: bool) -> Run:
        way: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        if is_mixed:
            way = switch.enable(config)
        taken: list[float] = []
        with way:
            call()
            while len(taken) < LEAST or sum(taken) < _SECONDS:
                taken.append(_seconds(call))
        return Run(tuple(1e3 * seconds for seconds in taken), first_s[is_mixed])

    float32, mixed = take_rounds(run, rounds, minutes)
    name = getattr(function, "__name__", None) or getattr(function, "name", "the function")
    return Timed(str(name), device(), line, float32, mixed)


def _traced(function: Callable[..., Any], inputs: Sequence[Any]) -> Callable[[], None]:
    """Traces a function anew; returns a function that calls it and waits for the results."""
    import numpy as np
    import tensorflow as tf

    inner = getattr(function, "python_function", function)
    traced = tf.function(inner, jit_compile=getattr(function, "_jit_compile", None))
    arguments = []
    for value in inputs:
        if isinstance(value, np.ndarray):
            value = tf.constant(value)
        arguments.append(value)

    def call() -> None:
        traced(*arguments)
        tf.test.experimental.sync_devices()

    return call


def _seconds(call: Callable[[], None]) -> float:
    begin = perf_counter()
    call()
    return perf_counter() - begin
