"""Runs the trials of ``amp-tf doctor``: real conversions, whose results are compared."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

from amp_tf.config import AmpConfig
from amp_tf.errors import first_line

WAYS = ("grappler", "xla")
PRECISIONS = ("float32", "bfloat16", "float16")
# Relative to the largest magnitude of the float32 result: a few units in the last place of each
# type (2^-8, 2^-11), because two products and their inputs are rounded.
TOLERANCES = {"float32": 0.0, "bfloat16": 2**-5, "float16": 2**-8}
_WIDTH = 512
_LONGEST = 200  # characters of an error


@dataclasses.dataclass(frozen=True)
class Trial:
    """Two matrix products on one device, the way TensorFlow runs them for a user."""

    device: str  #: such as ``"CPU:0"``
    way: str  #: ``"grappler"`` (tf.function) or ``"xla"`` (``jit_compile=True``)
    precision: str  #: what was asked for; ``"float32"`` is the run without amp_tf
    converted: int = 0  #: nodes converted
    error: float = 0.0  #: largest difference from float32, relative to float32's largest magnitude
    failure: str = ""  #: what went wrong, or ``""``


def run_trials(devices: list[str]) -> list[Trial]:
    """Runs every way in every precision on devices such as ``"CPU:0"``.

    amp_tf is off again afterwards.
    """
    from amp_tf.reporting import reports

    trials: list[Trial] = []
    with reports.apart():  # no summary line for the graphs of the trials
        for device in devices:
            for way in WAYS:
                trials += _run_way(device, way)
    return trials


def _run_way(device: str, way: str) -> Iterator[Trial]:
    """Runs every precision; float32, the first, gives the expected result."""
    expected = None
    for precision in PRECISIONS:
        try:
            result, converted = _run(device, way, precision)
        except Exception as problem:  # an error of TensorFlow or a driver is a finding
            failure = f"{type(problem).__name__}: {first_line(problem)[:_LONGEST]}"
            yield Trial(device, way, precision, failure=failure)
            continue
        if expected is None:
            expected = result
        error = float(abs(result - expected).max() / abs(expected).max())
        failure = _judge(precision, converted, error)
        yield Trial(device, way, precision, converted, error, failure)


def _run(device: str, way: str, precision: Any) -> tuple[Any, int]:
    """Runs the products once; returns their result, and how many nodes were converted."""
    import numpy as np
    import tensorflow as tf

    from amp_tf.hooks import notices, state, switch
    from amp_tf.reporting import reports

    amp: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    if precision == "float32":
        switch.disable()
    else:
        state.current().warned.add(notices.SLOW_PRODUCTS)  # the trial itself asks for it
        target: Any = "gpu" if device.startswith("GPU") else "cpu"
        config = AmpConfig(precision=precision, target=target, ignore_performance=True)
        amp = switch.enable(config)
    generator = np.random.default_rng(0)
    with tf.device(device), amp:
        before = reports.of_process().converted
        x, first, second = (
            tf.constant(generator.standard_normal((_WIDTH, _WIDTH), "float32")) for _ in range(3)
        )

        def products_of(x: Any) -> Any:
            return tf.nn.relu(tf.matmul(tf.nn.relu(tf.matmul(x, first)), second)) + 1.0

        # TensorFlow counts traces by the code object, and warns of retracing where a tf.function
        # is called, whose code is the same in each trial. A concrete function is not counted.
        traced = tf.function(products_of, jit_compile=way == "xla").get_concrete_function(x)
        return traced(x).numpy(), reports.of_process().converted - before


def _judge(precision: str, converted: int, error: float) -> str:
    """Says what is wrong with a run; empty if it is as it should be."""
    if precision == "float32":
        if converted:
            return "nodes were converted while amp_tf was off"
        return ""
    if converted == 0:
        return "nothing was converted"
    most = TOLERANCES[precision]
    if not error <= most:  # also where it is NaN
        return f"the result differs from float32 by {error:.2g}, more than {most:.2g}"
    return ""
