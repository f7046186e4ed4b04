"""Cases 31 to 33: saving, loading, settings.

A resumed run is the run that was never interrupted.
"""

import copy
import dataclasses

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf

import amp_tf
from tests.loss_scaling.steps import assert_same, sgd_of, since_keras_3_1, values, variables

X = np.random.RandomState(0).randn(64, 4).astype("float32")
Y = X.sum(1, keepdims=True)
BAD = X[:8] * np.inf


def make_model(wrapped=True, optimizer=None):
    keras.utils.set_random_seed(2)
    dense = keras.layers.Dense
    model = keras.Sequential([keras.layers.Input((4,)), dense(3, activation="tanh"), dense(1)])
    if optimizer is None:
        optimizer = keras.optimizers.Adam(0.01)
    if wrapped:
        optimizer = amp_tf.LossScaleOptimizer(optimizer, dynamic_growth_steps=5)
    model.compile(optimizer, "mse")
    return model


def train(model, skip=False):
    x = np.concatenate([X, BAD]) if skip else X
    y = np.concatenate([Y, Y[:8]]) if skip else Y
    model.fit(x, y, batch_size=8, verbose=0, shuffle=False)


def status(optimizer):
    """Its status, without the names of the variables, which each model gives its own."""
    return dataclasses.replace(optimizer.status(), nonfinite_variables=())


def built(wrapped=True):
    model = make_model(wrapped)
    model.optimizer.build(model.trainable_variables)
    return model


def everything(model):
    return values(model.optimizer, model.trainable_variables)


def roundtrip_keras(model, folder):
    model.save(folder / "m.keras")
    return keras.models.load_model(folder / "m.keras")


def roundtrip_weights(model, folder):
    model.save_weights(folder / "m.weights.h5")
    fresh = make_model()
    fresh.load_weights(folder / "m.weights.h5")  # the optimizer of a fresh model has no slots yet
    return fresh


def roundtrip_checkpoint(model, folder):
    path = tf.train.Checkpoint(model=model, optimizer=model.optimizer).save(folder / "ckpt")
    fresh = make_model()
    status = tf.train.Checkpoint(model=fresh, optimizer=fresh.optimizer).restore(path)
    fresh.optimizer.build(fresh.trainable_variables)
    status.assert_existing_objects_matched()
    return fresh


@pytest.mark.parametrize(
    "roundtrip",
    [roundtrip_keras, roundtrip_weights, pytest.param(roundtrip_checkpoint, marks=since_keras_3_1)],
)
def test_case_31_a_resumed_run_equals_the_uninterrupted_one(roundtrip, tmp_path):
    straight = make_model()
    train(straight, skip=True)
    resumed = roundtrip(straight, tmp_path)
    before = straight.optimizer.status()
    train(straight)
    train(resumed)
    assert_same(everything(resumed), everything(straight))
    assert before.skipped == 1
    assert status(straight.optimizer).scale > before.scale
    assert status(resumed.optimizer) == status(straight.optimizer)


def through_a_weights_file(model, into, path):
    model.save_weights(f"{path}.weights.h5")
    into.load_weights(f"{path}.weights.h5")
    into.optimizer.build(into.trainable_variables)


def through_a_checkpoint(model, into, path):
    path = tf.train.Checkpoint(model=model, optimizer=model.optimizer).save(path)
    status = tf.train.Checkpoint(model=into, optimizer=into.optimizer).restore(path)
    if into.optimizer.built:
        status.assert_existing_objects_matched()


@pytest.mark.parametrize(
    "through", [through_a_weights_file, pytest.param(through_a_checkpoint, marks=since_keras_3_1)]
)
def test_case_32_and_k09_a_float32_file_loads_whole_into_the_wrapped_optimizer_and_back(
    through, tmp_path, recwarn
):
    plain = make_model(wrapped=False)
    wrapped = make_model()
    back = built(wrapped=False)
    train(plain)
    through(plain, wrapped, tmp_path / "plain")
    assert wrapped.optimizer.status().scale == 2.0**15
    train(plain)
    train(wrapped)
    assert_same(everything(wrapped), everything(plain))

    train(wrapped, skip=True)
    through(wrapped, back, tmp_path / "wrapped")
    assert_same(everything(back), everything(wrapped))
    assert not [w for w in recwarn if "optimizer" in str(w.message)]


def loaded_from(model, folder):
    """A model whose optimizer amp_tf wraps, with the weights and the state of another one."""
    model.save_weights(folder / "m.weights.h5")
    ours = built()
    ours.load_weights(folder / "m.weights.h5")
    return ours


def wrapped_by_keras():
    inner = keras.optimizers.Adam(0.01)
    theirs = keras.optimizers.LossScaleOptimizer(inner, dynamic_growth_steps=5)
    return make_model(wrapped=False, optimizer=theirs)


def test_case_32_a_file_of_keras_own_wrapper_loads_with_its_scale(tmp_path):
    theirs = wrapped_by_keras()
    train(theirs, skip=True)
    ours = loaded_from(theirs, tmp_path)
    assert_same(everything(ours), everything(theirs))
    assert ours.optimizer.status().scale == theirs.optimizer.dynamic_scale.numpy()
    assert int(ours.optimizer.step_counter) == int(theirs.optimizer.step_counter.numpy())


