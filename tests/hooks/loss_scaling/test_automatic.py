"""The patches of automatic loss scaling as such: in place once, taken back whole, harmless when
they fail, no leaks.
"""

import functools
import gc

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from tensorflow.python.framework.func_graph import FuncGraph

import amp_tf
from amp_tf.config import AmpConfig, Switches
from amp_tf.hooks import loss_scaling, switch
from amp_tf.hooks import state as process_state
from amp_tf.loss_scaling import is_loss_scaled, ledger
from tests.hooks import installing
from tests.hooks.loss_scaling.setup import X, Y, installed, make_model

v1 = tf.compat.v1


def test_case_30_with_bfloat16_nothing_is_even_patched(library):
    before = library.Model.compile
    process_state.note(config=AmpConfig(precision="bfloat16"), switches=Switches(loss_scaling=True))
    switch.install_hooks(library.__name__)
    assert library.Model.compile is before


def test_keras_on_another_backend_is_not_even_patched(monkeypatch):
    before = keras.Model.compile
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with installed():
        assert keras.Model.compile is before
        assert tf_keras.Model.compile.__wrapped__ is not before


def test_a_failure_in_the_hook_leaves_the_program_alone_and_says_so_once(log, monkeypatch):
    def broken():
        raise OSError("no devices")

    monkeypatch.setattr(loss_scaling.process_state, "hardware", broken)
    with installing.installed(loss_scaling, config=AmpConfig(precision="float16")):
        for _ in range(2):
            model = make_model(keras)
            model.compile("sgd", "mse")
            model.fit(X, Y, verbose=0)
    assert not is_loss_scaled(model.optimizer)
    warnings = log("Model.compile: automatic loss scaling failed (OSError: no devices)")
    assert len(warnings) == 1
    assert "Wrap the optimizer in amp_tf.LossScaleOptimizer by hand" in warnings[0]


def test_whether_losses_are_scaled_follows_from_the_devices_of_this_process():
    on_cpu = not tf.config.list_physical_devices("GPU")
    for config, is_scaled in ((AmpConfig(), not on_cpu), (AmpConfig(precision="float16"), True)):
        with installed(config):
            assert loss_scaling.runs_in_float16() is is_scaled
    assert not loss_scaling.runs_in_float16()


@pytest.fixture
def nothing_scaled_yet(monkeypatch):
    monkeypatch.setattr(ledger, "_ledger", ledger._Ledger())


@pytest.mark.usefixtures("nothing_scaled_yet")
def test_the_line_at_exit_tells_two_optimizers_of_one_name_apart():
    with installed():
        for scale in (2.0, 4.0):
            optimizer = amp_tf.LossScaleOptimizer(keras.optimizers.SGD(name="sgd"), scale)
            weight = keras.Variable([1.0])
            optimizer.apply([optimizer.scale_loss(tf.constant([1.0]))], [weight])
    assert loss_scaling.describe() == (
        "sgd 1: loss scale 2^1, 0 of 1 steps skipped; sgd 2: loss scale 2^2, 0 of 1 steps skipped"
    )


@pytest.mark.usefixtures("nothing_scaled_yet")
@pytest.mark.parametrize("initial_scale", [1024.0, 3.0])
def test_the_scale_of_a_wrapper_that_the_program_put_on_itself_is_named(library, initial_scale):
    home = keras.optimizers if library is keras else library.mixed_precision
    with installed():
        optimizer = home.LossScaleOptimizer(
            library.optimizers.SGD(1e-3), initial_scale=initial_scale
        )
        model = make_model(library)
        model.compile(optimizer, "mse", jit_compile=False)
        assert loss_scaling.describe() == ""
        model.fit(X, Y, epochs=2, verbose=0)
        owner = "Keras'" if library is keras else "tf_keras'"
        name = f"{owner} {type(optimizer).__name__}"
        scale = ledger.format_scale(initial_scale)
        told = f"loss scale {scale} of {name}, which does not count skipped steps"
        assert loss_scaling.describe() == told
        del optimizer, model  # as at the end of a function
        gc.collect()
        assert loss_scaling.describe() == told
        assert ledger.curves() == []


MOST = 1.2  # times what stays without amp_tf; TensorFlow itself keeps the graph of a step for good
ROWS = np.random.RandomState(0).rand(8, 16).astype(np.float32)


def nodes_alive():
    """The nodes of all graphs of functions that are alive."""
    gc.collect()
    count = 0
    for each in gc.get_objects():
        if isinstance(each, FuncGraph):
            count += len(each.get_operations())
    return count


def nodes_that_stay(make, models):
    """Nodes of graphs for each model that are alive when the models are gone."""
    make()  # what is made once
    before = nodes_alive()
    for _ in range(models):
        make()
    return (nodes_alive() - before) / models


def fit(library, optimizer):
    model = library.Sequential([library.layers.Dense(8, "relu"), library.layers.Dense(1)])
    model.build((None, 16))
    module = library.optimizers.legacy if optimizer == "legacy" else library.optimizers
    model.compile(module.SGD(), "mse", jit_compile=False)
    model.fit(ROWS, ROWS[:, :1], verbose=0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("library", "optimizer"),
    [(keras, ""), (tf_keras, ""), (tf_keras, "legacy")],
    ids=["keras", "tf_keras", "legacy"],
)
def test_a_search_keeps_no_more_of_its_models_than_without_amp_tf(library, optimizer):
    make = functools.partial(fit, library, optimizer)
    without = nodes_that_stay(make, 1)
    with installed():
        assert nodes_that_stay(make, 2) <= MOST * without
