"""Automatic loss scaling of Keras 3 and tf_keras models: what ``compile`` wraps and leaves, what
``fit`` tells.
"""

import contextlib
import pickle
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import amp_tf
from amp_tf.callbacks import LossScaleMonitor
from amp_tf.config import Switches
from amp_tf.hooks import scope, state
from amp_tf.loss_scaling import is_loss_scaled
from tests import autograph, processes
from tests.hooks import installing, running
from tests.hooks.loss_scaling.setup import OTHER, X, Y, installed, is_ours, make_model
from tests.loss_scaling.steps import since_keras_3_1


@pytest.fixture(scope="module", autouse=True)
def tf_keras_alone():
    """``tests/loss_scaling/test_tf_keras.py`` trains with what AutoGraph makes of it."""
    with autograph.leaving_tf_keras_alone():
        yield


@pytest.mark.parametrize(
    ("make", "config"),
    [
        (lambda library: amp_tf.LossScaleOptimizer(library.optimizers.SGD()), {}),
        (lambda _: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()), {}),
        (lambda _: keras.optimizers.SGD(loss_scale_factor=4.0), {}),
        (lambda library: library.optimizers.SGD(), {"config": OTHER}),
    ],
    ids=["ours", "keras", "factor", "case 30: no graph runs in float16"],
)
def test_case_27_and_30_what_scales_already_or_need_not_is_left_alone(library, make, config):
    optimizer = make(library)
    if library is not keras and isinstance(optimizer, keras.optimizers.Optimizer):
        pytest.skip("of Keras 3 alone")
    with installed(**config):
        model = make_model(library)
        model.compile(optimizer, "mse")
    assert model.optimizer is optimizer


@pytest.mark.parametrize("train", ["fit", "train_on_batch"])
def test_a_model_that_was_compiled_before_amp_tf_was_on_is_scaled(library, train, log):
    made = {}
    for name in ("before", "after"):
        model = make_model(library)
        with installed() if name == "after" else contextlib.nullcontext():
            model.compile(library.optimizers.SGD(0.25, momentum=0.5), "mse")
        with installed():
            if train == "fit":
                model.fit(X, Y, batch_size=16, shuffle=False, verbose=0)
            else:
                model.train_on_batch(X, Y)
        assert is_ours(model.optimizer)
        made[name] = model
    status = made["before"].optimizer.status()
    assert status.steps > 0
    assert status == made["after"].optimizer.status()
    weights = zip(made["before"].get_weights(), made["after"].get_weights(), strict=True)
    for before, after in weights:
        np.testing.assert_array_equal(before, after)
    assert not log("without loss scaling")


@pytest.mark.parametrize("jit_compile", [False, True])
def test_a_training_step_that_was_made_before_amp_tf_was_on_is_made_anew(library, jit_compile, log):
    model = make_model(library)
    model.compile(library.optimizers.SGD(momentum=0.5), "mse", jit_compile=jit_compile)
    model.train_on_batch(X[:8], Y[:8])
    with installing.installed(scope), installed():
        model.fit(X, Y, batch_size=16, verbose=0)
        assert is_ours(model.optimizer)
        assert model.optimizer.status().steps == 2
    assert int(model.optimizer.iterations) == 3
    assert not log("without loss scaling")


def test_a_training_step_that_ran_in_bfloat16_is_made_anew_for_float16(library, log):
    model = make_model(library)
    with installing.installed(scope, config=amp_tf.AmpConfig(precision="bfloat16")):
        model.compile("sgd", "mse")
        model.fit(X, Y, batch_size=16, verbose=0)
    with installing.installed(scope), installed():
        model.fit(X, Y, batch_size=16, verbose=0)
        assert model.optimizer.status().steps == 2
    assert not log("without loss scaling")


def test_a_training_step_that_ran_with_loss_scaling_off_is_made_anew_with_it(library, log):
    model = make_model(library)
    with installing.installed(scope, config=amp_tf.AmpConfig(precision="float16")):
        state.note(switches=Switches(graph_rewrite=True))  # …_LOSS_SCALING=0
        model.compile("adam", "mse")
        model.fit(X, Y, batch_size=16, verbose=0)
    with installing.installed(scope), installed():
        model.fit(X, Y, batch_size=16, verbose=0)
        assert model.optimizer.status().steps == 2
    assert not log("without loss scaling")


