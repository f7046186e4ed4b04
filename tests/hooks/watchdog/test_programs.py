"""An unchanged program under the variable: a step with an overflow is done again, a batch with nan is left out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from amp_tf import lock
from tests.hooks import running

PROGRAM = str(running.PROGRAMS / "watched_fit.py")
ON = {running.SWITCH: "1", "AMP_TF_WATCHDOG": "1", "AMP_TF_FORCE_F16": "weak"}


def check(ended: running.Ended, folder: Path, processes: int = 1) -> None:
    results = [json.loads(line) for line in ended.out.splitlines() if line.startswith("{")]
    lines = [line for line in ended.warnings if "watchdog: batch" in line]
    assert len(results) == processes, ended.err
    assert all(result == results[0] for result in results)
    assert all(0 < result["weights"] < 1000 for result in results)  # no nan in the statistics either
    assert [line.split("batch ")[1][0] for line in lines] == ["5"] * processes + ["8"] * processes, ended.err
    assert all("overflow at " in line and "the step was done again" in line for line in lines[:processes])
    assert all("its x holds nan or inf" in line for line in lines[processes:])
    decisions = lock.read(str(folder / "amp_tf.watchdog.lock")).decisions
    assert [one.name.split("/")[-1][:4] for one in decisions] == ["weak"]
    skipped = ended.err.count("1 revert, in ")
    assert skipped == processes


@pytest.mark.parametrize(
    ("library", "kind"),
    [
        ("keras", "one"),
        pytest.param("tf_keras", "one", marks=pytest.mark.slow),
        pytest.param("keras", "two", marks=pytest.mark.slow),
        pytest.param("tf_keras", "two", marks=pytest.mark.slow),
    ],
)
def test_a_step_with_an_overflow_is_done_again_and_nan_in_the_data_is_bad_data(
    library: str, kind: str, tmp_path: Path
) -> None:
    pytest.importorskip(library)
    check(running.run([PROGRAM, library, kind], tmp_path, ON | {"AMP_TF_PRECISION": "float16"}), tmp_path)


@pytest.mark.slow
def test_workers_agree(tmp_path: Path) -> None:
    """The example that overflows is the second worker's, the nan the first one's."""
    pytest.importorskip("tf_keras")
    ended = running.run([PROGRAM, "tf_keras", "workers"], tmp_path, ON | {"AMP_TF_PRECISION": "float16"}, seconds=400)
    check(ended, tmp_path, processes=2)


@pytest.mark.slow
def test_bfloat16_has_a_guard_and_reads_its_own_lock_file(tmp_path: Path) -> None:
    (tmp_path / "amp_tf.watchdog.lock").write_text(lock.NO_LOCK.to_text())
    ended = running.run([PROGRAM, "keras", "one"], tmp_path, ON | {"AMP_TF_PRECISION": "bfloat16"})
    assert 0 < ended.result["weights"] < 1000
    assert "batch 8: not finite in float32 either" in ended.err
    assert "1 batch of bad data" in ended.summary[6]
    assert "loss scale" not in ended.summary[6]


@pytest.mark.slow
def test_what_is_not_watched_is_told(tmp_path: Path) -> None:
    ended = running.run([str(running.PROGRAMS / "custom_loop.py")], tmp_path, running.switched_on() | ON)
    assert "watchdog: nothing was watched, because only fit and train_on_batch of Keras and tf_keras are" in ended.err
