"""What a comparison costs, measured on the smallest model."""

import re

import pytest

from benchmarks.compare_cost import main


@pytest.mark.slow
def test_a_model_has_a_row_of_figures(capfd):
    assert main(["small_mlp", "--batch", "8"]) == 0
    row = next(line for line in capfd.readouterr().out.splitlines() if line.startswith("| ") and "model" not in line)
    assert len(re.findall(r"\d\.\d", row)) >= 5
