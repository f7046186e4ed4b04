"""Timing one op in both types, in turns, and the figures that fit some times."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
import tensorflow as tf

from amp_tf.oplists.cost_tables import ProductCost
from amp_tf.tools import calibrating as measure
from amp_tf.tools.calibrating import fit

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


TRUE = ProductCost(rate=400.0, ns=0.12, start=9_000.0)
SHIPPED = ProductCost(rate=220.0, ns=0.08, start=20_000.0)
WORK = [(operations, elements) for operations in (1e5, 1e7, 1e9) for elements in (1e3, 1e5, 1e6)]


def off(found, work=WORK):
    return [abs(found.of(*pair) / TRUE.of(*pair) - 1) for pair in work]


def test_exact_times_give_their_figures_but_for_the_little_that_the_shipped_ones_count():
    found = fit(WORK, [TRUE.of(*pair) for pair in WORK], SHIPPED)
    assert max(off(found)) < 0.03


def test_small_products_may_take_more_for_each_operation():
    """As on one thread: the times of products of all sizes are met, which the other three figures alone cannot."""
    work = [(operations, 1e5) for operations in (1e6, 4e6, 8e6, 3e7, 1e8, 1e9)]
    true = ProductCost(rate=180.0, ns=0.05, start=4_000.0, alone=0.005)
    found = fit(work, [true.of(*pair) for pair in work], SHIPPED)
    assert found.alone == pytest.approx(true.alone, rel=0.2)
    assert max(abs(found.of(*pair) / true.of(*pair) - 1) for pair in work) < 0.05
    again = fit(work, [true.of(*pair) for pair in work], found)
    assert max(abs(again.of(*pair) / true.of(*pair) - 1) for pair in work) < 0.02


def test_noisy_times_give_figures_that_are_off_by_less_than_the_noise():
    noise = np.random.default_rng(0).uniform(0.9, 1.1, len(WORK))
    found = fit(WORK, [TRUE.of(*pair) * factor for pair, factor in zip(WORK, noise, strict=True)], SHIPPED)
    assert np.median(off(found)) < 0.1


def test_what_the_times_do_not_tell_is_as_shipped_and_as_much_slower():
    """Nothing here is bound by its tensors or its start, and both are three times what is shipped, as the rate is."""
    work = [(1e9, 10.0), (2e9, 10.0), (4e9, 20.0)]
    found = fit(work, [3 * SHIPPED.of(*pair) for pair in work], SHIPPED)
    assert (found.rate, found.ns, found.start) == pytest.approx((220 / 3, 3 * 0.08, 3 * 20_000), rel=1e-3)


def test_no_figure_is_negative():
    """A small product that takes longer than its share of a large one would ask for a negative cost of elements."""
    times = [50_000.0, 51_000.0, 1e5, 1e5, 1.1e5, 2e5, 3e6, 2.9e6, 2.8e6]
    found = fit(WORK, times, SHIPPED)
    assert found.rate > 0
    assert min(found.ns, found.start) >= 0
