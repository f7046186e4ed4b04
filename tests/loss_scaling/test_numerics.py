"""Cases 35 to 37, small: float16 with loss scaling trains as float32 does where float16 alone does
not.

The loss is multiplied by 2^-24 (or 2^24) and the learning rate of plain SGD divided by it: the same
mathematics, so in float32 nothing changes. In float16 the gradients underflow (or overflow), unless
the loss scale makes up for it. The large case also shows why a scale must be able to fall below 1:
with a floor of 1, as tf_keras and TF1 have, every step is skipped. Source of the idea: Micikevicius
et al., Mixed Precision Training, ICLR 2018, section 3.2.
"""

import contextlib

import keras
import numpy as np
import pytest

import amp_tf

datasets = pytest.importorskip("sklearn.datasets")

LEARNING_RATE = 0.25
TINY = 2.0**-24
HUGE = 2.0**24
EPOCHS = 6
CHANCE = 0.2


def bare(optimizer):
    return optimizer


def dynamic(optimizer):
    """Ours. It grows often, because training is short."""
    return amp_tf.LossScaleOptimizer(optimizer, dynamic_growth_steps=10)


def floor_of_one(optimizer):
    """The rule of tf_keras and TF1."""
    return amp_tf.LossScaleOptimizer(optimizer, dynamic_growth_steps=10, min_scale=1.0)


def digits():
    """1,347 images of 8 x 8 pixels in 0 … 1 to train on and 450 to test on, with labels 0 … 9."""
    images, labels = datasets.load_digits(return_X_y=True)
    order = np.random.RandomState(0).permutation(len(images))
    images = (images[order] / 16).astype("float32")
    labels = labels[order].astype("int32")
    return images[:1347], labels[:1347], images[1347:], labels[1347:]


def train(precision, factor, wrap, seed, epochs):
    """The test accuracy and the last loss scale of an MLP that trains on digits, its loss
    multiplied by a factor.
    """
    keras.backend.clear_session()
    keras.utils.set_random_seed(seed)
    x, y, test_x, test_y = digits()
    hidden = [keras.layers.Dense(128, activation="relu") for _ in range(2)]
    model = keras.Sequential([keras.layers.Input((64,)), *hidden, keras.layers.Dense(10)])
    entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = wrap(keras.optimizers.SGD(LEARNING_RATE / factor))
    order = np.random.RandomState(1)
    with contextlib.nullcontext() if precision == "float32" else amp_tf.enable(precision=precision):
        before = amp_tf.report().converted
        model.compile(
            optimizer,
            lambda t, p: entropy(t, p) * factor,
            metrics=["accuracy"],
            auto_scale_loss=False,
        )
        for _ in range(epochs):
            chosen = order.permutation(len(x))
            model.fit(x[chosen], y[chosen], batch_size=32, shuffle=False, verbose=0)
        assert precision == "float32" or amp_tf.report().converted > before
    accuracy = float(np.mean(model.predict(test_x, verbose=0).argmax(1) == test_y))
    return accuracy, optimizer.status().scale if wrap is not bare else 1.0


@pytest.fixture(scope="module")
def float32():
    return train("float32", 1.0, bare, seed=0, epochs=EPOCHS)[0]


def test_case_35_float16_with_scaling_trains_as_float32_does(float32):
    assert float32 > 0.9
    accuracy, scale = train("float16", 1.0, dynamic, seed=0, epochs=EPOCHS)
    assert accuracy == pytest.approx(float32, abs=0.03)
    assert scale > 1.0


def test_case_36_tiny_gradients_are_lost_in_float16_and_kept_by_scaling(float32):
    alone, _ = train("float16", TINY, bare, seed=0, epochs=EPOCHS)
    scaled, scale = train("float16", TINY, dynamic, seed=0, epochs=EPOCHS)
    assert alone < float32 - 0.05
    assert scaled == pytest.approx(float32, abs=0.03)
    assert scale > 2.0**15


def test_case_37_huge_gradients_need_a_scale_below_one(float32):
    alone, _ = train("float16", HUGE, bare, seed=0, epochs=1)
    floored, floor = train("float16", HUGE, floor_of_one, seed=0, epochs=1)
    scaled, scale = train("float16", HUGE, dynamic, seed=0, epochs=EPOCHS)
    assert alone < CHANCE
    assert (floored < CHANCE, floor) == (True, 1.0)
    assert scaled == pytest.approx(float32, abs=0.03)
    assert scale < 1.0
