"""``python -m benchmarks.rematerialization``: its table on made-up figures; tests/hooks trains and measures."""

from __future__ import annotations

from benchmarks import rematerialization


def test_ratios_are_to_float32_without_rematerialization() -> None:
    found = {
        combination: {"seconds": [1.0 + number, 2.0 + number], "live": 100.0 - 20 * number, "losses": [2.0, 1.5]}
        for number, combination in enumerate(rematerialization.COMBINATIONS)
    }
    lines = rematerialization.table("mlp", "fit", found)
    assert lines[0] == "| mlp | fit | float32 | no | 1500 | 1.00 | 100 | 1.00 | 1.5000 |"
    assert lines[3] == "| mlp | fit | amp_tf | yes | 4500 | 3.25 | 40 | 0.40 | 1.5000 |"
