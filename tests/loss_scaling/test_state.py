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
from tests.loss_scaling.steps import assert_same, since_keras_3_1, values, variables

X = np.random.RandomState(0).randn(64, 4).astype("float32")
Y = X.sum(1, keepdims=True)
BAD = X[:8] * np.inf


def make_model(wrapped=True):
    keras.utils.set_random_seed(2)
    model = keras.Sequential(
        [keras.layers.Input((4,)), keras.layers.Dense(3, activation="tanh"), keras.layers.Dense(1)]
    )
    optimizer = keras.optimizers.Adam(0.01)
    model.compile(
        amp_tf.LossScaleOptimizer(optimizer, dynamic_growth_steps=5) if wrapped else optimizer,
        "mse",
    )
    return model


def train(model, skip=False):
    model.fit(np.concatenate([X, BAD]) if skip else X, np.concatenate([Y, Y[:8]]) if skip else Y,
              batch_size=8, verbose=0, shuffle=False)  # fmt: skip


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
    after, again = (
        dataclasses.replace(model.optimizer.status(), nonfinite_variables=())
        for model in (straight, resumed)
    )
    assert before.skipped == 1
    assert after.scale > before.scale
    assert again == after


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
    back = make_model(wrapped=False)
    train(plain)
    through(plain, wrapped, tmp_path / "plain")
    assert wrapped.optimizer.status().scale == 2.0**15
    train(plain)
    train(wrapped)
    assert_same(everything(wrapped), everything(plain))

    train(wrapped, skip=True)
    back.optimizer.build(back.trainable_variables)
    through(wrapped, back, tmp_path / "wrapped")
    assert_same(everything(back), everything(wrapped))
    assert not [w for w in recwarn if "optimizer" in str(w.message)]


def test_case_32_a_file_of_keras_own_wrapper_loads_with_its_scale(tmp_path):
    theirs = make_model(wrapped=False)
    theirs.compile(
        keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01), dynamic_growth_steps=5),
        "mse",
    )
    train(theirs, skip=True)
    theirs.save_weights(tmp_path / "m.weights.h5")
    ours = make_model()
    ours.optimizer.build(ours.trainable_variables)
    ours.load_weights(tmp_path / "m.weights.h5")
    assert_same(everything(ours), everything(theirs))
    assert ours.optimizer.status().scale == float(theirs.optimizer.dynamic_scale.numpy())
    assert int(ours.optimizer.step_counter) == int(theirs.optimizer.step_counter.numpy())


@pytest.mark.parametrize("collapsed", [0.0, float("inf")])
def test_case_32_k02_and_k03_a_collapsed_scale_of_keras_own_wrapper_is_not_taken_over(
    collapsed, tmp_path
):
    theirs = make_model(wrapped=False)
    theirs.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01)), "mse")
    theirs.optimizer.build(theirs.trainable_variables)
    theirs.optimizer.dynamic_scale.assign(collapsed)
    theirs.save_weights(tmp_path / "m.weights.h5")
    ours = make_model()
    ours.optimizer.build(ours.trainable_variables)
    ours.load_weights(tmp_path / "m.weights.h5")
    assert ours.optimizer.status().scale == 2.0**15


def test_a_file_of_another_optimizer_is_not_loaded_and_says_so(tmp_path):
    model = make_model()
    train(model)
    model.save_weights(tmp_path / "m.weights.h5")
    other = make_model()
    other.compile(amp_tf.LossScaleOptimizer(keras.optimizers.SGD()), "mse")
    other.optimizer.build(other.trainable_variables)
    with pytest.warns(UserWarning, match="its state is not loaded"):
        other.load_weights(tmp_path / "m.weights.h5")


def test_the_file_holds_every_variable_once(tmp_path):
    model = make_model()
    train(model)
    model.save_weights(tmp_path / "m.weights.h5")
    with h5py.File(tmp_path / "m.weights.h5") as file:
        assert set(file["optimizer"]) == {"vars", "loss_scale_state"}
        assert len(file["optimizer/vars"]) == len(model.optimizer.inner_optimizer.variables)
        assert set(file["optimizer/loss_scale_state/vars"]) == {"scale", "counters"}


SETTINGS = {
    "growth_factor": 4.0,
    "backoff_factor": 0.25,
    "hysteresis": 2,
    "min_scale": 2.0**-10,
    "max_scale": 2.0**20,
}


def test_case_33_settings_survive_get_config_and_copies():
    inner = keras.optimizers.Adam(
        keras.optimizers.schedules.CosineDecay(0.1, 10), global_clipnorm=1.0
    )
    optimizer = amp_tf.LossScaleOptimizer(
        inner, 64.0, dynamic_growth_steps=7, name="mine", **SETTINGS
    )
    config = optimizer.get_config()
    clone = type(optimizer).from_config(copy.deepcopy(config))
    again = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    for other in (clone, again):
        assert type(other) is type(optimizer)
        assert other.get_config() == config
        assert other.schedule == optimizer.schedule
        assert (other.name, other.global_clipnorm) == ("mine", 1.0)


def test_case_33_and_k10_get_and_set_weights_reach_the_inner_optimizer():
    model = make_model()
    train(model, skip=True)
    saved = model.optimizer.get_weights()
    fresh = make_model()
    fresh.optimizer.build(fresh.trainable_variables)
    fresh.optimizer.set_weights(saved)
    assert_same(fresh.optimizer.get_weights(), saved)
    assert fresh.optimizer.status().skipped == 1
    fresh.optimizer.set_weights(
        [np.zeros_like(w) for w in saved[:-2]]
    )  # what a float32 optimizer has
    assert fresh.optimizer.status().skipped == 1
    assert int(fresh.optimizer.iterations.numpy()) == 0
    with pytest.raises(ValueError, match="got 3 arrays"):
        fresh.optimizer.set_weights(saved[:3])


def test_case_33_the_scale_may_be_set_while_a_traced_step_is_in_use():
    weights = variables()
    optimizer = amp_tf.LossScaleOptimizer(keras.optimizers.SGD(0.5))
    scaled = tf.function(lambda: optimizer.scale_loss(1.0))
    optimizer.build(weights)
    assert float(scaled()) == 2.0**15
    optimizer.loss_scale = 8.0
    assert float(scaled()) == 8.0
