"""The watchdog: its guard, steps that are done again, and the lock file that it writes."""

import dataclasses
import math

import keras
import numpy as np
import pytest
import tensorflow as tf

import amp_tf
from amp_tf import config, lock
from amp_tf.config import AmpConfig
from amp_tf.hooks import summary, switch
from amp_tf.hooks.switch import EVERYTHING
from amp_tf.lock import Decision, Layer
from amp_tf.tools.watchdog import reverts
from amp_tf.tools.watchdog.watched import HOLD, NO_LIMIT, Guard, LossBand, StepObservation
from tests.hooks import running


def test_a_band_has_no_limit_at_first_and_then_one_that_jumps_exceed():
    band = LossBand()
    for step in range(16):
        assert band.limit == NO_LIMIT
        band.note(1.0 + 0.1 * (step % 2))
    assert band.limit == pytest.approx(1.1 + 8 * 0.1 + 1.1)
    assert not band.note(math.nan)
    band.widen(10.0)
    assert band.limit > 10.0


def test_a_guard_skips_nan_and_what_is_above_its_limit_and_says_what_it_saw():
    guard = Guard()

    def judge(value, *, nonfinite=False):
        return bool(guard(tf.constant(value), tf.constant(nonfinite)).numpy())

    assert not judge(3.0)
    assert StepObservation.of(guard.seen) == (3.0, False)
    assert judge(3.0, nonfinite=True)
    assert StepObservation.of(guard.seen).is_nonfinite
    assert judge(math.nan)
    assert judge(math.inf)
    guard.limit.assign(2.0)
    assert judge(3.0)
    assert not judge(2.0)
    guard.limit.assign(HOLD)
    assert judge(0.0)


class Weak(keras.layers.Layer):
    """Overflows in float16 where the last feature is large."""

    def build(self, shape):
        self.dense = keras.layers.Dense(4, name="inner")
        self.dense.build((None, shape[-1] - 1))

    def call(self, x):
        return self.dense(x[:, :-1] * x[:, -1:]) / x[:, -1:]


class Pair(keras.layers.Layer):
    """Two of them."""

    def build(self, shape):
        self.parts = [Weak(name="weak_a"), Weak(name="weak_b")]

    def call(self, x):
        return keras.ops.concatenate([part(x) for part in self.parts], -1)


class Sloped(keras.layers.Layer):
    """Its gradient is as many times as large inside as the last feature is, once or more often."""

    times = 1

    def build(self, shape):
        self.dense = keras.layers.Dense(4)
        self.dense.build((None, shape[-1] - 1))

    def call(self, x):
        gain = x[:, -1:]
        hidden = self.dense(x[:, :-1])
        for _ in range(self.times):
            hidden = hidden / gain
        for _ in range(self.times):
            hidden = hidden * gain
        return hidden


@pytest.fixture(autouse=True)
def begin_anew():
    reverts.counts = reverts.Counts()
    yield
    reverts.end()
    reverts.counts = reverts.Counts()


def train(path, weak=None, *, at=4, large=1e5, scale=2.0**6, **settings):
    """Trains six batches, one of which overflows in float16; the model has its history and the line at exit."""
    keras.utils.set_random_seed(0)
    x = np.random.default_rng(0).normal(size=(48, 4)).astype("float32")
    x[:, -1] = 1.0
    x[8 * (at - 1) + 6, -1] = large
    config = AmpConfig(precision="float16", force_f16=("weak",), ignore_performance=True, watchdog=True, lock=str(path))
    with amp_tf.enable(dataclasses.replace(config, **settings.pop("config", {}))):
        layers = [keras.Input((4,)), weak or Weak(name="weak"), keras.layers.Dense(1, name="out")]
        model = keras.Sequential(layers, name="net")
        optimizer = amp_tf.LossScaleOptimizer(keras.optimizers.SGD(1e-3), scale)
        model.compile(optimizer, "mse", metrics=["mae"], jit_compile=False)
        model.fit(x, x[:, :1], batch_size=8, shuffle=False, verbose=0, **settings)
        model.line = summary.line()
    return model


def said(caplog):
    """The lines of the watchdog."""
    found = (record.getMessage().partition("amp_tf: watchdog: ")[2] for record in caplog.records)
    return [line for line in found if line]


def made(model):
    """The steps that the optimizer made."""
    return int(model.optimizer.iterations.numpy())


