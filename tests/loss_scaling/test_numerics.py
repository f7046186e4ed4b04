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


def model_of(seed):
    """An MLP for digits."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(seed)
    hidden = [keras.layers.Dense(128, activation="relu") for _ in range(2)]
    return keras.Sequential([keras.layers.Input((64,)), *hidden, keras.layers.Dense(10)])


def train(precision, factor, wrap, epochs=EPOCHS):
    """The test accuracy and the last loss scale of an MLP that trains on digits, its loss
    multiplied by a factor.
    """
    model = model_of(seed=0)
    x, y, test_x, test_y = digits()
    entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = wrap(keras.optimizers.SGD(LEARNING_RATE / factor))

    def loss(labels, logits):
        return entropy(labels, logits) * factor

    order = np.random.RandomState(1)
    with contextlib.ExitStack() as stack:
        before = amp_tf.report().converted
        if precision != "float32":
            stack.enter_context(amp_tf.enable(precision=precision))
        model.compile(optimizer, loss, metrics=["accuracy"], auto_scale_loss=False)
        for _ in range(epochs):
            chosen = order.permutation(len(x))
            model.fit(x[chosen], y[chosen], batch_size=32, shuffle=False, verbose=0)
        is_converted = amp_tf.report().converted > before
        assert is_converted == (precision != "float32")
    found = model.predict(test_x, verbose=0).argmax(1)
    scale = 1.0
    if wrap is not bare:
        scale = optimizer.status().scale
    return float(np.mean(found == test_y)), scale


@pytest.fixture(scope="module")
def float32():
    accuracy, _ = train("float32", 1.0, bare)
    return accuracy


def test_case_35_float16_with_scaling_trains_as_float32_does(float32):
    assert float32 > 0.9
    accuracy, scale = train("float16", 1.0, dynamic)
    assert accuracy == pytest.approx(float32, abs=0.03)
    assert scale > 1.0


def test_case_36_tiny_gradients_are_lost_in_float16_and_kept_by_scaling(float32):
    alone, _ = train("float16", TINY, bare)
    scaled, scale = train("float16", TINY, dynamic)
    assert alone < float32 - 0.05
    assert scaled == pytest.approx(float32, abs=0.03)
    assert scale > 2.0**15


def test_case_37_huge_gradients_need_a_scale_below_one(float32):
    alone, _ = train("float16", HUGE, bare, epochs=1)
    floored, floor = train("float16", HUGE, floor_of_one, epochs=1)
    scaled, scale = train("float16", HUGE, dynamic)
    assert alone < CHANCE
    assert floored < CHANCE
    assert floor == 1.0
    assert scaled == pytest.approx(float32, abs=0.03)
    assert scale < 1.0
