"""Automatic loss scaling of Keras 3 and tf_keras models: what ``compile`` wraps and leaves, what
``fit`` tells.
"""

import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import amp_tf
from amp_tf.callbacks import LossScaleMonitor
from amp_tf.loss_scaling import is_loss_scaled
from tests import processes
from tests.hooks.loss_scaling.setup import OTHER, X, Y, installed, is_ours, make_model


@pytest.mark.parametrize(
    ("make", "config", "compiled"),
    [
        (lambda library: amp_tf.LossScaleOptimizer(library.optimizers.SGD()), {}, {}),
        (lambda _: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()), {}, {}),
        (lambda _: keras.optimizers.SGD(loss_scale_factor=4.0), {}, {}),
        (lambda _: keras.optimizers.SGD(), {}, {"auto_scale_loss": False}),
        (lambda library: library.optimizers.SGD(), {"config": OTHER}, {}),
    ],
    ids=["ours", "keras", "factor", "compile says no", "case 30: no graph runs in float16"],
)
def test_case_27_and_30_what_scales_already_or_need_not_is_left_alone(
    library, make, config, compiled
):
    optimizer = make(library)
    if library is not keras and isinstance(optimizer, keras.optimizers.Optimizer):
        pytest.skip("of Keras 3 alone")
    with installed(**config):
        model = make_model(library)
        model.compile(optimizer, "mse", **compiled)
    assert model.optimizer is optimizer


def test_keras_own_wrapping_under_its_policy_is_left_alone(library):
    library.mixed_precision.set_global_policy("mixed_float16")
    try:
        with installed():
            model = make_model(library)
            model.compile(library.optimizers.SGD(), "mse")
    finally:
        library.mixed_precision.set_global_policy("float32")
    assert is_loss_scaled(model.optimizer)
    assert not is_ours(model.optimizer)


def test_compiling_twice_with_one_optimizer_works(library):
    optimizer = library.optimizers.SGD(0.0625)
    with installed():
        model = make_model(library)
        for _ in range(2):
            model.compile(optimizer, "mse")
            model.fit(X, Y, verbose=0)
    assert int(optimizer.iterations.numpy()) == 2


@pytest.mark.parametrize(
    ("name", "file"), [("keras", "m.keras"), ("tf_keras", "m.h5"), ("tf_keras", "folder")]
)
def test_a_model_that_was_compiled_again_with_its_own_optimizer_loads_without_amp_tf(
    name, file, tmp_path
):
    library = {"keras": keras, "tf_keras": tf_keras}[name]
    path = str(tmp_path / file)
    loss = library.losses.MeanSquaredError()  # Keras' .h5 files do not load with a loss by name
    with installed():
        model = make_model(library)
        model.compile(library.optimizers.Adam(0.25), loss)
        model.fit(X, Y, verbose=0)
        wrapper = model.optimizer
        model.compile(model.optimizer, loss)
        assert model.optimizer is wrapper
        model.fit(X, Y, verbose=0)
        model.optimizer.loss_scale = 64.0
        model.save(path)
        value = model.evaluate(X, Y, verbose=0)
        if name == "keras":  # tf_keras' files have no state of the wrapper
            assert library.models.load_model(path).optimizer.status().scale == 64.0
    code = f"""if True:
        import sys, numpy as np, {name} as library
        x = np.random.RandomState(0).randn(32, 4).astype("float32")
        model = library.models.load_model({path!r})
        assert "amp_tf" not in sys.modules
        print(type(model.optimizer).__name__, float(model.optimizer.learning_rate.numpy()))
        print(model.evaluate(x, x.sum(1, keepdims=True), verbose=0))
    """
    ended = processes.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    assert ended.returncode == 0, ended.stderr
    optimizer, rate, again = ended.stdout.split()
    assert (optimizer, float(rate)) == ("Adam", 0.25)
    assert float(again) == pytest.approx(value, rel=1e-5)  # the same sums in another process