@pytest.mark.parametrize("at", [1, 4])
def test_a_step_is_done_again_and_counts_once(at, tmp_path, caplog):
    """In metrics, too, of which the first step of a model is the first."""
    model = train(tmp_path / "a.lock", at=at)
    truth = train(
        tmp_path / "b.lock", at=at, config={"keep_float32": ("",), "force_f16": (), "watchdog": False, "lock": None}
    )
    assert made(model) == 6
    assert (reverts.counts.watched, reverts.counts.reverts, reverts.counts.lost) == (6, 1, 0)
    for name in ("loss", "mae"):
        assert model.history.history[name] == pytest.approx(truth.history.history[name], rel=1e-3)
    (line,) = said(caplog)
    assert line.startswith(f"batch {at}: net_1/weak_1 in float32 from now on (overflow at net_1/weak_1/")
    assert "the step was done again, loss" in line
    assert line.endswith(f"it is in {tmp_path}/a.lock")
    assert "0 of 6 steps skipped" in model.line
    assert [one.name for one in lock.read(str(tmp_path / "a.lock")).decisions] == ["net_1/weak_1"]


@pytest.mark.slow
def test_each_revert_has_a_line(tmp_path, caplog):
    model = train(tmp_path / "a.lock", Pair(name="weak"))
    assert made(model) == 6
    lines = said(caplog)
    assert len(lines) == reverts.counts.reverts > 1
    assert all("the step went wrong again; it is in" in line for line in lines[:-1])
    assert "the step was done again, loss" in lines[-1]
    assert f"watchdog: {len(lines)} reverts, in {tmp_path}/a.lock" in model.line


class Steep(Sloped):
    times = 2


#: The layer, the batch and its largest value, the loss scale at first and at most at last, and the reverts.
LOSS_SCALES = {
    "it has to fall as well": (Weak, 1, 1e5, 2.0**16, 2.0**14, 1),
    "a lower one makes gradients finite": (Sloped, 4, 3e4, 2.0**6, 2.0**5, 0),
    "at any one gradients overflow": (Steep, 4, 2e3, 2.0**6, 2.0**6, 1),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", LOSS_SCALES)
def test_what_a_loss_scale_mends_is_left_to_it_and_the_rest_reverted(case, tmp_path, caplog):
    layer, at, large, first, last, reverted = LOSS_SCALES[case]
    model = train(tmp_path / "a.lock", layer(name="weak"), at=at, large=large, scale=first)
    status = model.optimizer.status()
    assert status.steps == made(model) + status.skipped == 6
    assert (status.skipped == 0) is (first == last)
    assert status.scale <= last
    assert (reverts.counts.watched, reverts.counts.reverts, reverts.counts.lost) == (6, reverted, 0)
    assert len(said(caplog)) == reverted


def test_a_lock_file_in_a_folder_that_is_missing_costs_no_step(tmp_path, caplog):
    path, why = tmp_path / "nosuch" / "a.lock", "No such file or directory"
    model = train(path)
    assert made(model) == 6
    assert (reverts.counts.watched, reverts.counts.reverts, reverts.counts.lost) == (6, 1, 0)
    assert said(caplog)[0] == (
        f"{path} cannot be written ({why}), so what is reverted is kept in memory alone. The next run begins without "
        "it; name another file by AMP_TF_LOCK."
    )
    assert said(caplog)[1].endswith("it is kept in memory alone")
    assert f"watchdog: 1 revert, kept in memory alone, because {path} cannot be written ({why})" in model.line


@pytest.mark.parametrize("others", [["net/other"], []])
def test_a_lock_file_that_is_changed_or_damaged_meanwhile_costs_no_step_and_keeps_what_others_wrote(others, tmp_path):
    path = tmp_path / "a.lock"
    text = lock.Lock(tuple(Decision(Layer(name)) for name in others)).to_text() if others else "{"
    change = keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda batch, logs: batch == 1 and path.write_text(text)
    )
    model = train(path, callbacks=[change])
    assert {one.name for one in lock.read(str(path)).decisions} == {"net_1/weak_1", *others}
    assert made(model) == 6
    assert (reverts.counts.reverts, reverts.counts.lost) == (1, 0)
    assert "watchdog: 1 revert" in model.line


def test_a_lock_file_that_is_damaged_without_the_watchdog_is_told_at_exit(tmp_path):
    path = tmp_path / "a.lock"
    path.write_text(lock.NO_LOCK.to_text())
    with amp_tf.enable(lock=str(path)):
        path.write_text("{")
        line = summary.line()
        assert f"lock file: {path} changed after it was read first: it is not a lock file of amp_tf" in line
        assert "Write it with" not in line


