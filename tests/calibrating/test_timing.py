"""Timing one op in both types, in turns."""

import math
import time

import pytest
import tensorflow as tf

from amp_tf.calibrating import timing

DATA = tf.ones((4, 4))


def test_every_call_of_both_types_has_a_figure():
    before = time.monotonic()
    taken = timing.take_times(tf.abs, [DATA], 2, until=before + 0.2)
    assert time.monotonic() >= before + 0.2
    assert len(taken[0]) == len(taken[1]) > 3
    assert all(0 < seconds < 0.2 and math.isfinite(seconds) for times in taken for seconds in times)


def test_a_few_calls_are_made_when_the_time_is_over():
    assert [len(times) for times in timing.take_times(tf.abs, [DATA], 1, until=0.0, repeats=4)] == [4, 4]


def test_the_op_runs_in_both_types():
    seen = []

    def op(x):
        seen.append(x.dtype)
        return tf.abs(x)

    timing.take_times(op, [DATA], 3, until=0.0, repeats=1)
    assert seen == [tf.float32] * 3 + [tf.bfloat16] * 3


@pytest.mark.parametrize(
    ("build", "inputs"), [(lambda op: timing.run_many(op, 3), 1), (timing.run_each, 3)], ids=["many", "each"]
)
def test_runs_follow_each_other(build, inputs):
    """Three times the op, of which each waits for the one before."""
    concrete = tf.function(build(tf.math.softplus)).get_concrete_function(*[DATA] * inputs)
    runs = [op for op in concrete.graph.get_operations() if op.type == "Softplus"]
    assert [[before.name for before in op.control_inputs] for op in runs] == [[], [runs[0].name], [runs[1].name]]
