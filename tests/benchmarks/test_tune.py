"""``python -m benchmarks.tune``: a program is tuned, by amp_tf's own rule."""

from __future__ import annotations

import pytest

from benchmarks.tune import __main__ as tune


@pytest.mark.slow
def test_a_program_is_tuned_to_its_weak_layer(tmp_path):
    """As ``python -m benchmarks.tune --only stations`` does."""
    row = next(tune.rows_of(tune.PROGRAMS[-1], tmp_path / "runs"))
    assert row["rule"] == "amp_tf"
    assert row["is_good"]
    assert row["is_verified"]
    assert row["runs"] <= 15
    assert 0 < row["kept"] <= 2 * row["planted"]
    assert "| stations_norm | bfloat16 |" in tune.table([row])
