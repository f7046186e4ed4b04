"""Every wrapper, and the scaler for bare loops, shows and sets its state alike and refuses misuse in the same words."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf
import tf_keras

import amp_tf
from amp_tf.errors import ConfigError
from amp_tf.loss_scaling.schedule import DynamicScale

V1 = tf.compat.v1.train
OPTIMIZERS = {
    "keras": lambda: keras.optimizers.SGD(0.5),
    "tf_keras": lambda: tf_keras.optimizers.SGD(0.5),
    "legacy": lambda: tf_keras.optimizers.legacy.SGD(0.5),
    "v1": lambda: V1.GradientDescentOptimizer(0.5),
}


def make(kind: str, **settings):
    if kind == "scaler":
        return amp_tf.LossScaler(**settings)
    return amp_tf.LossScaleOptimizer(OPTIMIZERS[kind](), **settings)


def step(scaler, gradient: tf.Tensor, variable: tf.Variable) -> None:
    """A step by a gradient that the loop unscaled."""
    if isinstance(scaler, amp_tf.LossScaler):
        scaler.scale(tf.reduce_sum(variable))
        scaler.step(lambda grads: variable.assign_sub(0.5 * grads[0]), scaler.unscale([gradient]))
    else:
        scaler.get_scaled_loss(tf.reduce_sum(variable))
        (unscaled,) = scaler.get_unscaled_gradients([gradient])
        scaler.apply_gradients([(unscaled, variable)])


@pytest.fixture(params=[*OPTIMIZERS, "scaler"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


def test_the_scale_is_a_variable_that_can_be_read_and_set(kind: str) -> None:
    scaler, variable = make(kind, initial_scale=4.0), tf.Variable([1.0])
    assert (scaler.loss_scale.dtype, scaler.loss_scale.shape, float(scaler.loss_scale.numpy())) == (tf.float32, (), 4.0)
    scaler.loss_scale = 8.0
    step(scaler, tf.constant([8.0]), variable)
    assert float(scaler.loss_scale.numpy()) == 8.0
    assert variable.numpy().tolist() == [0.5]  # 8 over the new scale, times the learning rate
    for bad in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ConfigError, match=r"^loss scaling, loss_scale: .* is not a valid value\. Valid values"):
            scaler.loss_scale = bad


def test_status_schedule_and_dynamic_say_the_same(kind: str) -> None:
    scaler, variable = make(kind, initial_scale=4.0, dynamic_growth_steps=2), tf.Variable([1.0])
    for gradient in (4.0, float("nan"), 4.0, 4.0):
        step(scaler, tf.constant([gradient]), variable)
    status = scaler.status()
    assert (status.scale, status.steps, status.skipped, status.skipped_in_row) == (4.0, 4, 1, 0)
    assert (status.good_steps, status.last_change) == (0, 4)
    assert isinstance(scaler.schedule, DynamicScale)
    assert scaler.dynamic
    assert not make(kind, dynamic=False).dynamic


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_an_optimizer_that_is_wrapped_is_refused_in_the_same_words(kind: str) -> None:
    with pytest.raises(ConfigError) as caught:
        amp_tf.LossScaleOptimizer(make(kind))
    assert str(caught.value) == "LossScaleOptimizer: the optimizer is a LossScaleOptimizer already. Wrap it once."


def test_settings_that_mean_nothing_are_refused_in_the_same_words(kind: str) -> None:
    where = "LossScaler" if kind == "scaler" else "LossScaleOptimizer"
    for settings, words in (
        ({"unknown": 1}, f"{where}: there is no setting 'unknown'. The settings are: initial_scale, "),
        ({"dynamic": "no"}, f"{where}.dynamic: 'no' is not a valid value. Valid values: True, False."),
        ({"hysteresis": 0}, "loss scaling, hysteresis: 0 is not a valid value. Valid values: integers from 1."),
    ):
        with pytest.raises(ConfigError) as caught:
            make(kind, **settings)
        assert str(caught.value).startswith(words)


def test_a_step_without_gradients_and_one_outside_a_replica_are_refused_in_the_same_words(kind: str) -> None:
    scaler, variable = make(kind), tf.Variable([1.0])
    name = "step" if kind == "scaler" else "apply_gradients"

    def make_step(gradient) -> None:
        if kind == "scaler":
            scaler.step(lambda grads: None, [gradient])
        else:
            scaler.apply_gradients([(gradient, variable)])

    with pytest.raises(ValueError, match="No gradients provided for any variable"):
        make_step(None)
    with (
        tf.distribute.MirroredStrategy(["cpu:0"]).scope(),
        pytest.raises(ValueError, match=rf"^{name}\(\) must be called in a replica context: from a function given to"),
    ):
        make_step(tf.constant([1.0]))


@pytest.mark.parametrize("kind", ["v1", "legacy", "scaler"])
def test_in_a_tf1_graph_the_scale_is_set_in_the_default_session(kind: str) -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        scaler = make(kind, initial_scale=4.0)
        session.run(tf.compat.v1.global_variables_initializer())
        operations = len(session.graph.get_operations())
        scaler.loss_scale = 16.0
        assert len(session.graph.get_operations()) == operations  # so that it works in a finalized graph
        assert session.run(scaler.loss_scale) == 16.0
        assert scaler.status(session).scale == 16.0
