"""Which gradients spoil a step, where the wrappers' own tests do not reach."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import amp_tf
from amp_tf.loss_scaling import finite
from amp_tf.loss_scaling.finite import NormClip

BAD = np.float32(np.inf)


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("clip", NormClip)
def test_complex_gradients_are_checked_in_both_parts(clip, jit):
    find = tf.function(lambda *gradients: finite.find_nonfinite(gradients, clip), jit_compile=jit)
    good, real, imaginary = (
        tf.constant([1 + 2j, value], tf.complex64) for value in (3j, complex(BAD, 0), complex(0, BAD))
    )
    assert not np.any(find(good, tf.ones((2,))))
    for bad in (real, imaginary):
        assert find(good, bad).numpy()[1]


def test_a_complex_variable_trains_in_a_wrapped_optimizer_as_in_a_bare_one():
    def train(wrap):
        variable = tf.Variable(tf.constant([1 + 2j, 3j], tf.complex64))
        optimizer = wrap(tf_keras.optimizers.legacy.SGD(0.5))
        for factor in (1.0, BAD, 1.0):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.abs(variable) ** 2) * factor
                if wrap is not bare:
                    loss = optimizer.get_scaled_loss(loss)
            gradients = tape.gradient(loss, [variable])
            if wrap is not bare:
                gradients = optimizer.get_unscaled_gradients(gradients)
            if wrap is not bare or factor == 1.0:
                optimizer.apply_gradients(zip(gradients, [variable], strict=True))
        return variable.numpy()

    def bare(optimizer):
        return optimizer

    np.testing.assert_array_equal(train(amp_tf.LossScaleOptimizer), train(bare))


@pytest.mark.parametrize("clip", NormClip)
def test_gradients_without_elements_are_finite_under_xla_too(clip):
    find = tf.function(lambda gradient: finite.find_nonfinite([gradient], clip), jit_compile=True)
    assert not find(tf.zeros((0, 3))).numpy().any()


def test_a_global_norm_of_float64_gradients_may_be_larger_than_float32_holds():
    gradients = [tf.constant([1e30], tf.float64), tf.constant([1e25], tf.float64)]
    assert not np.any(finite.find_nonfinite(gradients, NormClip.GLOBAL))
    assert np.all(finite.find_nonfinite([tf.constant([1e200], tf.float64)], NormClip.GLOBAL))


@pytest.mark.parametrize("condition", [True, False])
def test_a_gradient_becomes_zeros_in_its_own_form(condition):
    values = tf.constant([[np.nan, 2.0]])

    def zero(value):
        return tf.where(condition, tf.zeros_like(value), value)

    dense = finite.map_values(zero, values)
    sparse = finite.map_values(zero, tf.IndexedSlices(values, [3], [8, 2]))
    expected = np.zeros((1, 2)) if condition else values
    np.testing.assert_array_equal(dense, expected)
    np.testing.assert_array_equal(sparse.values, expected)
    assert [int(sparse.indices[0]), *sparse.dense_shape] == [3, 8, 2]
