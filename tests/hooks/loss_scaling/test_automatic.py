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


def test_the_line_at_exit_tells_two_optimizers_of_one_name_apart():
    vars(ledger).update(_ledger=ledger._Ledger())
    with installed():
        for scale in (2.0, 4.0):
            optimizer, weight = (
                amp_tf.LossScaleOptimizer(keras.optimizers.SGD(name="sgd"), scale),
                keras.Variable([1.0]),
            )
            optimizer.apply([optimizer.scale_loss(tf.constant([1.0]))], [weight])
    assert loss_scaling.describe() == (
        "sgd 1: loss scale 2^1, 0 of 1 steps skipped; sgd 2: loss scale 2^2, 0 of 1 steps skipped"
    )


def test_a_program_that_wraps_its_optimizer_itself_is_left_alone(library):
    vars(ledger).update(_ledger=ledger._Ledger())
    home = keras.optimizers if library is keras else library.mixed_precision
    model = make_model(library)
    with installed():
        optimizer = home.LossScaleOptimizer(library.optimizers.SGD(1e-3))
        model.compile(optimizer, "mse", jit_compile=False)
        model.fit(X, Y, epochs=1, verbose=0)
        assert model.optimizer is optimizer
        assert loss_scaling.describe() == ""
        assert loss_scaling.CUSTOM_LOOP not in process_state.current().warned


MOST = 1.2  # times what stays without amp_tf; TensorFlow itself keeps the graph of a step for good
ROWS = np.random.RandomState(0).rand(8, 16).astype(np.float32)


def nodes_that_stay(make, count):
    """Nodes of graphs for each model that are alive when the models are gone."""

    def alive():
        gc.collect()
        return sum(
            len(each.get_operations()) for each in gc.get_objects() if isinstance(each, FuncGraph)
        )

    make()  # what is made once
    before = alive()
    for _ in range(count):
        make()
    return (alive() - before) / count


def fit(library, optimizer):
    model = library.Sequential([library.layers.Dense(8, "relu"), library.layers.Dense(1)])
    model.build((None, 16))
    module = library.optimizers.legacy if optimizer == "legacy" else library.optimizers
    model.compile(module.Adam(), "mse", jit_compile=False)
    model.fit(ROWS, ROWS[:, :1], verbose=0)


def loop(wrap):
    dense, optimizer = keras.layers.Dense(4), wrap(keras.optimizers.Adam())

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(dense(x) ** 2)
            loss = optimizer.scale_loss(loss) if hasattr(optimizer, "scale_loss") else loss
        optimizer.apply(tape.gradient(loss, dense.trainable_weights), dense.trainable_weights)

    step(tf.constant(ROWS))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("library", "optimizer"),
    [(keras, ""), (tf_keras, ""), (tf_keras, "legacy")],
    ids=["keras", "tf_keras", "legacy"],
)
def test_a_search_keeps_no_more_of_its_models_than_without_amp_tf(library, optimizer):
    make = functools.partial(fit, library, optimizer)
    without = nodes_that_stay(make, 3)
    with installed():
        assert nodes_that_stay(make, 4) <= MOST * without


def test_a_loop_with_a_wrapper_keeps_no_more_than_with_that_of_keras():
    theirs = nodes_that_stay(lambda: loop(keras.optimizers.LossScaleOptimizer), 3)
    assert nodes_that_stay(lambda: loop(amp_tf.LossScaleOptimizer), 3) <= MOST * theirs
