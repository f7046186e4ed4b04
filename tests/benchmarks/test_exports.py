"""What a program under the variable trained goes to every format whose converter comes with TensorFlow."""

import sys
from pathlib import Path

import pytest

from benchmarks.exports.__main__ import ON, run
from tests.hooks import running

FORMATS = ("keras", "h5", "weights", "export", "module", "tflite", "tflite16")
# Sums in another order; and TFLite's own rounding of weights to float16.
ROUNDING, HALF = 1e-5, 1e-3


@pytest.mark.slow
def test_exports_are_float32_and_answer_as_the_model_does(tmp_path: Path) -> None:
    python, formats = Path(sys.executable), ("--formats", *FORMATS)
    environ = running.environment(tmp_path, ON | {"AMP_TF_PRECISION": "bfloat16"})
    written = run(python, environ, str(tmp_path), *formats)
    assert not any(written["errors"].values()), written["errors"]
    found = run(python, {}, str(tmp_path), "--read", *formats)
    for name in FORMATS:
        is_half = name == "tflite16"
        assert found[name]["error"] == ""
        assert found[name]["off"] <= (HALF if is_half else ROUNDING), name
        assert found[name]["types"] == (["float16"] if is_half else []), name