def test_the_lock_file_of_an_earlier_run_is_mentioned(tmp_path, monkeypatch, caplog):
    path = tmp_path / "amp_tf.watchdog.lock"
    path.write_text(lock.Lock(tuple(Decision(Layer(name), why="overflow") for name in ("net/a", "net/b"))).to_text())
    monkeypatch.setattr(config, "_watchdogs_lock", lambda: str(path))
    for own in (None, None, str(path)):
        with amp_tf.enable(watchdog=True, lock=own):
            pass
    assert said(caplog) == [
        f"{path} is read, the lock file of an earlier run: net/a, net/b in float32 from the beginning. Delete it to "
        "start over."
    ]


def fail(*_, **__):
    raise RuntimeError("no such luck")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("MOST", 0, "batch 4 was left out, which float32 would have made: 0 reverts did not help"),
        ("find_fault", fail, "watchdog: it failed at a step that was skipped (RuntimeError: no such luck)"),
    ],
)
def test_beyond_the_limit_or_where_the_watchdog_fails_training_goes_on_and_the_step_is_lost(
    name, value, told, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(reverts, name, value)
    model = train(tmp_path / "a.lock")
    assert made(model) == 5
    assert (reverts.counts.reverts, reverts.counts.lost) == (0, 1)
    assert told in caplog.text
    assert "watchdog: 1 step lost" in model.line
    assert not (tmp_path / "a.lock").exists()


@pytest.mark.slow
def test_where_the_comparison_fails_all_layers_of_the_step_and_no_others_are_reverted(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(reverts, "compare", fail)
    train(tmp_path / "before.lock", Pair(name="weak"), at=1)  # whose layers are no layers of the next model
    reverts.counts = reverts.Counts()
    model = train(tmp_path / "a.lock")
    assert made(model) == 6
    assert reverts.counts.reverts == 1
    names = {one.name for one in lock.read(str(tmp_path / "a.lock")).decisions}
    assert names == {"net_1/weak_1", "net_1/weak_1/inner_1", "net_1/out_1", "compile_loss/mse"}


def test_settings_without_it_take_it_off(monkeypatch):
    monkeypatch.setattr(switch, "HOOKS", [hook for hook in switch.HOOKS if not hook.is_wanted(AmpConfig())])
    owner = next(base for base in keras.Model.__mro__ if "make_train_function" in vars(base))
    before = vars(owner)["make_train_function"]
    switch.install_hooks("keras", AmpConfig(watchdog=True), EVERYTHING)
    assert vars(owner)["make_train_function"] is not before
    switch.install_hooks("keras", AmpConfig(), EVERYTHING)
    assert vars(owner)["make_train_function"] is before


PROGRAM = str(running.PROGRAMS / "watched_fit.py")
ON = {running.SWITCH: "1", "AMP_TF_WATCHDOG": "1", "AMP_TF_FORCE_F16": "weak"}


@pytest.mark.parametrize("library", ["keras", pytest.param("tf_keras", marks=pytest.mark.slow)])
def test_a_step_with_an_overflow_is_done_again_and_nan_in_the_data_is_bad_data(library, tmp_path):
    pytest.importorskip(library)
    ended = running.run([PROGRAM, library], tmp_path, ON | {"AMP_TF_PRECISION": "float16"})
    assert 0 < ended.result["weights"] < 1000  # no nan in the statistics either
    again, bad = [line for line in ended.warnings if "watchdog: batch" in line]
    assert "batch 5: " in again
    assert "overflow at " in again
    assert "the step was done again" in again
    assert "batch 8: " in bad
    assert "its x holds nan or inf" in bad
    decisions = lock.read(str(tmp_path / "amp_tf.watchdog.lock")).decisions
    assert [one.name.split("/")[-1][:4] for one in decisions] == ["weak"]
    assert "1 revert, in " in ended.err


@pytest.mark.slow
def test_bfloat16_has_a_guard_and_reads_its_own_lock_file(tmp_path):
    (tmp_path / "amp_tf.watchdog.lock").write_text(lock.NO_LOCK.to_text())
    ended = running.run([PROGRAM, "keras"], tmp_path, ON | {"AMP_TF_PRECISION": "bfloat16"})
    assert 0 < ended.result["weights"] < 1000
    assert "batch 8: not finite in float32 either" in ended.err
    assert "1 batch of bad data" in ended.summary[6]
    assert "loss scale" not in ended.summary[6]


@pytest.mark.slow
def test_what_is_not_watched_is_told(tmp_path):
    ended = running.run([str(running.PROGRAMS / "custom_loop.py")], tmp_path, running.switched_on() | ON)
    assert "watchdog: nothing was watched, because only fit and train_on_batch of Keras and tf_keras are" in ended.err
