"""Cases 27 and 30: what is refused."""

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import amp_tf
from amp_tf.errors import ConfigError
from amp_tf.loss_scaling import LossScaleSettings, is_loss_scaled
from amp_tf.loss_scaling.schedule import build_schedule
from tests.loss_scaling.steps import variables


@pytest.mark.parametrize("wrap", [amp_tf.LossScaleOptimizer, keras.optimizers.LossScaleOptimizer])
def test_case_27_and_k06_an_optimizer_that_is_wrapped_is_not_wrapped_again(wrap):
    with pytest.raises(ConfigError, match="is a LossScaleOptimizer already"):
        amp_tf.LossScaleOptimizer(wrap(keras.optimizers.SGD()))


def test_case_27_an_optimizer_with_its_own_factor_is_refused_and_told_how():
    with pytest.raises(ConfigError, match=r"loss_scale_factor=8\.0.*initial_scale=…, dynamic=False"):
        amp_tf.LossScaleOptimizer(keras.optimizers.SGD(loss_scale_factor=8.0))


def test_case_27_keras_takes_the_wrapper_for_its_own_and_does_not_wrap_it():
    optimizer = amp_tf.LossScaleOptimizer(keras.optimizers.SGD())
    assert isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    model.dtype_policy = keras.DTypePolicy("mixed_float16")
    model.compile(optimizer, "mse")
    assert model.optimizer is optimizer


def test_an_unknown_setting_is_refused_with_those_that_exist():
    with pytest.raises(
        ConfigError, match=r"^LossScaleOptimizer: there is no setting 'unknown'\. The settings are: initial_sc"
    ):
        amp_tf.LossScaleOptimizer(keras.optimizers.SGD(), unknown=1)
    assert amp_tf.LossScaleOptimizer(keras.optimizers.SGD(), name="mine").name == "mine"
    with pytest.raises(ConfigError, match=r"there is no setting 'name' for an optimizer of tensorflow"):
        amp_tf.LossScaleOptimizer(tf.compat.v1.train.GradientDescentOptimizer(0.1), name="mine")


@pytest.mark.parametrize(
    ("name", "value", "valid"),
    [("growth_factor", None, "numbers"), ("max_scale", "a", "numbers"), ("dynamic", "no", "True, False")],
)
def test_a_setting_of_another_kind_is_refused_in_words(name, value, valid):
    with pytest.raises(ConfigError) as caught:
        amp_tf.LossScaleOptimizer(keras.optimizers.SGD(), **{name: value})
    assert str(caught.value) == f"LossScaleOptimizer.{name}: {value!r} is not a valid value. Valid values: {valid}."


def test_the_typed_settings_are_those_of_the_schedule():
    typed = set(inspect.signature(build_schedule).parameters) - {"initial_scale"} | {"name"}
    assert set(LossScaleSettings.__annotations__) == typed


def test_something_that_is_no_optimizer_is_refused():
    with pytest.raises(
        TypeError, match=r"expected an optimizer of keras, tf_keras or tf\.compat\.v1\.train, got 'sgd'"
    ):
        amp_tf.LossScaleOptimizer("sgd")


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        (lambda: keras.optimizers.SGD(), False),
        (lambda: keras.optimizers.SGD(loss_scale_factor=2.0), True),
        (lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()), True),
        (lambda: amp_tf.LossScaleOptimizer(keras.optimizers.SGD()), True),
        (lambda: amp_tf.LossScaleOptimizer(tf.compat.v1.train.AdamOptimizer()), True),
        (lambda: tf.compat.v1.mixed_precision.MixedPrecisionLossScaleOptimizer(
            tf.compat.v1.train.AdamOptimizer(), "dynamic"), True),
    ],
    ids=["bare", "factor", "keras", "ours", "ours_v1", "tf_v1"],
)  # fmt: skip
def test_what_counts_as_scaled_already(optimizer, expected):
    assert is_loss_scaled(optimizer()) is expected


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("library", [keras, tf_keras])
@pytest.mark.parametrize("kind", [np.array, list, tf.Variable, keras.Variable], ids=lambda kind: kind.__name__)
def test_gradients_need_not_be_tensors(kind, library, scaled, traced):
    optimizer = amp_tf.LossScaleOptimizer(library.optimizers.SGD(0.5), 4.0)
    weight, gradient = tf.Variable([1.0]), kind([4.0] if scaled else [1.0])
    if library is tf_keras and kind is keras.Variable:
        pytest.skip("tf_keras knows nothing of Keras 3")
    optimizer.build([weight])
    if scaled:
        optimizer.scale_loss(tf.constant(1.0))

    def step():
        optimizer.apply_gradients([(gradient, weight)])

    (tf.function(step) if traced else step)()
    assert weight.numpy().tolist() == [0.5]


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("value", [1.0, float("nan")])
def test_a_variable_that_the_optimizer_was_not_built_with_is_named(traced, value):
    known, other = keras.Variable([1.0], name="known"), keras.Variable([1.0], name="other")
    optimizer = amp_tf.LossScaleOptimizer(keras.optimizers.SGD(0.5))
    optimizer.build([known])

    def step():
        optimizer.apply_gradients([(tf.constant([value]), other)])

    told = r"optimizer '(?i:sgd).*': Unknown variable: other.*optimizer\.build\(variables\)"
    with pytest.raises(ValueError, match=told):
        (tf.function(step) if traced else step)()
    assert optimizer.status().steps == 0


@pytest.mark.parametrize("named", [False, True])
def test_gradients_and_variables_must_be_of_one_number(named):
    weights = variables()
    optimizer = amp_tf.LossScaleOptimizer(keras.optimizers.SGD(0.5))
    optimizer.build(weights)
    optimizer.scale_loss(tf.constant(1.0))
    with pytest.raises(ValueError, match=r"got 1 gradients for 3 variables\. Give one for each variable"):
        optimizer.apply([tf.ones(3)], weights if named else None)


@pytest.mark.parametrize("value", [0, 0.0, -1.0, float("inf"), float("nan"), np.float32(0)])
@pytest.mark.parametrize("library", [keras, tf_keras])
def test_a_scale_that_no_training_can_use_is_refused(library, value):
    optimizer = amp_tf.LossScaleOptimizer(library.optimizers.SGD())
    with pytest.raises(ConfigError, match=r"loss_scale: .* is not a valid value. Valid values: numbers from 1\.17"):
        optimizer.loss_scale = value
    assert optimizer.status().scale == 2.0**15


def test_a_disabled_wrapper_neither_multiplies_nor_divides():
    optimizer = amp_tf.LossScaleOptimizer(keras.optimizers.SGD(), enabled=False)
    optimizer.loss_scale = 8.0
    assert float(optimizer.get_scaled_loss(tf.constant(1.0))) == 1.0
    assert [float(g) for g in optimizer.get_unscaled_gradients([tf.constant(1.0)])] == [1.0]
