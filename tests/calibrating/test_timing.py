"""Timing one op in both types, in turns."""

import math
import time

import pytest
import tensorflow as tf

from amp_tf.tools import calibrating as measure

DATA = tf.ones((4, 4))


def test_every_call_of_both_types_has_a_figure():
    before = time.monotonic()
    taken = measure.take_times(measure.run_many(tf.abs, 2), [DATA], 2, until=before + 0.2)
    assert time.monotonic() >= before + 0.2
    assert len(taken[0]) == len(taken[1]) > 3
    assert all(0 < seconds < 0.2 and math.isfinite(seconds) for times in taken for seconds in times)


def test_a_few_calls_are_made_when_the_time_is_over():
    assert [len(times) for times in measure.take_times(tf.abs, [DATA], 1, until=0.0, repeats=4)] == [4, 4]


STACKS = pytest.mark.parametrize("stacks", [0, 1])


@STACKS
def test_the_op_runs_in_both_types(stacks):
    seen = []

    def op(x):
        seen.append(x.dtype)
        return tf.abs(x)

    measure.take_times(measure.run_many(op, 4, stacks), [DATA], 4, until=0.0, repeats=1)
    assert seen == [tf.float32] * 4 + [tf.bfloat16] * 4


@STACKS
def test_runs_follow_each_other(stacks):
    """Four times the op, of which each waits for the one before."""
    concrete = tf.function(measure.run_many(tf.math.softplus, 4, stacks)).get_concrete_function(DATA)
    runs = [op for op in concrete.graph.get_operations() if op.type == "Softplus"]
    waited_for = [[before.name for before in op.control_inputs if before.type == "Softplus"] for op in runs]
    assert waited_for == [[], *([run.name] for run in runs[:-1])]


def test_each_run_takes_the_next_of_a_stack_and_the_same_of_other_inputs():
    seen = []
    run = measure.run_many(lambda x, y: seen.append((float(x), float(y))), 3, 1)
    run(tf.constant(1.0), tf.constant([10.0, 20.0, 30.0]))
    assert seen == [(1, 10), (1, 20), (1, 30)]
