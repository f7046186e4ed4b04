"""Masks of -1e9, as Keras makes them: float16 cannot hold it, and trains all the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.hooks import running

SCRIPT = str(running.PROGRAMS / "padded_attention.py")


@pytest.mark.parametrize("compiled", ["jit", "plain"])
def test_padding_trains_in_float16_as_in_float32(compiled: str, tmp_path: Path) -> None:
    variables = {running.SWITCH: "1", "AMP_TF_PRECISION": "float16"}
    mixed, plain = (running.run([SCRIPT, compiled], tmp_path, environ) for environ in (variables, {}))
    assert (mixed.status, plain.status) == (0, 0), mixed.err + plain.err
    assert mixed.converted > 40
    assert "0 of 12 steps skipped" in mixed.summary[0]
    # Losses of 2 to 3.4; products and their inputs are rounded to 11 significant bits.
    np.testing.assert_allclose(mixed.result["loss"], plain.result["loss"], rtol=0, atol=0.01)
