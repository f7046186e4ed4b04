"""Forms of a step: what a run fills, runs and gives back."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from amp_tf.tools.comparing import joining
from amp_tf.tools.comparing.joining import FLOAT32, JointGraph, RunnableStep
from amp_tf.tools.comparing.steps import flat_step

X = np.full((2, 3), 2.0, "float32")


@pytest.fixture
def step():
    """A product with one variable, which is added up in another."""
    weight, total = tf.Variable(tf.ones((3, 3))), tf.Variable(1.0)

    def product(x):
        y = x @ weight
        total.assign_add(tf.reduce_sum(y))
        return y

    return flat_step(product, [X], 1)


def variables(joint, flat):
    """The tensors that read each variable, by its size."""
    with joint.graph.as_default():
        return {
            kept.value.size: tf.raw_ops.ReadVariableOp(resource=joint.tensor(FLOAT32, node), dtype=tf.float32)
            for node, kept in flat.variables.items()
        }


def test_what_is_fetched_alone_neither_fills_nor_runs_the_rest_of_the_step(step):
    joint = JointGraph(*step, {FLOAT32: step[1].graph})
    read = variables(joint, step[1])
    (product,) = (op.outputs[0] for op in joint.graph.get_operations() if op.type == "MatMul")
    np.testing.assert_array_equal(joint.fetch(product, 0, 1.0, is_alone=True), X @ np.ones((3, 3)))
    assert joint.read(read[9]).sum() == 9
    with pytest.raises(tf.errors.FailedPreconditionError):
        joint.read(read[1])
    joint.fetch(product, 0, 1.0)
    assert joint.read(read[1]) == 1 + X.sum() * 3
    joint.close()


def test_a_form_that_gave_its_memory_back_runs_again_as_before(step):
    form = RunnableStep(*step, step[1].graph)
    before = form.run(0, 1.0)
    form.close()
    form.close()
    for first, second in zip(before, form.run(0, 1.0), strict=True):
        np.testing.assert_array_equal(first, second)
    form.close()


def test_disturbed_numbers_differ_by_a_last_bit_and_whole_ones_not_at_all():
    value = np.random.default_rng(0).normal(size=(40, 50)).astype("float32")
    value[0] = 3
    changed = joining.disturbed(value)
    steps = (changed.astype("float64") - value) / np.spacing(np.abs(value))
    assert changed.dtype == np.float32
    assert not steps[0].any()
    assert set(np.abs(steps[1:]).ravel()) == {1, 2}  # one or two of the last bit, by which side of a power of two
    assert 0.4 < (steps[1:] > 0).mean() < 0.6
    np.testing.assert_array_equal(joining.disturbed(np.array([1, 2])), [1, 2])
    assert joining.disturbed(np.array(0.1, "float32")).shape == ()


def test_disturbed_variables_are_set_part_by_part(step, monkeypatch):
    form = RunnableStep(*step, step[1].graph)
    whole = form.run(0, 1.0, is_disturbed=True)
    monkeypatch.setattr(joining, "_AT_ONCE", 1)
    for first, second in zip(whole, form.run(0, 1.0, is_disturbed=True), strict=True):
        np.testing.assert_array_equal(first, second)
    form.close()


def test_a_comparison_holds_what_variables_held_as_it_began():
    total = tf.Variable(tf.ones((100, 100)))

    def add(x):
        return total.assign_add(x) + x

    step, flat = flat_step(add, [np.ones((100, 100), "float32")], 1)
    form = RunnableStep(step, flat, flat.graph)
    first, second = form.run(0, 1.0), form.run(0, 1.0)
    np.testing.assert_array_equal(first[0], second[0])
    total.assign_add(tf.ones((100, 100)))  # the variable has other memory from now on
    np.testing.assert_array_equal(form.run(0, 1.0)[0], first[0])
    form.close()
