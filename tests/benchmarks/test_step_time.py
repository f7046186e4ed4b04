"""``python -m benchmarks.step_time``: the suite's processes run for real at the tiny size."""

from __future__ import annotations

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
