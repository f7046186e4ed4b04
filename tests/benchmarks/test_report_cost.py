"""What a report costs, measured on the smallest model."""

import json

import pytest

from benchmarks.report_cost import main


@pytest.mark.slow
def test_a_run_has_a_row_and_leaves_its_report(capfd, tmp_path):
    assert main(["--models", "small_mlp", "--seconds", "1", "--keep", str(tmp_path)]) == 0
    row = next(line for line in capfd.readouterr().out.splitlines() if line.startswith("| MLP"))
    (report,) = (tmp_path / "small_mlp_fit").glob("*.json")
    nodes = json.loads(report.read_text())["total"]
    assert f"| {nodes:,} |" in row
    assert nodes > 100
