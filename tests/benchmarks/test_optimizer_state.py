"""``python -m benchmarks.optimizer_state``: a tiny model is measured, the table on made-up figures."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

from amp_tf.hooks.optimizer_state import creation
from benchmarks import optimizer_state


def test_both_states_are_measured_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    def tiny() -> tuple[Any, Any]:
        return keras.Sequential([keras.layers.Input((128,)), keras.layers.Dense(128)]), np.ones((4, 128), "float32")

    monkeypatch.setitem(optimizer_state.MODELS, "tiny", tiny)
    try:
        found = optimizer_state.measure("tiny", jit=False, rounds=2)
    finally:
        creation.uninstall()
    kernel, bias, rest = 128 * 128, 128, 8 + 4  # the number of the step, and the learning rate
    assert found["bytes"] == {
        "float32": 2 * 4 * (kernel + bias) + rest,
        "bfloat16": 2 * (2 * kernel + 4 * bias) + rest,
    }
    assert all(len(seconds) == 2 for seconds in found["seconds"].values())


def test_a_ratio_is_the_median_of_those_within_a_round() -> None:
    seconds = {("step", "float32"): [1.0, 2.0, 9.0], ("step", "bfloat16"): [1.1, 2.0, 9.0]}
    seconds |= {("update", state): [0.1] * 3 for state in optimizer_state.STATES}
    figures = {"bytes": {"float32": 4 << 20, "bfloat16": 2 << 20}, "seconds": seconds}
    found = optimizer_state.row("tiny", False, figures)
    assert found == "| tiny | no | 4.0 | 2.0 | -50.0% | 2000.0 | 1.00 | 100.0 | 1.00 |"
