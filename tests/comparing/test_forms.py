"""Forms of a step: what a run fills, runs and gives back."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from amp_tf.comparing.forms import Form, JointGraph
from amp_tf.comparing.joining import FLOAT32
from amp_tf.comparing.subjects import flat_step

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
    form = Form(*step, step[1].graph)
    before = form.run(0, 1.0)
    form.close()
    form.close()
    for first, second in zip(before, form.run(0, 1.0), strict=True):
        np.testing.assert_array_equal(first, second)
    form.close()
