"""Rematerialization under amp_tf: it trains, with XLA too, and nothing keeps what is to be computed again."""

from __future__ import annotations

import math
from pathlib import Path

import keras
import pytest

from tests.hooks import running

PROGRAM = str(running.PROGRAMS / "rematerialization.py")
pytestmark = pytest.mark.skipif(not hasattr(keras, "RematScope"), reason="this Keras has no RematScope")


def test_models_train_in_less_memory(tmp_path: Path) -> None:
    variables = {**running.switched_on(), "AMP_TF_PRECISION": "bfloat16", "PYTHONPATH": str(running.ROOT)}
    ended = running.run([PROGRAM, "float32"], tmp_path, variables, seconds=600)
    found = ended.result
    assert ended.converted
    live = [found.pop(f"live {remat}") for remat in (False, True)]
    assert 0 < live[1] < 0.7 * live[0]  # 12 layers, of which 4 are computed again at a time
    assert len(found) == 3
    for losses in found.values():
        assert losses[-1] < losses[0] < 2 * math.log(10)


def test_under_keras_policy_the_same_layers_raise(tmp_path: Path) -> None:
    """If this fails, Keras has learned it, and docs/limits.md says so no more."""
    ended = running.run([PROGRAM, "mixed_bfloat16"], tmp_path, {"PYTHONPATH": str(running.ROOT)})
    assert ended.result["error"].startswith("TypeError: Input 'filter' of 'Conv2D' Op has type float32")