def test_a_model_whose_program_refuses_a_loss_scale_is_trained_without_one(log):
    with installed():
        model = make_model(keras)
        model.compile("sgd", "mse", auto_scale_loss=False)
        model.fit(X, Y, verbose=0)
        assert not is_loss_scaled(model.optimizer)
        assert not log("without loss scaling")
        model.compile(model.optimizer, "mse")
        assert is_loss_scaled(model.optimizer)


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
        sys.path.append({str(running.ROOT)!r})
        from tests import autograph
        with autograph.leaving_tf_keras_alone():
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


def test_a_wrapper_that_no_user_wrote_shows_the_class_and_the_settings_of_the_optimizer(library):
    with installed():
        model = make_model(library)
        model.compile(library.optimizers.Adam(0.25, clipnorm=2.0), "mse")
        model.fit(X, Y, verbose=0)
    optimizer = model.optimizer
    assert is_ours(optimizer)
    assert isinstance(optimizer, library.optimizers.Adam)
    assert (type(optimizer).__name__, optimizer.__class__) == ("Adam", library.optimizers.Adam)
    config = optimizer.get_config()
    assert (config["learning_rate"], config["clipnorm"]) == (0.25, 2.0)
    assert type(type(optimizer).from_config(config)) is library.optimizers.Adam
    assert type(type(optimizer)(0.5)) is library.optimizers.Adam
    assert library.optimizers.serialize(optimizer)["class_name"] == "Adam"
    bare = make_model(library)
    bare.compile(library.optimizers.Adam(0.25, clipnorm=2.0), "mse")
    bare.fit(X, Y, verbose=0)
    assert summary_of(model) == summary_of(bare)  # counts the optimizer's parameters


def summary_of(model):
    lines = []
    model.summary(print_fn=lambda line, **_: lines.append(line.replace(model.name, "")))
    return "\n".join(lines).partition("Total params")[2]


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


def trained(library, optimizer, callbacks=(), **settings):
    model = make_model(library)
    model.compile(optimizer, "mse", **settings)
    model.fit(X, Y, epochs=2, verbose=0, shuffle=False, callbacks=list(callbacks))
    return model


@pytest.mark.parametrize("is_changed", [False, True])
def test_a_wrapped_optimizer_gives_the_same_weights_also_with_a_setting_that_a_callback_changes(
    library, is_changed
):
    class Slower(library.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if is_changed:
                self.model.optimizer.momentum = 0.1

    def train():
        optimizer = library.optimizers.SGD(0.0625, momentum=0.9)
        return trained(library, optimizer, [Slower()], run_eagerly=is_changed)

    with installed():
        wrapped = train()
    bare = train()
    assert is_ours(wrapped.optimizer)
    assert not is_loss_scaled(bare.optimizer)
    for actual, expected in zip(wrapped.get_weights(), bare.get_weights(), strict=True):
        np.testing.assert_array_equal(actual, expected)


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


def test_the_variables_of_an_optimizer_are_called_as_without_a_loss_scale(library):
    """Adafactor makes some itself, in the scope in which its first step builds it."""
    paths = []
    for scaling in (contextlib.nullcontext(), installed()):
        library.backend.clear_session()
        with scaling:
            model = make_model(library)
            model.compile(library.optimizers.Adafactor(0.01, name="factored"), "mse")
            model.fit(X, Y, verbose=0)
        optimizer = model.optimizer
        assert is_ours(optimizer) == (len(paths) == 1)
        if library is keras:
            paths.append([variable.path for variable in optimizer.variables])
        else:
            paths.append([variable.name for variable in optimizer.variables])
    assert paths[0] == paths[1]


@pytest.mark.parametrize("is_scaled_first", [True, False])
def test_a_checkpoint_holds_what_it_holds_in_float32(library, is_scaled_first, tmp_path):
    def make():
        model = make_model(library)
        model.compile(library.optimizers.Adam(0.25), "mse")
        model.optimizer.build(model.trainable_variables)
        return model

    def make_scaled():
        with installed():
            return make()

    makers = [make_scaled, make]
    if not is_scaled_first:
        makers.reverse()
    first, second = (maker() for maker in makers)
    first.fit(X, Y, verbose=0)
    path = tf.train.Checkpoint(model=first, optimizer=first.optimizer).write(str(tmp_path / "c"))
    restored = tf.train.Checkpoint(model=second, optimizer=second.optimizer).read(path)
    restored.assert_consumed()
    assert int(second.optimizer.iterations.numpy()) == int(first.optimizer.iterations.numpy()) > 0


class Trainer(tf.Module):
    """TFLite's tutorial on training on a device."""

    def __init__(self, library):
        self.model = make_model(library)
        self.model.compile(library.optimizers.SGD(0.25), "mse")
        self.optimizer = self.model.optimizer
        self.optimizer.build(self.model.trainable_variables)

    @tf.function(input_signature=[tf.TensorSpec([None, 4]), tf.TensorSpec([None, 1])])
    def train(self, x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self.model(x) - y) ** 2)
        variables = self.model.trainable_variables
        gradients = tape.gradient(loss, variables)
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss


