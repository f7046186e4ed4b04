"""``python -m benchmarks.step_time``: the suite's processes run for real at the tiny size."""

from __future__ import annotations

import shutil
from pathlib import Path

from benchmarks.step_time import suite
from benchmarks.step_time.modes import WAYS, modes


def test_both_modes_are_measured_trained_and_served() -> None:
    settings = suite.Settings("tiny", "bfloat16", rounds=2, seconds=0.02)
    chosen = [modes("bfloat16")[name] for name in ("float32", "amp_tf")]
    ways = [WAYS[name] for name in ("fit", "predict")]
    rows = {(row.way, row.mode): row for row in suite.measure("wide_mlp", None, chosen, ways, settings)}
    for way in ways:
        ours, theirs = rows[way.name, "amp_tf"], rows[way.name, "float32"]
        for row in (ours, theirs):
            assert row.error == ""
            assert len(row.ms) == 2
            assert min(row.ms) > 0
            assert row.first_step_s > 0
            assert row.peak_mib > 100  # TensorFlow alone takes more
            assert len(row.losses) == (8 if way.trains else 0)
        assert all(abs(a - b) <= 0.02 * b for a, b in zip(ours.losses, theirs.losses, strict=True))


def test_the_amp_tf_of_another_checkout_is_at_work_or_its_row_says_that_it_is_not(tmp_path: Path) -> None:
    """A copy of the package stands for the checkout; from a folder without one, today's would be imported."""
    root = Path(suite.__file__).resolve().parents[2]
    shutil.copytree(root / "amp_tf", tmp_path / "copy" / "amp_tf")
    shutil.copy(root / "_amp_tf_start.py", tmp_path / "copy")
    chosen = [modes("bfloat16")[f"all listed@{tmp_path}/{name}"] for name in ("copy", "none")]
    settings = suite.Settings("tiny", "bfloat16", rounds=1, seconds=0.01)
    rows = {row.mode: row for row in suite.measure("wide_mlp", None, chosen, [WAYS["fit"]], settings)}
    copied, missing = (rows[mode.name] for mode in chosen)
    assert (copied.error, copied.amp_tf) == ("", f"{tmp_path}/copy/amp_tf")
    assert copied.converted > 0
    assert missing.error == f"{missing.mode} imported amp_tf from {root}/amp_tf, not from {tmp_path}/none."
