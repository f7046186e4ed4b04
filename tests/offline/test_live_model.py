"""Models in memory and Keras' own files are converted as their SavedModel would be."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import amp_tf
from amp_tf.cli.main import main

tf_keras = pytest.importorskip("tf_keras")
CONFIG = amp_tf.AmpConfig(precision="bfloat16", target="cpu")
X = np.linspace(-1, 1, 24, dtype=np.float32).reshape(2, 12)
RTOL = 2e-2  # bfloat16 keeps 8 bits: 2**-8 an operation, over two layers


def made(library: Any) -> Any:
    layers = library.layers
    return library.Sequential([layers.Input((12,)), layers.Dense(16, activation="relu"), layers.Dense(4)])


def check(folder: Path, report: amp_tf.RewriteReport, expected: Any) -> None:
    assert report.counts_by_op()["MatMul"][0] >= 2
    (got,) = tf.saved_model.load(str(folder)).signatures["serving_default"](tf.constant(X)).values()
    assert got.dtype == tf.float32
    assert np.any(got != expected)
    np.testing.assert_allclose(got, expected, rtol=RTOL, atol=RTOL)


@pytest.mark.parametrize("library", [keras, tf_keras], ids=["keras", "tf_keras"])
def test_a_model_in_memory_and_its_file_are_converted(library: Any, tmp_path: Path) -> None:
    model = made(library)
    expected = model(X).numpy()
    check(tmp_path / "live", amp_tf.convert_saved_model(model, tmp_path / "live", CONFIG), expected)
    model.save(tmp_path / "model.keras")
    check(tmp_path / "file", amp_tf.convert_saved_model(tmp_path / "model.keras", tmp_path / "file", CONFIG), expected)


def test_the_command_takes_a_file_of_keras(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(keras).save(tmp_path / "model.keras")
    file = str(tmp_path / "model.keras")
    assert main(["rewrite", file, "--dry-run", "--precision", "bfloat16"]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert " nodes converted to bfloat16 (" in first
    assert sorted(item.name for item in tmp_path.iterdir()) == ["model.keras"]
    assert main(["rewrite", file, str(tmp_path / "out"), "--precision", "bfloat16"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == first
    assert (tmp_path / "out" / "saved_model.pb").exists()


def test_a_module_is_converted(tmp_path: Path) -> None:
    class Product(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec((4, 4))])
        def __call__(self, x: Any) -> Any:
            return tf.matmul(x, x)

    assert amp_tf.convert_saved_model(Product(), tmp_path / "out", CONFIG).counts_by_op()["MatMul"] == (1, 1)


def test_what_cannot_be_exported_is_one_error_with_what_to_do(tmp_path: Path) -> None:
    unbuilt = keras.Sequential([keras.layers.Dense(2)])
    with pytest.raises(
        amp_tf.GraphError, match=r"^Sequential: the model cannot be exported \(.*built.*\)\. Call the model"
    ):
        amp_tf.convert_saved_model(unbuilt, tmp_path / "out", CONFIG)
    (tmp_path / "bad.keras").write_text("no zip")
    with pytest.raises(amp_tf.GraphError, match=r"bad\.keras: the model cannot be exported \("):
        amp_tf.convert_saved_model(tmp_path / "bad.keras", tmp_path / "out", CONFIG)
    with pytest.raises(amp_tf.GraphError, match=r"^int: the model cannot be exported \("):
        amp_tf.convert_saved_model(3, tmp_path / "out", CONFIG)
    assert not (tmp_path / "out").exists()


def test_a_file_that_grows_beyond_measure_is_not_loaded(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "bomb.keras", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("metadata.json", bytes(300 << 20))
    with pytest.raises(amp_tf.GraphError, match=r"bomb\.keras: its [\d,]+ bytes would become"):
        amp_tf.convert_saved_model(tmp_path / "bomb.keras", tmp_path / "out", CONFIG)
    assert main(["rewrite", str(tmp_path / "bomb.keras"), str(tmp_path / "out")]) == 1


def test_arguments_of_another_kind_are_refused_before_anything_is_read(tmp_path: Path) -> None:
    wrong: Any = "bfloat16"
    with pytest.raises(
        amp_tf.ConfigError, match=r"^convert_saved_model\(config\): expected an AmpConfig, got 'bfloat16'"
    ):
        amp_tf.convert_saved_model("nowhere", tmp_path / "out", wrong)
    with pytest.raises(amp_tf.ConfigError, match=r"^convert_saved_model\(dst\): None is not a path\. Name the folder"):
        amp_tf.convert_saved_model("nowhere", None, CONFIG)
