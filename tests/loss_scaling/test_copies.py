"""Case 33: copies.

A pickled or deep-copied optimizer goes on as the original would; a clone starts over.
"""

import copy
import pickle

import keras
import pytest
import tensorflow as tf
import tf_keras

import amp_tf
from tests.loss_scaling.steps import (
    FAMILIES,
    assert_same,
    by_families,
    gradients,
    make_step,
    poisoned,
    since_keras_3_1,
    values,
    variables,
)
from tests.loss_scaling.test_state import everything, make_model, status, train

pytestmark = pytest.mark.slow

TRACE = [gradients(0), poisoned(gradients(1), 0, float("nan")), gradients(2)]
WAYS = {"deepcopy": copy.deepcopy, "pickle": lambda thing: pickle.loads(pickle.dumps(thing))}


@pytest.fixture(params=WAYS)
def duplicate(request):
    return WAYS[request.param]


def make_optimizer():
    inner = keras.optimizers.Adam(
        keras.optimizers.schedules.CosineDecay(0.1, 50), global_clipnorm=1.0
    )
    return amp_tf.LossScaleOptimizer(
        inner, dynamic_growth_steps=2, hysteresis=1, min_scale=0.25, name="mine"
    )


def go_on(optimizer, weights):
    step = make_step(optimizer, weights)
    for grads in TRACE:
        step(*grads)
    return values(optimizer, weights)


def same_weights(weights):
    return [keras.Variable(weight.numpy()) for weight in weights]


@since_keras_3_1
def test_case_33_a_copy_goes_on_as_the_original_does_and_shares_nothing_with_it(duplicate):
    optimizer = make_optimizer()
    weights = variables()
    go_on(optimizer, weights)
    copied_weights = same_weights(weights)
    copied = duplicate(duplicate(optimizer))  # no step has built the first copy yet
    before = status(copied)
    assert copied.schedule == optimizer.schedule
    assert copied.name == "mine"
    assert before == status(optimizer)
    expected = go_on(optimizer, weights)
    assert status(copied) == before
    assert_same(go_on(copied, copied_weights), expected)
    assert status(copied) == status(optimizer)


@since_keras_3_1
def test_case_33_a_copied_model_goes_on_as_the_original_does(duplicate):
    model = make_model()
    train(model, skip=True)
    copied = duplicate(model)
    train(model)
    train(copied)
    assert_same(everything(copied), everything(model))
    assert status(copied.optimizer) == status(model.optimizer)


@by_families
def test_case_33_a_clone_compiled_from_the_configuration_has_the_settings_and_starts_anew(family):
    library = keras if family == "keras" else tf_keras
    model = library.Sequential([library.layers.Input((4,)), library.layers.Dense(1)])
    inner = FAMILIES[family].SGD(0.1, clipnorm=1.0)
    model.compile(amp_tf.LossScaleOptimizer(inner, 64.0, hysteresis=3), "mse")
    model.optimizer.loss_scale = 32.0
    clone = library.models.clone_model(model)
    clone.compile_from_config(model.get_compile_config())
    assert type(clone.optimizer) is type(model.optimizer)
    assert clone.optimizer is not model.optimizer
    assert clone.optimizer.schedule == model.optimizer.schedule
    assert clone.optimizer.inner_optimizer.clipnorm == 1.0
    assert clone.optimizer.status().scale == 64.0


def test_case_33_a_copied_tf1_optimizer_goes_on_as_the_original_does(duplicate):
    v1 = tf.compat.v1

    def steps(optimizer, weight):
        for factor in (1.0, float("inf"), 2.0):
            optimizer.minimize(
                lambda factor=factor: tf.reduce_sum(weight**2) * factor, var_list=[weight]
            )
        return weight.numpy()

    optimizer = amp_tf.LossScaleOptimizer(v1.train.GradientDescentOptimizer(0.25))
    weight = tf.Variable([1.0, 2.0])
    steps(optimizer, weight)
    copied = duplicate(optimizer)
    copied_weight = tf.Variable(weight)
    before = optimizer.status()
    assert copied.status() == before
    expected = steps(optimizer, weight)
    assert copied.status() == before
    assert_same([steps(copied, copied_weight)], [expected])
    assert copied.status() == optimizer.status()
