"""Case 34 and K12: callbacks show the scale, skips are told, and a stuck training says why."""

import csv
import re
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

import amp_tf
from amp_tf.callbacks import LossScaleMonitor
from amp_tf.errors import ConfigError
from amp_tf.hooks import loss_scaling
from amp_tf.loss_scaling import ledger
from amp_tf.loss_scaling.ledger import LossScaleError

pytestmark = pytest.mark.slow
X = np.random.RandomState(0).randn(80, 4).astype("float32")
Y = X.sum(1, keepdims=True)


def make_model(library):
    # tf_keras' own does not work on Python 3.12 up to 2.18; this seeds the same.
    keras.utils.set_random_seed(0)
    x = library.layers.Input((4,))
    hidden = library.layers.Dense(8, activation="tanh", name="hidden")(x)
    y = library.layers.Dense(1, name="out")(hidden)
    model = library.Model(x, y)
    model.compile(amp_tf.LossScaleOptimizer(library.optimizers.SGD(0.01)), "mse")
    return model


def poisoned(batches):
    x = X.copy()
    for batch in batches:
        x[batch * 8] = np.nan
    return x


def test_case_34_history_csv_and_the_progress_bar_show_scale_and_skipped_steps(
    library, tmp_path, capsys
):
    model = make_model(library)
    callbacks = [LossScaleMonitor(every=1), library.callbacks.CSVLogger(tmp_path / "log.csv")]
    given = {"batch_size": 8, "epochs": 2, "verbose": 1, "shuffle": False}
    history = model.fit(poisoned([1, 5]), Y, callbacks=callbacks, **given)
    assert history.history["loss_scale"] == [2.0**13, 2.0**11]
    assert history.history["skipped_steps"] == [2.0, 4.0]
    rows = list(csv.DictReader((tmp_path / "log.csv").open()))
    assert [float(row["loss_scale"]) for row in rows] == [2.0**13, 2.0**11]
    first_epoch = capsys.readouterr().out.partition("Epoch 2/2")[0].split("10/10")[-1]
    shown = dict(re.findall(r"(\w+): ([\d.e+]+)", first_epoch))
    # tf_keras shows the mean over the epoch of everything that is no metric of the model.
    scale, skipped = (2.0**13, 2.0) if library is keras else (13405.0909, 1.4545)
    assert float(shown["loss_scale"]) == pytest.approx(scale)
    assert float(shown["skipped_steps"]) == pytest.approx(skipped)


def test_skips_are_logged_but_not_more_often_than_the_limit_allows(log, monkeypatch):
    clock = types.SimpleNamespace(now=1000.0)
    seconds = types.SimpleNamespace(monotonic=lambda: clock.now)
    monkeypatch.setattr("amp_tf.callbacks.time", seconds)
    monitor = LossScaleMonitor(every=1, max_skips=50)
    optimizer = amp_tf.LossScaleOptimizer(keras.optimizers.SGD(0.1))
    weight = keras.Variable([1.0])
    optimizer.build([weight])
    optimizer.scale_loss(0.0)
    monitor.look(optimizer)
    for second in range(41):
        clock.now = 1000.0 + second
        is_bad = second < 5 or second == 30
        optimizer.apply([tf.constant([np.nan if is_bad else 1.0])], [weight])
        monitor.look(optimizer)
    # At 0, what happened until 20, and what happened until 40.
    first, second, third = log(f"amp_tf: {optimizer.name}: skipped")
    assert "skipped 1 step (1 of 1 so far): the scaled gradients overflow float16; loss" in first
    assert "skipped 4 steps (5 of 21 so far)" in second
    assert second.endswith("loss scale 2^14 -> 2^-8")  # by way of 2^-24
    assert third.endswith("loss scale 2^-8 -> 2^0")


def test_the_line_on_a_skip_tells_its_cause_also_when_good_steps_came_after_it(library, log):
    x = poisoned([1])
    model = make_model(library)
    model.fit(x, Y, batch_size=8, verbose=0, shuffle=False, callbacks=[LossScaleMonitor(every=10)])
    (line,) = log(f"amp_tf: {model.name}: skipped")
    assert (
        "skipped 1 step (1 of 10 so far): the input data or the labels hold NaN or infinities"
        in line
    )


def test_k12_infinite_labels_end_training_and_are_told_from_an_overflow(library):
    model = make_model(library)
    monitor = LossScaleMonitor(max_skips=20)
    with pytest.raises(LossScaleError) as error:
        model.fit(X, Y * np.inf, batch_size=8, epochs=20, verbose=0, callbacks=[monitor])
    text = str(error.value)
    assert text.startswith(f"{model.name}: 20 steps in a row were skipped")
    assert "the input data or the labels hold NaN or infinities, so no loss scale can help" in text
    assert "Check the input data" in text
    assert "hidden/kernel" in text
    assert model.optimizer.status().steps == 20


