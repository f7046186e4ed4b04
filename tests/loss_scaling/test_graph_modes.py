"""Cases 12, 13 and 15: the same step eagerly, traced, compiled, several per call; and what it must not do."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import amp_tf
from tests.loss_scaling.steps import gradients, make_step, poisoned, variables

pytestmark = pytest.mark.slow

TRACE = [gradients(0), poisoned(gradients(1), 0, np.nan), gradients(2), poisoned(gradients(3), 2, np.inf), gradients(4)]


FAMILIES = {"keras": keras.optimizers, "tf_keras": tf_keras.optimizers, "legacy": tf_keras.optimizers.legacy}


def trained(library, optimizer, x, y, **how):
    keras.utils.set_random_seed(1)  # tf_keras' own does not work on Python 3.12 up to 2.18; this seeds the same
    layers = library.layers
    model = library.Sequential([layers.Input((4,)), layers.Dense(8, activation="tanh"), layers.Dense(1)])
    model.compile(optimizer, "mse", **how)
    assert model.optimizer is optimizer
    model.fit(x, y, batch_size=8, verbose=0, shuffle=False)
    return model.get_weights()


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
@pytest.mark.parametrize("family", FAMILIES)
def test_case_12_fit_skips_poisoned_batches_whatever_way_it_runs(family, how):
    library = keras if family == "keras" else tf_keras
    x = np.random.RandomState(0).randn(64, 4).astype("float32")
    y = x.sum(1, keepdims=True)
    bad_x = np.concatenate([x[:16], x[:8] * np.nan, x[16:48], x[:8] * np.inf, x[48:]])
    bad_y = np.concatenate([y[:16], y[:8], y[16:48], y[:8], y[48:]])
    # powers of two, so that XLA's fused arithmetic rounds alike
    bare, inner = (FAMILIES[family].SGD(0.25, momentum=0.5, clipnorm=4.0) for _ in range(2))
    optimizer = amp_tf.LossScaleOptimizer(inner)
    plain = trained(library, bare, x, y, **how)
    for actual, expected in zip(trained(library, optimizer, bad_x, bad_y, **how), plain, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=1e-6)
    assert int(optimizer.iterations.numpy()) == 8  # tf_keras' own wrapper counts skipped steps
    status = optimizer.status()
    assert (status.scale, status.skipped, status.steps) == (2.0**13, 2, 10)
    assert status.nonfinite_variables


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
    optimizer = amp_tf.LossScaleOptimizer(keras.optimizers.SGD(), 8.0)
    assert float(optimizer.get_scaled_loss(lambda: tf.constant(3.0))()) == 24.0
