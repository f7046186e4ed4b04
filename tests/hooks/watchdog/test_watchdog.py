"""The parts of the watchdog, in this process."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import amp_tf
from amp_tf.config import AmpConfig
from amp_tf.hooks.watchdog import batches, fit, reverts
from amp_tf.hooks.watchdog.band import LossBand
from amp_tf.hooks.watchdog.faults import Fault, together
from amp_tf.lock import Decision, Layer
from amp_tf.loss_scaling.guard import HOLD, NO_LIMIT, Guard
from amp_tf.loss_scaling.replicas import Nonfinite


def decision(path: str) -> Decision:
    return Decision(Layer(path, "MatMul"), why="overflow")


def test_a_band_has_no_limit_at_first_and_then_one_that_jumps_exceed() -> None:
    band = LossBand(NO_LIMIT)
    for step in range(16):
        assert band.limit == NO_LIMIT
        band.note(1.0 + 0.1 * (step % 2))
    assert band.limit == pytest.approx(1.1 + 8 * 0.1 + 1.1)
    assert not band.note(math.nan)
    band.widen(10.0)
    assert band.limit > 10.0


def test_a_guard_skips_nan_and_what_is_above_its_limit_and_says_what_it_saw() -> None:
    guard = Guard()

    def judge(value: float, *, nonfinite: bool = False) -> bool:
        found = Nonfinite(tf.constant([False, nonfinite]), tf.constant(False), tf.constant(value))
        return bool(guard.judge(found, tf.constant(8.0)).numpy())

    assert not judge(3.0)
    assert Guard.read(guard.seen) == (3.0, False, 8.0)
    assert judge(3.0, nonfinite=True)
    assert Guard.read(guard.seen).is_nonfinite
    assert judge(math.nan)
    assert judge(math.inf)
    guard.limit.assign(2.0)
    assert judge(3.0)
    assert not judge(2.0)
    guard.limit.assign(HOLD)
    assert judge(0.0)


def test_data_that_is_not_finite_is_named() -> None:
    x, bad = np.ones(3, "float32"), np.array([1.0, np.nan], "float32")
    assert batches.find_nonfinite([(x, {"a": x})]) == ""
    assert batches.find_nonfinite([(x, {"a": bad}), (tf.constant(bad), x)]) == "y and x"
    assert batches.find_nonfinite([(np.array(["text"]), np.array([1]))]) == ""


def test_faults_of_workers_become_one_for_all() -> None:
    mine, other = Fault((decision("net/b"),), "b overflows"), Fault((decision("net/a"), decision("net/b")), "a does")
    faults = [Fault.of_plain(one.to_plain()) for one in (mine, Fault(why="nothing found"), other)]
    assert [one.name for one in together(faults).decisions] == ["net/a", "net/b"]
    assert together(faults).why == "b overflows; a does"


def test_a_revert_joins_the_lock_file_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    config = AmpConfig(precision="float16", watchdog=True, lock=str(path), ignore_performance=True)
    reverts.counts.reset()
    assert config.read_lock().decisions == ()
    for name in ("net/a", "net/b", "net/a"):
        reverts.revert(Fault((decision(name),), "overflow"), config)
    assert [one.name for one in config.read_lock().decisions] == ["net/a", "net/b"]
    assert config.read_lock().made["precision"] == "float16"
    assert reverts.describe().startswith(f"watchdog: 3 reverts, in {path}")
    reverts.counts.reset()


class Weak(keras.layers.Layer):
    """Overflows in float16 where the last feature is large."""

    def build(self, shape: Any) -> None:
        self.dense = keras.layers.Dense(4)
        self.dense.build((None, shape[-1] - 1))

    def call(self, x: Any) -> Any:
        return self.dense(x[:, :-1] * x[:, -1:]) / x[:, -1:]


def train(tmp_path: Path) -> Any:
    """Trains six batches, the fourth of which overflows in float16."""
    reverts.counts.reset()
    keras.utils.set_random_seed(0)
    x = np.random.default_rng(0).normal(size=(48, 4)).astype("float32")
    x[:, -1] = 1.0
    x[30, -1] = 1e5
    y = x[:, :1].copy()
    config = AmpConfig(
        precision="float16",
        force_f16=("weak",),
        ignore_performance=True,
        watchdog=True,
        lock=str(tmp_path / "a.lock"),
    )
    with amp_tf.enable(config):
        model = keras.Sequential([keras.Input((4,)), Weak(name="weak"), keras.layers.Dense(1)])
        optimizer = amp_tf.LossScaleOptimizer(keras.optimizers.SGD(1e-3), 2.0**6)
        model.compile(optimizer, "mse", steps_per_execution=2, jit_compile=False)
        model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    return model


@pytest.mark.slow
def test_no_step_is_lost_with_several_steps_a_call(tmp_path: Path) -> None:
    model = train(tmp_path)
    assert int(model.optimizer.iterations.numpy()) == 6
    assert (reverts.counts.watched, reverts.counts.reverts, reverts.counts.lost) == (6, 1, 0)
    assert model.steps_per_execution == 2


@pytest.mark.slow
def test_beyond_the_limit_on_reverts_the_step_is_left_out_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from amp_tf.hooks.process import notices

    notices.forget()
    monkeypatch.setattr(reverts, "MOST", 0)
    model = train(tmp_path)
    assert int(model.optimizer.iterations.numpy()) == 5
    assert (reverts.counts.reverts, reverts.counts.lost) == (0, 1)
    assert "batch 4 was left out, which float32 would have made: 0 reverts did not help" in caplog.text
    assert not (tmp_path / "a.lock").exists()
    notices.forget()


@pytest.mark.slow
def test_where_the_watchdog_fails_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from amp_tf.hooks.process import notices
    from amp_tf.hooks.watchdog import faults

    def fail(*_: Any) -> None:
        raise RuntimeError("no such luck")

    notices.forget()
    monkeypatch.setattr(faults, "find_fault", fail)
    model = train(tmp_path)
    assert int(model.optimizer.iterations.numpy()) == 5
    assert "watchdog: it failed at a step that was skipped (RuntimeError: no such luck)" in caplog.text
    notices.forget()


def test_uninstalling_gives_everything_back() -> None:
    owner = next(base for base in keras.Model.__mro__ if "make_train_function" in vars(base))
    before = vars(owner)["make_train_function"]
    fit.install(AmpConfig(watchdog=True))
    assert vars(owner)["make_train_function"] is not before
    fit.uninstall()
    assert vars(owner)["make_train_function"] is before
    fit.install(AmpConfig())
    assert vars(owner)["make_train_function"] is before
