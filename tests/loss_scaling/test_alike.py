"""Cases 27 and 30: every wrapper, and the scaler for bare loops, shows its state and refuses misuse
alike.
"""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from tensorflow.python.autograph.impl import api

import amp_tf
from amp_tf.errors import ConfigError
from amp_tf.loss_scaling import LossScaleSettings
from amp_tf.loss_scaling.schedule import DynamicScale
from tests.loss_scaling.steps import (
    FAMILIES,
    OPTIMIZERS,
    by_families,
    eager_and_traced,
    in_mode,
    sgd_of,
    variables,
)


def make(kind, **settings):
    if kind == "scaler":
        return amp_tf.LossScaler(**settings)
    return amp_tf.LossScaleOptimizer(OPTIMIZERS[kind](), **settings)


def step(scaler, gradient, variable):
    """A step by a gradient that the loop unscaled."""
    if isinstance(scaler, amp_tf.LossScaler):
        scaler.scale(tf.reduce_sum(variable))
        scaler.step(lambda grads: variable.assign_sub(0.5 * grads[0]), scaler.unscale([gradient]))
    else:
        scaler.get_scaled_loss(tf.reduce_sum(variable))
        (unscaled,) = scaler.get_unscaled_gradients([gradient])
        scaler.apply_gradients([(unscaled, variable)])


@pytest.fixture(params=[*OPTIMIZERS, "scaler"])
def kind(request):
    return request.param


def test_the_scale_is_a_variable_that_can_be_read_and_set(kind):
    scaler = make(kind, initial_scale=4.0)
    variable = tf.Variable([1.0])
    assert scaler.loss_scale.dtype == tf.float32
    assert scaler.loss_scale.numpy() == 4.0
    scaler.loss_scale = 8.0
    step(scaler, tf.constant([8.0]), variable)
    assert scaler.loss_scale.numpy() == 8.0
    assert scaler.dynamic
    assert not make(kind, dynamic=False).dynamic
    assert variable.numpy().tolist() == [0.5]  # 8 over the new scale, times the learning rate
    refused = r"^loss scaling, loss_scale: .* is not a valid value\. Valid values"
    for bad in (0, -1.0, float("inf"), float("nan"), np.float32(0)):
        with pytest.raises(ConfigError, match=refused):
            scaler.loss_scale = bad


THEIRS = {
    "keras": keras.optimizers.LossScaleOptimizer,
    "tf_keras": tf_keras.mixed_precision.LossScaleOptimizer,
    "legacy": tf_keras.mixed_precision.LossScaleOptimizer,
    "v1": lambda optimizer: tf.compat.v1.mixed_precision.MixedPrecisionLossScaleOptimizer(
        optimizer, "dynamic"
    ),
}


@pytest.mark.parametrize("is_theirs", [False, True])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_case_27_and_k06_an_optimizer_that_is_wrapped_is_refused_in_the_same_words(kind, is_theirs):
    wrapped = THEIRS[kind](OPTIMIZERS[kind]()) if is_theirs else make(kind)
    already = r"^LossScaleOptimizer: the optimizer is a LossScaleOptimizer already\. Wrap it once"
    with pytest.raises(ConfigError, match=already):
        amp_tf.LossScaleOptimizer(wrapped)


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        ("unknown", 1, "loss scaling: there is no setting 'unknown'. The settings are: initial_"),
        (
            "dynamic",
            "no",
            "loss scaling, dynamic: 'no' is not a valid value. Valid values: True, False.",
        ),
        (
            "growth_factor",
            None,
            "loss scaling, growth_factor: None is not a valid value. Valid values: a finite number",
        ),
    ],
)
def test_settings_that_mean_nothing_are_refused_in_the_same_words(kind, setting, value, words):
    with pytest.raises(ConfigError) as caught:
        make(kind, **{setting: value})
    assert str(caught.value).startswith(words)


def test_a_step_without_gradients_and_one_outside_a_replica_are_refused_in_the_same_words(kind):
    scaler = make(kind)
    variable = tf.Variable([1.0])
    name = "step" if kind == "scaler" else "apply_gradients"

    def make_step(gradient):
        if kind == "scaler":
            scaler.step(lambda grads: None, [gradient])
        else:
            scaler.apply_gradients([(gradient, variable)])

    with pytest.raises(ValueError, match="No gradients provided for any variable"):
        make_step(None)
    outside = rf"^{name}\(\) must be called in a replica context: from a function given to"
    strategy = tf.distribute.MirroredStrategy(["cpu:0"])
    with strategy.scope(), pytest.raises(ValueError, match=outside):
        make_step(tf.constant([1.0]))


