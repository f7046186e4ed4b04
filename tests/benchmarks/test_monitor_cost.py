from __future__ import annotations

import keras
import pytest

import amp_tf
from benchmarks import monitor_cost


@pytest.mark.slow
def test_a_reading_is_measured_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    def small() -> tuple[keras.Model, tuple[int, ...], int]:
        return keras.Sequential([keras.Input((8,)), keras.layers.Dense(8), keras.layers.Dense(10)]), (8,), 4

    monkeypatch.setitem(monitor_cost.MODELS, "small", small)
    with amp_tf.enable(precision="bfloat16"):
        row = monitor_cost.measure("small", rounds=2, every=500)
    assert row["layers"] >= 2
    assert 0 < row["reading"] < row["first_reading"]
    assert row["share_of_a_step"] == pytest.approx(row["reading"] / row["step"] / 500)
