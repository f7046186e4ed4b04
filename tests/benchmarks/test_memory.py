"""A real process is measured at the tiny size; the search for the largest batch."""

from __future__ import annotations

import pytest

from benchmarks import memory
from benchmarks.step_time.modes import modes


@pytest.mark.parametrize("mode", ["amp_tf", "memory"])
def test_a_process_tells_what_its_training_steps_took_without_tensorflow_itself(mode):
    mib, live = memory.measure("wide_mlp", "tiny", "bfloat16", modes("bfloat16")[mode], 8192)
    assert 0 < live < mib < 400  # the process itself takes more


def test_the_largest_batch_is_found_on_the_line_and_checked_by_measuring():
    points = [(8, 180.0), (16, 260.0)]  # 100 MiB and 10 for each example
    found = memory.largest_batch(points, 500.0, lambda batch: 100 + 12.0 * batch)
    assert found is not None
    assert (found.batch, found.mib) == (33, 496.0)