@pytest.mark.parametrize("kind", ["v1", "legacy", "scaler"])
def test_in_a_tf1_graph_the_scale_is_set_in_the_default_session(kind):
    with tf.Graph().as_default() as graph, tf.compat.v1.Session() as session:
        scaler = make(kind, initial_scale=4.0)
        session.run(tf.compat.v1.global_variables_initializer())
        graph.finalize()
        scaler.loss_scale = 16.0
        assert session.run(scaler.loss_scale) == 16.0
        assert scaler.status(session).scale == 16.0


def test_case_27_an_optimizer_with_its_own_factor_is_refused_and_told_how():
    with pytest.raises(
        ConfigError, match=r"loss_scale_factor=8\.0.*initial_scale=…, dynamic=False"
    ):
        amp_tf.LossScaleOptimizer(keras.optimizers.SGD(loss_scale_factor=8.0))


@by_families
def test_case_27_keras_takes_the_wrapper_for_its_own_and_does_not_wrap_it(family):
    library = keras if family == "keras" else tf_keras
    optimizer = make(family)
    assert isinstance(optimizer, THEIRS[family])
    model = library.Sequential([library.layers.Input((2,)), library.layers.Dense(1)])
    if library is keras:
        model.dtype_policy = keras.DTypePolicy("mixed_float16")
    model.compile(optimizer, "mse")
    assert model.optimizer is optimizer


@by_families
def test_case_33_settings_of_the_inner_optimizer_are_read_and_set_through_the_wrapper(family):
    inner = FAMILIES[family].Adam(0.5, beta_1=0.75, clipnorm=2.0)
    optimizer = amp_tf.LossScaleOptimizer(inner)
    for name, before, after in (
        ("beta_1", 0.75, 0.5),
        ("clipnorm", 2.0, 3.0),
        ("learning_rate", 0.5, 0.25),
    ):
        assert float(getattr(optimizer, name)) == before
        setattr(optimizer, name, after)
        assert float(getattr(inner, name)) == after
    assert float(optimizer.beta_1) == 0.5


@by_families
def test_case_33_a_users_own_attributes_and_methods_are_reached_through_the_wrapper(family):
    class Own(FAMILIES[family].SGD):
        factor = 2

        def __init__(self):
            super().__init__(0.5, name="own")
            self.history = [1]

        def double(self):
            return self.factor * len(self.history)

        @property
        def length(self):
            return len(self.history)

        @length.setter
        def length(self, value):
            self.history = [0] * value

    inner = Own()
    optimizer = amp_tf.LossScaleOptimizer(inner)
    assert list(optimizer.history) == [1]
    assert optimizer.double() == 2
    optimizer.history = [1, 2]
    optimizer.factor = 3
    assert list(inner.history) == [1, 2]
    assert inner.double() == optimizer.double() == 6
    optimizer.length = 4
    assert len(inner.history) == optimizer.length == 4
    name = "_name" if family == "legacy" else "name"
    assert getattr(optimizer, name) == getattr(inner, name) == "own"
    optimizer.of_the_wrapper = 1
    assert not hasattr(inner, "of_the_wrapper")
    with pytest.raises(AttributeError):
        _ = optimizer.no_such_thing


def test_the_name_is_a_setting_of_keras_3_alone():
    assert amp_tf.LossScaleOptimizer(keras.optimizers.SGD(), name="mine").name == "mine"
    with pytest.raises(
        ConfigError, match=r"^loss scaling: there is no setting 'name'\. The settings are: "
    ):
        amp_tf.LossScaleOptimizer(tf.compat.v1.train.GradientDescentOptimizer(0.1), name="mine")


def test_the_typed_settings_are_those_of_the_schedule():
    of_schedule = {field.name for field in dataclasses.fields(DynamicScale)} - {
        "initial_scale",
        "growth_steps",
    }
    own = {"dynamic", "enabled", "dynamic_growth_steps", "name"}
    assert set(LossScaleSettings.__annotations__) == of_schedule | own


def test_something_that_is_no_optimizer_is_refused():
    with pytest.raises(
        TypeError,
        match=r"expected an optimizer of keras, tf_keras or tf\.compat\.v1\.train, got 'sgd'",
    ):
        amp_tf.LossScaleOptimizer("sgd")