@pytest.mark.parametrize("collapsed", [0.0, float("inf")])
def test_case_32_k02_and_k03_a_collapsed_scale_of_keras_own_wrapper_is_not_taken_over(
    collapsed, tmp_path
):
    theirs = wrapped_by_keras()
    theirs.optimizer.build(theirs.trainable_variables)
    theirs.optimizer.dynamic_scale.assign(collapsed)
    assert loaded_from(theirs, tmp_path).optimizer.status().scale == 2.0**15


def test_a_file_of_another_optimizer_is_not_loaded_and_says_so(tmp_path):
    other = make_model(optimizer=keras.optimizers.SGD())
    train(other)
    with pytest.warns(UserWarning, match="its state is not loaded"):
        loaded_from(other, tmp_path)


def momentum():
    return keras.optimizers.SGD(0.01, momentum=0.5)


@pytest.mark.parametrize("is_built", [True, False])
@pytest.mark.parametrize("optimizer", [momentum, keras.optimizers.Adam])
def test_four_more_variables_are_not_taken_for_those_of_keras_own_wrapper(
    optimizer, is_built, tmp_path, recwarn
):
    """Adam has four more for four variables than SGD, and than Adam for two variables."""
    other = make_model()
    train(other)
    other.save_weights(tmp_path / "m.weights.h5")
    ours = make_model(optimizer=optimizer())
    ours.layers[0].trainable = optimizer is momentum
    if is_built:
        ours.optimizer.build(ours.trainable_variables)
    ours.load_weights(tmp_path / "m.weights.h5")
    ours.optimizer.build(ours.trainable_variables)
    assert [w for w in recwarn if "its state is not loaded" in str(w.message)]
    assert int(ours.optimizer.iterations.numpy()) == 0


def test_the_file_holds_every_variable_once(tmp_path):
    model = make_model()
    train(model)
    model.save_weights(tmp_path / "m.weights.h5")
    with h5py.File(tmp_path / "m.weights.h5") as file:
        assert set(file["optimizer"]) == {"vars", "loss_scale_state"}
        assert len(file["optimizer/vars"]) == len(model.optimizer.inner_optimizer.variables)
        assert set(file["optimizer/loss_scale_state/vars"]) == {"scale", "counters"}


OTHERS = {"backoff_factor": 0.25, "hysteresis": 2, "min_scale": 2.0**-10, "max_scale": 2.0**20}


def test_case_33_settings_survive_get_config_and_copies():
    schedule = keras.optimizers.schedules.CosineDecay(0.1, 10)
    inner = keras.optimizers.Adam(schedule, global_clipnorm=1.0)
    optimizer = amp_tf.LossScaleOptimizer(
        inner, 64.0, dynamic_growth_steps=7, growth_factor=4.0, name="mine", **OTHERS
    )
    config = optimizer.get_config()
    clone = type(optimizer).from_config(copy.deepcopy(config))
    again = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    for other in (clone, again):
        assert type(other) is type(optimizer)
        assert other.get_config() == config
        assert other.schedule == optimizer.schedule
        assert other.name == "mine"
        assert other.global_clipnorm == 1.0


def test_case_33_and_k10_variables_and_set_weights_are_those_of_the_inner_optimizer():
    model = make_model()
    train(model, skip=True)
    optimizer = model.optimizer
    bare = built(wrapped=False).optimizer
    assert [v.shape for v in optimizer.variables] == [v.shape for v in bare.variables]
    saved = [variable.numpy() for variable in optimizer.variables]
    bare.set_weights(saved)
    assert_same([variable.numpy() for variable in bare.variables], saved)
    fresh = built().optimizer
    fresh.set_weights(saved)
    assert_same([variable.numpy() for variable in fresh.variables], saved)
    # A program that resets its optimizer leaves the scale alone.
    before = optimizer.status()
    for variable in optimizer.variables:
        variable.assign(tf.zeros_like(variable.value))
    assert int(optimizer.iterations.numpy()) == 0
    assert optimizer.status() == before
    assert before.skipped == 1


def test_the_variable_map_of_a_model_has_those_of_the_inner_optimizer():
    model = built()
    found = model._get_variable_map()
    for variable in model.optimizer.inner_optimizer.variables:
        assert found[variable.path] is variable


@since_keras_3_1
def test_a_checkpoint_takes_a_model_and_the_optimizer_that_it_was_compiled_with(tmp_path):
    model = built()
    inner = model.optimizer.inner_optimizer
    saved = tf.train.Checkpoint(model, optimizer=inner).save(tmp_path / "ckpt")
    for optimizer in (inner, model.optimizer):
        tf.train.Checkpoint(model, optimizer=optimizer).restore(saved).assert_consumed()
    assert {model.optimizer: 1}[inner] == 1
    assert model.optimizer != amp_tf.LossScaleOptimizer(inner)


def test_case_33_the_scale_may_be_set_while_a_traced_step_is_in_use():
    optimizer = sgd_of(variables())
    scaled = tf.function(lambda: optimizer.scale_loss(1.0))
    assert scaled() == 2.0**15
    optimizer.loss_scale = 8.0
    assert scaled() == 8.0
