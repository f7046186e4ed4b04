"""Cases 12, 13 and 15: the same step eagerly, traced, compiled, several per call; and what it must not do."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import amp_tf
from tests.loss_scaling.steps import gradients, make_step, poisoned, variables

pytestmark = pytest.mark.slow

TRACE = [gradients(0), poisoned(gradients(1), 0, np.nan), gradients(2), poisoned(gradients(3), 2, np.inf), gradients(4)]


def make_optimizer():
    return keras.optimizers.SGD(0.25, momentum=0.5)  # powers of two, so that XLA's fused arithmetic rounds alike


def small_model():
    keras.utils.set_random_seed(1)
    return keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)])


@pytest.mark.parametrize(
    "how",
    [
        {"run_eagerly": True},
        {"jit_compile": False},
        {"jit_compile": True},
        {"jit_compile": False, "steps_per_execution": 4},
        {"jit_compile": True, "steps_per_execution": 4},
    ],
    ids=str,
)
def test_case_12_fit_skips_poisoned_batches_whatever_way_it_runs(how):
    rng = np.random.RandomState(0)
    x = rng.randn(64, 4).astype("float32")
    y = x.sum(1, keepdims=True)
    bad_x = np.concatenate([x[:16], x[:8] * np.nan, x[16:48], x[:8] * np.inf, x[48:]])
    bad_y = np.concatenate([y[:16], y[:8], y[16:48], y[:8], y[48:]])
    plain, scaled = small_model(), small_model()
    plain.compile(make_optimizer(), "mse", **how)
    plain.fit(x, y, batch_size=8, verbose=0, shuffle=False)
    optimizer = amp_tf.LossScaleOptimizer(make_optimizer())
    scaled.compile(optimizer, "mse", **how)
    assert scaled.optimizer is optimizer
    scaled.fit(bad_x, bad_y, batch_size=8, verbose=0, shuffle=False)
    for actual, expected in zip(scaled.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=1e-6)
    assert int(optimizer.iterations.numpy()) == 8
    assert (optimizer.status().scale, optimizer.status().skipped) == (2.0**13, 2)


def test_case_13_a_step_is_traced_once_whatever_the_scale_does():
    weights = variables()
    optimizer = amp_tf.LossScaleOptimizer(keras.optimizers.Adam(0.01), dynamic_growth_steps=1)
    optimizer.build(weights)
    step = make_step(optimizer, weights)
    for grads in TRACE * 4:
        step(*[tf.constant(g) for g in grads])
    optimizer.loss_scale = 3.0
    step(*[tf.constant(g) for g in TRACE[0]])
    assert step.experimental_get_tracing_count() == 1


def test_get_scaled_loss_takes_a_callable():
    optimizer = amp_tf.LossScaleOptimizer(make_optimizer(), 8.0)
    assert float(optimizer.get_scaled_loss(lambda: tf.constant(3.0))()) == 24.0
