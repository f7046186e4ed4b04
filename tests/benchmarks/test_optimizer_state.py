"""``python -m benchmarks.optimizer_state``: a tiny model is measured."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

from amp_tf.hooks import optimizer_state as creation
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
