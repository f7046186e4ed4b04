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
from tests.loss_scaling.steps import OPTIMIZERS, variables


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
    assert (scaler.loss_scale.dtype, scaler.loss_scale.shape, float(scaler.loss_scale.numpy())) == (
        tf.float32,
        (),
        4.0,
    )
    scaler.loss_scale = 8.0
    step(scaler, tf.constant([8.0]), variable)
    assert float(scaler.loss_scale.numpy()) == 8.0
    assert scaler.dynamic
    assert not make(kind, dynamic=False).dynamic
    assert variable.numpy().tolist() == [0.5]  # 8 over the new scale, times the learning rate
    for bad in (0, 0.0, -1.0, float("inf"), float("nan"), np.float32(0)):
        with pytest.raises(
            ConfigError, match=r"^loss scaling, loss_scale: .* is not a valid value\. Valid values"
        ):
            scaler.loss_scale = bad


THEIRS = {
    "keras": keras.optimizers.LossScaleOptimizer,
    "tf_keras": tf_keras.mixed_precision.LossScaleOptimizer,
    "legacy": tf_keras.mixed_precision.LossScaleOptimizer,
    "v1": lambda optimizer: tf.compat.v1.mixed_precision.MixedPrecisionLossScaleOptimizer(
        optimizer, "dynamic"
    ),
}


@pytest.mark.parametrize("theirs", [False, True])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_case_27_and_k06_an_optimizer_that_is_wrapped_is_refused_in_the_same_words(kind, theirs):
    with pytest.raises(ConfigError) as caught:
        amp_tf.LossScaleOptimizer(THEIRS[kind](OPTIMIZERS[kind]()) if theirs else make(kind))
    assert (
        str(caught.value)
        == "LossScaleOptimizer: the optimizer is a LossScaleOptimizer already. Wrap it once."
    )


def test_settings_that_mean_nothing_are_refused_in_the_same_words(kind: str) -> None:
    for settings, words in (
        (
            {"unknown": 1},
            "loss scaling: there is no setting 'unknown'. The settings are: initial_scale, ",
        ),
        (
            {"dynamic": "no"},
            "loss scaling, dynamic: 'no' is not a valid value. Valid values: True, False.",
        ),
        (
            {"growth_factor": None},
            "loss scaling, growth_factor: None is not a valid value. Valid values: a finite number",
        ),
        (
            {"hysteresis": 0},
            "loss scaling, hysteresis: 0 is not a valid value. Valid values: integers from 1.",
        ),
    ):
        with pytest.raises(ConfigError) as caught:
            make(kind, **settings)
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
    with (
        tf.distribute.MirroredStrategy(["cpu:0"]).scope(),
        pytest.raises(
            ValueError,
            match=rf"^{name}\(\) must be called in a replica context: from a function given to",
        ),
    ):
        make_step(tf.constant([1.0]))


@pytest.mark.parametrize("kind", ["v1", "legacy", "scaler"])
def test_in_a_tf1_graph_the_scale_is_set_in_the_default_session(kind):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        scaler = make(kind, initial_scale=4.0)
        session.run(tf.compat.v1.global_variables_initializer())
        operations = len(session.graph.get_operations())
        scaler.loss_scale = 16.0
        assert (
            len(session.graph.get_operations()) == operations
        )  # so that it works in a finalized graph
        assert session.run(scaler.loss_scale) == 16.0
        assert scaler.status(session).scale == 16.0


def test_case_27_an_optimizer_with_its_own_factor_is_refused_and_told_how():
    with pytest.raises(
        ConfigError, match=r"loss_scale_factor=8\.0.*initial_scale=…, dynamic=False"
    ):
        amp_tf.LossScaleOptimizer(keras.optimizers.SGD(loss_scale_factor=8.0))


@pytest.mark.parametrize("kind", ["keras", "tf_keras", "legacy"])
def test_case_27_keras_takes_the_wrapper_for_its_own_and_does_not_wrap_it(kind):
    library = keras if kind == "keras" else tf_keras
    optimizer = make(kind)
    assert isinstance(optimizer, THEIRS[kind])
    model = library.Sequential([library.layers.Input((2,)), library.layers.Dense(1)])
    if library is keras:
        model.dtype_policy = keras.DTypePolicy("mixed_float16")
    model.compile(optimizer, "mse")
    assert model.optimizer is optimizer