@eager_and_traced
@pytest.mark.parametrize("is_scaled", [False, True])
@pytest.mark.parametrize("library", [keras, tf_keras])
@pytest.mark.parametrize(
    "kind", [np.array, list, tf.Variable, keras.Variable], ids=lambda kind: kind.__name__
)
def test_gradients_need_not_be_tensors(kind, library, is_scaled, mode):
    if library is tf_keras and kind is keras.Variable:
        pytest.skip("tf_keras knows nothing of Keras 3")
    optimizer = amp_tf.LossScaleOptimizer(library.optimizers.SGD(0.5), 4.0)
    weight = tf.Variable([1.0])
    gradient = kind([1.0])
    optimizer.build([weight])
    if is_scaled:
        gradient = kind([4.0])
        optimizer.scale_loss(tf.constant(1.0))
    in_mode(lambda: optimizer.apply_gradients([(gradient, weight)]), mode)()
    assert weight.numpy().tolist() == [0.5]


@eager_and_traced
@pytest.mark.parametrize("value", [1.0, float("nan")])
def test_a_variable_that_the_optimizer_was_not_built_with_is_named(mode, value):
    optimizer = sgd_of([keras.Variable([1.0], name="known")])
    other = keras.Variable([1.0], name="other")
    step = in_mode(lambda: optimizer.apply_gradients([(tf.constant([value]), other)]), mode)
    told = r"optimizer '(?i:sgd).*': Unknown variable: other.*optimizer\.build\(variables\)"
    with pytest.raises(ValueError, match=told):
        step()
    assert optimizer.status().steps == 0


@pytest.mark.parametrize("is_given", [False, True])
def test_gradients_and_variables_must_be_of_one_number(is_given):
    weights = variables()
    optimizer = sgd_of(weights)
    optimizer.scale_loss(tf.constant(1.0))
    given = weights if is_given else None
    told = r"got 1 gradients for 3 variables\. Give one for each variable"
    with pytest.raises(ValueError, match=told):
        optimizer.apply([tf.ones(3)], given)


def test_a_disabled_wrapper_neither_multiplies_nor_divides():
    optimizer = amp_tf.LossScaleOptimizer(keras.optimizers.SGD(), enabled=False)
    optimizer.loss_scale = 8.0
    one = tf.constant(1.0)
    assert optimizer.get_scaled_loss(one) == 1.0
    assert optimizer.get_unscaled_gradients([one]) == [1.0]


def scaled(optimizer, variable, x):
    with tf.GradientTape() as tape:
        loss = optimizer.scale_loss(tf.reduce_sum(variable * x))
    optimizer.apply_gradients([(tape.gradient(loss, variable), variable)])


def scaled_and_applied(optimizer, variable, x):
    with tf.GradientTape() as tape:
        loss = optimizer.scale_loss(tf.reduce_sum(variable * x))
    optimizer.apply([tape.gradient(loss, variable)], [variable])


def unscaled_by_the_loop(optimizer, variable, x):
    with tf.GradientTape() as tape:
        loss = optimizer.get_scaled_loss(tf.reduce_sum(variable * x))
    gradients = optimizer.get_unscaled_gradients([tape.gradient(loss, variable)])
    optimizer.apply_gradients([(gradients[0], variable)])


@pytest.mark.parametrize("step", [scaled, scaled_and_applied, unscaled_by_the_loop])
@by_families
def test_none_of_its_functions_is_converted(family, step, monkeypatch):
    if step is scaled_and_applied and family != "keras":
        pytest.skip("tf_keras' optimizers have no apply()")
    optimizer = make(family)
    variable = (keras if family == "keras" else tf).Variable([1.0, 2.0])
    converted = []
    convert = api._convert_actual

    def note(entity, context):
        converted.append(entity.__module__)
        return convert(entity, context)

    monkeypatch.setattr(api, "_convert_actual", note)
    tf.function(lambda x: step(optimizer, variable, x))(tf.constant([4.0, 8.0]))
    assert __name__ in converted  # AutoGraph is at work
    assert [module for module in converted if module.startswith("amp_tf")] == []
    assert variable.numpy().tolist() == [-1.0, -2.0]


def test_a_scaler_comes_late_to_a_function_whose_first_trace_made_variables(kind):
    """TensorFlow lets no other trace of that function create any."""
    bare = OPTIMIZERS.get(kind, OPTIMIZERS["v1"])()
    scalers = []
    made = []

    @tf.function
    def train(count):
        if not made:
            made.append(tf.Variable([1.0]))
        if count == 1:
            bare.apply_gradients([(tf.ones(1), made[0])])
            return
        if kind == "scaler":
            scalers.append(make(kind, initial_scale=4.0))
        step(scalers[0], tf.constant([8.0]), made[0])

    train(1)
    before = made[0].numpy()
    if kind != "scaler":
        scalers.append(amp_tf.LossScaleOptimizer(bare, initial_scale=4.0))
    train(2)
    assert (before - made[0].numpy()).tolist() == [1.0]  # .5 · 8, over the scale
    assert scalers[0].status().steps == 1