def test_a_wrapper_that_the_user_wrote_stays_in_the_files(library, tmp_path):
    with installed():
        model = make_model(library)
        model.compile(
            amp_tf.LossScaleOptimizer(library.optimizers.SGD(0.25), 64.0),
            library.losses.MeanSquaredError(),
        )
        model.save(tmp_path / "m.h5")
        again = library.models.load_model(tmp_path / "m.h5")
    assert is_ours(again.optimizer)
    assert again.optimizer.status().scale == 64.0


def test_the_history_of_an_unchanged_program_is_what_it_was_until_it_asks_for_the_scale(library):
    with installed():
        model = make_model(library)
        model.compile("sgd", "mse")
        assert set(model.fit(X, Y, epochs=2, verbose=0).history) == {"loss"}
        history = model.fit(X, Y, epochs=2, verbose=0, callbacks=[LossScaleMonitor()]).history
    assert history["loss_scale"] == [2.0**15, 2.0**15]
    assert history["skipped_steps"] == [0.0, 0.0]


def test_a_monitor_that_the_user_gives_is_the_only_one():
    with installed():
        model = make_model(keras)
        model.compile("sgd", "mse")
        mine = LossScaleMonitor()
        callbacks = keras.callbacks.CallbackList([mine], add_history=True, model=model)
        model.fit(X, Y, verbose=0, callbacks=callbacks)
        assert sum(isinstance(c, LossScaleMonitor) for c in callbacks.callbacks) == 1
        given = model.fit(X, Y, verbose=0, callbacks=[mine]).history
    assert given["skipped_steps"] == [0.0]


def trains_as_without_us(library, make_optimizer, callbacks=(), **compiled):
    def train():
        model = make_model(library)
        model.compile(make_optimizer(), "mse", **compiled)
        assert is_loss_scaled(model.optimizer) is is_on
        model.fit(
            X, Y, epochs=2, verbose=0, shuffle=False, callbacks=[make() for make in callbacks]
        )
        return model.get_weights()

    is_on = True
    with installed():
        wrapped = train()
    is_on = False
    for actual, expected in zip(wrapped, train(), strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_compile_wraps_and_a_bare_optimizer_gives_the_same_weights(library):
    trains_as_without_us(library, lambda: library.optimizers.SGD(0.0625))


def test_a_setting_that_a_callback_changes_reaches_the_optimizer(library):
    class Slower(library.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.model.optimizer.momentum = 0.1

    trains_as_without_us(
        library, lambda: library.optimizers.SGD(0.0625, momentum=0.9), [Slower], run_eagerly=True
    )


def test_fit_may_be_wrapped_by_a_function_that_names_no_arguments(library, monkeypatch):
    original = library.Model.fit
    monkeypatch.setattr(
        library.Model, "fit", lambda self, *args, **kwargs: original(self, *args, **kwargs)
    )
    with installed():
        model = make_model(library)
        model.compile("sgd", "mse")
        assert set(model.fit(X, Y, None, 2, 0, [LossScaleMonitor()]).history) >= {
            "loss",
            "loss_scale",
        }


@pytest.mark.parametrize("jit_compile", [False, True])
def test_a_norm_that_the_users_optimizer_stores_may_be_logged_by_a_train_step(library, jit_compile):
    class Storing(library.optimizers.Adam):
        def apply_gradients(self, grads_and_vars, **kwargs):
            pairs = list(grads_and_vars)
            self.norm = tf.linalg.global_norm([gradient for gradient, _ in pairs])
            return super().apply_gradients(pairs, **kwargs)

    class Logging(library.Model):
        def train_step(self, data):
            return {**super().train_step(data), "norm": self.optimizer.norm}

        def fit(self, *args, **kwargs):
            return super().fit(*args, **kwargs).history["norm"]

    def norms():
        model = make_model(library, Logging)
        model.compile(Storing(0.01), "mse", jit_compile=jit_compile)
        return model.fit(X, Y, batch_size=8, epochs=3, verbose=0, shuffle=False)

    with installed():
        logged = norms()
    np.testing.assert_allclose(logged, norms(), rtol=1e-4)
