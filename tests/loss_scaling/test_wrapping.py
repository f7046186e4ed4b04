"""A wrapper leaves methods, arguments and results to its inner optimizer."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import amp_tf
from tests.loss_scaling.steps import (
    FAMILIES,
    OPTIMIZERS,
    V1,
    by_families,
    eager_and_traced,
    in_mode,
)

BASES = {
    "keras": keras.optimizers.Optimizer,
    "tf_keras": tf_keras.optimizers.Optimizer,
    "legacy": tf_keras.optimizers.legacy.Optimizer,
    "v1": V1.Optimizer,
}
#: Public attributes that a wrapper inherits from the library's class, and why that is right.
INHERITED = {
    "GATE_GRAPH": "a constant",
    "GATE_NONE": "a constant",
    "GATE_OP": "a constant",
    "add_variable": "the wrapper of Keras 3 makes its scale with it",
    "assign": "it has no state",
    "assign_add": "it has no state",
    "assign_sub": "it has no state",
    "get_name": "the wrapper has the inner optimizer's name",
    "get_updates": "it calls get_gradients and apply_gradients",
    "lr": "it reads and sets learning_rate",
}
OF_TF_KERAS = pytest.mark.parametrize("family", ["tf_keras", "legacy"])


@pytest.mark.parametrize("family", OPTIMIZERS)
def test_each_public_method_of_the_library_is_decided(family):
    base = BASES[family]
    wrapper = type(amp_tf.LossScaleOptimizer(OPTIMIZERS[family]()))
    undecided = set()
    for name in dir(base):
        owner = next(cls for cls in wrapper.__mro__ if name in vars(cls))
        if not name.startswith("_") and owner in base.__mro__:
            undecided.add(name)
    assert undecided - set(INHERITED) == set(), "delegate it, or say in INHERITED why not"


def one_weight(optimizer, library=tf_keras, **settings):
    """A compiled model with one weight, which is zero."""
    layer = library.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    model = library.Sequential([library.layers.Input((1,)), layer])
    model.compile(optimizer, **settings)
    return model


def fit(model):
    """Trains for one step."""
    return model.fit(np.ones((1, 1), "f"), np.zeros((1, 1), "f"), verbose=0).history


@pytest.mark.parametrize("library", [keras, tf_keras])
def test_variables_are_excluded_from_the_weight_decay_of_the_inner_optimizer(library):
    optimizer = amp_tf.LossScaleOptimizer(library.optimizers.AdamW(1.0, weight_decay=0.5))
    model = one_weight(optimizer, library, loss=lambda y, p: tf.reduce_sum(p) * 0.0)
    model.layers[-1].kernel.assign([[1.0]])
    optimizer.exclude_from_weight_decay(var_names=["kernel"])
    fit(model)
    assert model.get_weights()[0].tolist() == [[1.0]]


@pytest.mark.parametrize("poison", [0.0, np.nan])
@pytest.mark.parametrize("family", ["tf_keras", "legacy", "v1"])
def test_a_users_minimize_is_called_and_takes_scaled_steps(family, poison):
    base = type(OPTIMIZERS[family]())
    gradients_of = "_compute_gradients" if family == "legacy" else "compute_gradients"

    class Ascent(base):
        def minimize(self, loss, var_list):
            self.last_loss = loss
            pairs = getattr(self, gradients_of)(loss, var_list)
            self.apply_gradients([(-gradient, variable) for gradient, variable in pairs])

    inner = Ascent(0.5)
    optimizer = amp_tf.LossScaleOptimizer(inner)
    weight = tf.Variable(1.0)

    def loss():
        return weight * (1.0 + poison)

    optimizer.minimize(loss, [weight])
    assert inner.last_loss is loss
    status = optimizer.status()
    assert (status.steps, status.skipped) == (1, np.isnan(poison))
    assert weight.numpy() == (1.0 if np.isnan(poison) else 1.5)


def test_fit_calls_a_users_minimize():
    class Ascent(tf_keras.optimizers.SGD):
        def minimize(self, loss, var_list, tape=None):
            pairs = self.compute_gradients(loss, var_list, tape)
            self.apply_gradients([(-gradient, variable) for gradient, variable in pairs])

    optimizer = amp_tf.LossScaleOptimizer(Ascent(0.5))
    model = one_weight(optimizer, loss=lambda y, p: tf.reduce_sum(p))
    fit(model)
    assert model.get_weights()[0].tolist() == [[0.5]]
    assert optimizer.status().steps == 1


def test_gradients_may_be_summed_before_the_step():
    weight = tf.Variable(1.0)
    optimizer = amp_tf.LossScaleOptimizer(tf_keras.optimizers.SGD(0.5))
    pairs = optimizer.aggregate_gradients([(optimizer.scale_loss(tf.constant(1.0)), weight)])
    optimizer.apply_gradients(pairs, skip_gradients_aggregation=True)
    assert weight.numpy() == 0.5


def test_the_decayed_learning_rate_of_a_legacy_optimizer_is_read_through_the_wrapper():
    schedule = tf_keras.optimizers.schedules.ExponentialDecay(0.5, 1, 0.5)
    optimizer = amp_tf.LossScaleOptimizer(tf_keras.optimizers.legacy.SGD(schedule))
    assert optimizer._decayed_lr(tf.float32).numpy() == 0.5


def with_factor(base):
    class Own(base):
        def apply_gradients(self, grads_and_vars, factor=1.0, *, offset=0.0):
            pairs = [
                (gradient * factor + offset, variable) for gradient, variable in grads_and_vars
            ]
            return super().apply_gradients(pairs)

    return Own


@by_families
@pytest.mark.parametrize("enabled", [True, False])
def test_arguments_of_a_users_apply_gradients_are_passed_on(family, enabled):
    weight = keras.Variable(1.0) if family == "keras" else tf.Variable(1.0)
    inner = with_factor(FAMILIES[family].SGD)(0.5)
    optimizer = amp_tf.LossScaleOptimizer(inner, enabled=enabled)
    pairs = [(optimizer.scale_loss(tf.constant(1.0)), weight)]
    optimizer.apply_gradients(pairs, 2.0, offset=-1.0)
    assert weight.numpy() == 0.5


@eager_and_traced
def test_arguments_and_the_result_of_a_users_apply_are_passed_on(mode):
    class Own(keras.optimizers.SGD):
        def apply(self, grads, trainable_variables=None, factor=1.0):
            super().apply([gradient * factor for gradient in grads], trainable_variables)
            return tf.linalg.global_norm(grads)

    weight = keras.Variable(1.0)
    optimizer = amp_tf.LossScaleOptimizer(Own(0.5))

    def step(gradient, factor):
        return optimizer.apply([optimizer.scale_loss(gradient)], [weight], factor=factor)

    run = in_mode(step, mode)
    assert float(run(tf.constant(3.0), tf.constant(2.0))) == 3.0
    assert float(weight.numpy()) == -2.0


@by_families
def test_private_attributes_are_those_of_the_inner_optimizer(family):
    inner = FAMILIES[family].SGD(0.5, momentum=0.9)
    inner._note = "of the program"
    optimizer = amp_tf.LossScaleOptimizer(inner)
    if family == "legacy":
        assert optimizer._get_hyper("learning_rate") == 0.5
    else:
        assert optimizer._learning_rate is inner._learning_rate
    assert optimizer._note == "of the program"
    optimizer._note = "changed"
    assert inner._note == "changed"
    with pytest.raises(AttributeError):
        _ = optimizer._no_such_name


def returning(base, answer):
    class Own(base):
        def apply_gradients(self, grads_and_vars, *args, **kwargs):
            pairs = list(grads_and_vars)
            super().apply_gradients(pairs, *args, **kwargs)
            return answer([gradient for gradient, _ in pairs])

    return Own


def of_each_kind(gradients):
    return {"norm": (tf.linalg.global_norm(gradients), 1.5), "name": "own"}


@eager_and_traced
@by_families
def test_what_a_users_apply_gradients_returns_is_returned(family, mode):
    weight = tf.Variable(1.0)
    variable = weight
    if family == "keras":
        variable = keras.Variable(1.0)
        weight = variable.value
    inner = returning(FAMILIES[family].SGD, of_each_kind)(0.5)
    optimizer = amp_tf.LossScaleOptimizer(inner)
    results = []

    def step(gradient):
        pairs = [(optimizer.scale_loss(gradient), variable)]
        result = optimizer.apply_gradients(pairs)
        if isinstance(result, dict):
            results.append(result)
            return result["norm"][0]
        return -1.0

    run = in_mode(step, mode)
    assert float(run(tf.constant(3.0))) == 3.0
    assert results[0]["norm"][1] == 1.5
    assert results[0]["name"] == "own"
    assert float(run(tf.constant(np.nan))) == (-1.0 if mode == "eager" else 0.0)
    assert not vars(inner).get("_amp_tf_results")


@by_families
def test_without_a_result_of_the_users_it_is_the_counter(family):
    variable = keras.Variable(1.0) if family == "keras" else tf.Variable(1.0)
    optimizer = amp_tf.LossScaleOptimizer(FAMILIES[family].SGD(0.5))
    for step in (1, 2):
        result = optimizer.apply_gradients([(optimizer.scale_loss(tf.constant(1.0)), variable)])
        assert int(result.numpy()) == step