def test_a_training_step_is_exported_and_goes_on(library, tmp_path):
    with installed():
        trainer = Trainer(library)
        losses = [float(trainer.train(X, Y)) for _ in range(2)]
        tf.saved_model.save(trainer, str(tmp_path / "exported"))
    assert is_ours(trainer.optimizer)
    exported = tf.saved_model.load(str(tmp_path / "exported"))
    assert float(exported.train(X, Y)) == float(trainer.train(X, Y)) < losses[-1]
    assert np.isnan(exported.train(X * np.nan, Y))
    assert float(exported.train(X, Y)) == float(trainer.train(X, Y))


def test_optimizers_that_no_training_step_scales_for_are_left_alone(log):
    def train(compiled, model=None):
        model = model or make_model(tf_keras)
        model.compile(compiled, "mse")
        model.fit(X, Y, verbose=0)
        return model.optimizer

    linear = tf_keras.experimental.LinearModel()
    deep = tf_keras.Sequential([tf_keras.layers.Dense(1)])
    with installed():
        wide = tf_keras.experimental.WideDeepModel(linear, deep)
        assert not any(map(is_ours, train(["sgd", "adam"], wide)))
        train(tf.compat.v1.train.GradientDescentOptimizer(0.01))
    assert log("automatic loss scaling failed") == []


@pytest.mark.parametrize("is_graph", [False, True])
def test_a_tf1_optimizer_trains_a_model_of_tf_keras_under_a_strategy(is_graph):
    """There tf_keras applies gradients in replicas, and initializes what it knows in a session."""
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    where = tf.Graph().as_default() if is_graph else contextlib.nullcontext()
    with where, installed(), strategy.scope():
        model = make_model(tf_keras)
        model.compile(tf.compat.v1.train.AdamOptimizer(0.01), "mse")
        assert np.isfinite(model.fit(X, Y, batch_size=2, verbose=0).history["loss"]).all()


@pytest.mark.parametrize("home", [tf_keras.optimizers, tf_keras.optimizers.legacy])
def test_one_optimizer_may_be_compiled_into_two_models(home, log):
    """As of a GAN: the generator's step trains it through the discriminator, which is fixed."""
    optimizer = home.SGD(0.0625)
    with installed():
        discriminator = make_model(tf_keras)
        discriminator.compile(optimizer, "mse")
        discriminator.train_on_batch(X, Y)
        discriminator.trainable = False
        x = tf_keras.layers.Input((4,))
        generator = tf_keras.Model(x, discriminator(tf_keras.layers.Dense(4)(x)))
        generator.compile(optimizer, "mse")
        assert all(map(is_loss_scaled, [discriminator.optimizer, generator.optimizer]))
        if home is tf_keras.optimizers.legacy:  # the others know the variables of one model
            generator.train_on_batch(X, Y)
            assert int(optimizer.iterations.numpy()) == 2
    assert log("automatic loss scaling failed") == []


@since_keras_3_1
def test_a_pickled_optimizer_comes_back_as_a_bare_one_does():
    with installed():
        model = make_model(keras)
        model.compile(keras.optimizers.Adam(0.25), "mse")
        model.fit(X, Y, verbose=0)
    again = pickle.loads(pickle.dumps(model.optimizer))
    assert type(again) is keras.optimizers.Adam
    assert not is_loss_scaled(again)
    assert again.get_config() == model.optimizer.get_config()
