"""What the first step takes, in one real process."""

from __future__ import annotations

from benchmarks.step_time import first_step
from benchmarks.step_time.modes import modes


def test_a_process_tells_its_rewrites_apart() -> None:
    mode = modes("bfloat16")["amp_tf"]
    options = {"model": "ncf", "way": "predict", "size": "tiny", "batch": None, "precision": "bfloat16"}
    taken = first_step.measure({**options, "mode": "amp_tf"}, mode)
    assert 0 < taken.rewrite_ms < taken.total_ms
