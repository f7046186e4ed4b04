"""``python -m benchmarks.tune``: a program is tuned by each rule."""

from __future__ import annotations

import pytest

from benchmarks.tune import __main__ as tune


@pytest.mark.slow
def test_a_program_is_tuned_to_its_weak_layer(tmp_path):
    """As ``python -m benchmarks.tune --only stations`` does."""
    rows = list(tune.rows_of(tune.PROGRAMS[-1], tmp_path / "runs"))
    ours = rows[0]
    assert ours["rule"] == "amp_tf"
    assert ours["is_good"]
    assert ours["is_verified"]
    assert ours["runs"] <= 15
    assert 0 < ours["kept"] <= 2 * ours["planted"]
    assert [row["rule"] for row in rows] == ["amp_tf", "AutoCast", "Polygraphy"]
    assert "| stations_norm | bfloat16 |" in tune.table(rows)