def test_action_log_lets_training_go_on_and_complains_once(library, log):
    model = make_model(library)
    monitor = LossScaleMonitor(max_skips=3, action="log", every=1)
    model.fit(X * np.nan, Y, batch_size=8, verbose=0, callbacks=[monitor])
    assert len(log("steps in a row were skipped")) == 1
    assert model.optimizer.status().steps == 10


@pytest.mark.parametrize("has_status", [False, True])
def test_a_model_without_loss_scale_trains_as_ever(library, has_status):
    class Tracked(library.optimizers.SGD):
        def status(self):
            return "fine"

    model = make_model(library)
    model.compile(Tracked(0.01) if has_status else "sgd", "mse")
    monitor = LossScaleMonitor(every=1)
    fitted = model.fit(X, Y, verbose=0, callbacks=[monitor], validation_data=(X, Y))
    assert "loss_scale" not in fitted.history
    model.predict(X, verbose=0, callbacks=[LossScaleMonitor()])
    assert LossScaleMonitor().look(model.optimizer) is None


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (
            {"action": "ignore"},
            "LossScaleMonitor.action: 'ignore' is not a valid value. Valid values: raise, log.",
        ),
        (
            {"max_skips": 0},
            "LossScaleMonitor.max_skips: 0 is not a valid value. Valid values: integers from 1.",
        ),
        (
            {"every": 0},
            "LossScaleMonitor.every: 0 is not a valid value. Valid values: integers from 1.",
        ),
    ],
)
def test_a_bad_setting_is_refused(settings, text):
    with pytest.raises(ConfigError) as error:
        LossScaleMonitor(**settings)
    assert str(error.value) == text


def test_a_count_may_be_a_number_of_numpy():
    assert LossScaleMonitor(every=np.int64(5), max_skips=np.int32(7)).every == 5


@pytest.fixture
def nothing_scaled_yet(monkeypatch):
    """Other tests of this process trained models and ran sessions; the line at exit tells of all of
    them.
    """
    monkeypatch.setattr(ledger, "_ledger", ledger._Ledger())


def test_the_line_at_exit_tells_of_the_last_models_only_and_names_them(nothing_scaled_yet):
    scalers = [amp_tf.LossScaler(2.0**n, name=f"loop_{n}") for n in range(7)]
    for scaler in scalers:
        scaler.scale(1.0)
        scaler.step(list, scaler.unscale([tf.constant(1.0)]))
    unused = amp_tf.LossScaler(name="unused")
    unused.scale(1.0)  # no step followed
    LossScaleMonitor().look(scalers[0])
    del scalers, scaler, unused  # a program's function has mostly returned by then
    assert loss_scaling.describe() == (
        "loop_5: loss scale 2^5, 0 of 1 steps skipped; loop_6: loss scale 2^6, 0 of 1 steps "
        "skipped; "
        "loop_0: loss scale 2^0, 0 of 1 steps skipped; 4 more models"
    )


class ScalesNothing(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x) - y) ** 2)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


@pytest.fixture
def scaling_nothing(nothing_scaled_yet):
    x = keras.layers.Input((4,))
    model = ScalesNothing(x, keras.layers.Dense(1)(x))
    model.compile(amp_tf.LossScaleOptimizer(keras.optimizers.SGD(0.01)))
    return model


def test_where_no_loss_is_scaled_no_figures_of_a_scale_are_shown(scaling_nothing):
    model = scaling_nothing
    history = model.fit(X, Y, verbose=0, callbacks=[LossScaleMonitor(every=1)]).history
    assert set(history) == {"loss"}
    assert "loss scale" not in loss_scaling.describe()


def test_where_no_loss_is_scaled_the_skipped_steps_are_told_all_the_same(scaling_nothing, log):
    model = scaling_nothing
    monitor = LossScaleMonitor(every=1, action="log")
    history = model.fit(X, Y * np.nan, verbose=0, epochs=10, callbacks=[monitor]).history
    assert set(history) == {"loss"}
    steps = model.optimizer.status().steps
    assert f"{steps} of {steps} steps skipped" in loss_scaling.describe()
    assert log("and the loss was never scaled; loss scale")
    (trouble,) = log("steps in a row were skipped")
    assert "scale the loss with optimizer.scale_loss" in trouble


@pytest.mark.usefixtures("nothing_scaled_yet")
def test_the_models_of_one_program_are_told_apart_also_where_one_got_the_place_of_another_in_memory(
    library,
):
    for name, batch in (("first", 16), ("second", 8)):
        x = library.layers.Input((4,))
        model = library.Model(x, library.layers.Dense(1)(x), name=name)
        model.compile(amp_tf.LossScaleOptimizer(library.optimizers.SGD(0.01)), "mse")
        monitor = LossScaleMonitor(in_logs=False)
        model.fit(X, Y, batch_size=batch, verbose=0, callbacks=[monitor])
        del model
    told = loss_scaling.describe()
    assert "first: loss scale 2^15, 0 of 5 steps skipped; second: loss scale 2^15, 0 of 10" in told
