"""TFLite's converter beside amp_tf: it holds Python's lock while TensorFlow optimizes the graphs that it runs."""

from __future__ import annotations

from pathlib import Path

from tests.hooks import running


def test_a_model_that_was_trained_converts_for_tflite_in_float32(tmp_path: Path) -> None:
    ended = running.run(
        [str(running.PROGRAMS / "tflite.py")], tmp_path, {running.SWITCH: "1", "AMP_TF_PRECISION": "bfloat16"}
    )
    assert ended.status == 0, ended.err
    assert ended.converted > 0
    assert not {"float16", "bfloat16"} & set(ended.result["types"])
    # Both compute the model eagerly in float32, from the same weights; sums of 64 products in another order.
    assert ended.result["error"] < 1e-5
    assert "1 graph skipped, because the call that ran them held Python's lock" in ended.summary[6]