@pytest.mark.parametrize("kind", ["keras", "tf_keras", "legacy"])
def test_case_33_settings_of_the_inner_optimizer_are_read_and_set_through_the_wrapper(kind):
    library = {
        "keras": keras.optimizers,
        "tf_keras": tf_keras.optimizers,
        "legacy": tf_keras.optimizers.legacy,
    }[kind]
    inner = library.Adam(0.5, beta_1=0.8, clipnorm=2.0)
    optimizer = amp_tf.LossScaleOptimizer(inner)
    assert (float(optimizer.beta_1), optimizer.clipnorm) == (pytest.approx(0.8), 2.0)
    assert float(np.asarray(optimizer.learning_rate)) == 0.5
    optimizer.clipnorm, optimizer.learning_rate, optimizer.beta_1 = 3.0, 0.25, 0.5
    assert (inner.clipnorm, float(np.asarray(inner.learning_rate)), float(inner.beta_1)) == (
        3.0,
        0.25,
        0.5,
    )
    assert float(optimizer.beta_1) == 0.5
    with pytest.raises(AttributeError):
        _ = optimizer.no_such_thing


@pytest.mark.parametrize("kind", ["keras", "tf_keras", "legacy"])
def test_case_33_a_users_own_attributes_and_methods_are_reached_through_the_wrapper(kind):
    library = {
        "keras": keras.optimizers,
        "tf_keras": tf_keras.optimizers,
        "legacy": tf_keras.optimizers.legacy,
    }[kind]

    class Own(library.SGD):
        factor = 2

        def __init__(self):
            super().__init__(0.5, name="own")
            self.history = [1]
            self.note = None

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
    assert (list(optimizer.history), optimizer.double(), optimizer.length) == ([1], 2, 1)
    optimizer.history = [1, 2]
    optimizer.factor, optimizer.note = 3, "text"
    assert (list(inner.history), inner.factor, inner.note, optimizer.double()) == (
        [1, 2],
        3,
        "text",
        6,
    )
    optimizer.length = 4
    assert (len(inner.history), optimizer.length) == (4, 4)
    name = "_name" if kind == "legacy" else "name"
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


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("library", [keras, tf_keras])
@pytest.mark.parametrize(
    "kind", [np.array, list, tf.Variable, keras.Variable], ids=lambda kind: kind.__name__
)
def test_gradients_need_not_be_tensors(kind, library, scaled, traced):
    optimizer = amp_tf.LossScaleOptimizer(library.optimizers.SGD(0.5), 4.0)
    weight = tf.Variable([1.0])
    gradient = kind([4.0] if scaled else [1.0])
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
    known = keras.Variable([1.0], name="known")
    other = keras.Variable([1.0], name="other")
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
    with pytest.raises(
        ValueError, match=r"got 1 gradients for 3 variables\. Give one for each variable"
    ):
        optimizer.apply([tf.ones(3)], weights if named else None)


def test_a_disabled_wrapper_neither_multiplies_nor_divides():
    optimizer = amp_tf.LossScaleOptimizer(keras.optimizers.SGD(), enabled=False)
    optimizer.loss_scale = 8.0
    assert float(optimizer.get_scaled_loss(tf.constant(1.0))) == 1.0
    assert [float(g) for g in optimizer.get_unscaled_gradients([tf.constant(1.0)])] == [1.0]


def scaled(optimizer, variable, x, method="apply_gradients"):
    with tf.GradientTape() as tape:
        loss = optimizer.scale_loss(tf.reduce_sum(variable * x))
    gradient = tape.gradient(loss, variable)
    if method == "apply":
        optimizer.apply([gradient], [variable])
    else:
        optimizer.apply_gradients([(gradient, variable)])


def unscaled_by_the_loop(optimizer, variable, x):
    with tf.GradientTape() as tape:
        loss = optimizer.get_scaled_loss(tf.reduce_sum(variable * x))
    gradients = optimizer.get_unscaled_gradients([tape.gradient(loss, variable)])
    optimizer.apply_gradients(zip(gradients, [variable], strict=True))


STEPS = [
    *(
        (name, step)
        for name in ("keras", "tf_keras", "legacy")
        for step in (scaled, unscaled_by_the_loop)
    ),
    ("keras", lambda *given: scaled(*given, "apply")),
]


@pytest.mark.parametrize(("name", "step"), STEPS)
def test_none_of_its_functions_is_converted(name, step, monkeypatch):
    optimizer = amp_tf.LossScaleOptimizer(OPTIMIZERS[name]())
    variable = (keras if name == "keras" else tf).Variable([1.0, 2.0])
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
