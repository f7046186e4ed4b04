"""``python -m benchmarks.tune``: its programs, and its two other rules."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from benchmarks.tune import __main__ as tune

PROGRAMS = Path(tune.__file__).parent / "programs"


def test_every_program_is_tuned():
    assert sorted(planted.name for planted in tune.PROGRAMS) == sorted(path.stem for path in PROGRAMS.glob("*.py"))


@pytest.mark.parametrize("planted", tune.PROGRAMS, ids=lambda planted: planted.name)
def test_a_program_has_its_held_out_metric_and_its_weak_layer(planted):
    text = (PROGRAMS / f"{planted.name}.py").read_text()
    functions = [node.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    assert planted.held_out in functions
    assert f'name="{planted.layer}"' in text


@pytest.mark.parametrize("needed", range(1, 12))
def test_bisection_finds_the_shortest_prefix(needed):
    items = list(range(11))
    assert tune._bisect(items, lambda some: len(some) >= needed)[0] == needed


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
