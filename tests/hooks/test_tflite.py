"""TFLite's converter beside amp_tf: it holds Python's lock while TensorFlow optimizes the graphs that it runs."""

from __future__ import annotations

from pathlib import Path

import pytest

import amp_tf
from amp_tf.hooks import tflite
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


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_of_a_model_that_amp_tf_converted_the_original_is_asked_for(precision: str, tmp_path: Path) -> None:
    import tensorflow as tf

    class Product(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = tf.Variable(tf.ones((8, 4)))

        @tf.function(input_signature=[tf.TensorSpec((2, 8), tf.float32)])
        def __call__(self, x: tf.Tensor) -> tf.Tensor:
            return tf.matmul(x, self.weights)

    original, converted = str(tmp_path / "original"), str(tmp_path / "converted")
    tf.saved_model.save(Product(), original)
    amp_tf.convert_saved_model(original, converted, amp_tf.AmpConfig(precision=precision))
    loaded = tf.saved_model.load(converted)
    converters = {
        "bfloat16": tf.lite.TFLiteConverter.from_saved_model(converted),
        "float16": tf.lite.TFLiteConverter.from_concrete_functions([loaded.__call__.get_concrete_function()], loaded),
    }
    with amp_tf.enable():
        assert tf.lite.TFLiteConverter.from_saved_model(original).convert()
        with pytest.raises(
            Exception, match=r"^TFLite's converter: amp_tf converted this model to 16 bit, .* the original"
        ):
            converters[precision].convert()
    assert not tflite._patches
