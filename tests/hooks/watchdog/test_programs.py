"""An unchanged program under the variable: a step with an overflow is done again, a batch with nan is left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from amp_tf import lock
from tests.hooks import running

PROGRAM = str(running.PROGRAMS / "watched_fit.py")
ON = {running.SWITCH: "1", "AMP_TF_WATCHDOG": "1", "AMP_TF_FORCE_F16": "weak"}


@pytest.mark.parametrize("library", ["keras", pytest.param("tf_keras", marks=pytest.mark.slow)])
def test_a_step_with_an_overflow_is_done_again_and_nan_in_the_data_is_bad_data(library: str, tmp_path: Path) -> None:
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
def test_bfloat16_has_a_guard_and_reads_its_own_lock_file(tmp_path: Path) -> None:
    (tmp_path / "amp_tf.watchdog.lock").write_text(lock.NO_LOCK.to_text())
    ended = running.run([PROGRAM, "keras"], tmp_path, ON | {"AMP_TF_PRECISION": "bfloat16"})
    assert 0 < ended.result["weights"] < 1000
    assert "batch 8: not finite in float32 either" in ended.err
    assert "1 batch of bad data" in ended.summary[6]
    assert "loss scale" not in ended.summary[6]


@pytest.mark.slow
def test_what_is_not_watched_is_told(tmp_path: Path) -> None:
    ended = running.run([str(running.PROGRAMS / "custom_loop.py")], tmp_path, running.switched_on() | ON)
    assert "watchdog: nothing was watched, because only fit and train_on_batch of Keras and tf_keras are" in ended.err
