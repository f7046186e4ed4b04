"""Graphs on disk: both forms round-trip, and what is no graph is named."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

import amp_tf
from amp_tf.cli.main import main
from amp_tf.errors import GraphError
from amp_tf.offline.reading import read_graph_file, write_graph_file
from amp_tf.offline.saved_model import read_graphs
from amp_tf.oplists.hardware import Hardware


@pytest.fixture(scope="module")
def graph():
    with tf.Graph().as_default() as graph:
        tf.constant(1.5, name="c")
    return graph.as_graph_def()


@pytest.mark.parametrize("name", ["graph.pb", "graph.pbtxt"])
def test_what_is_written_is_read_back(graph, tmp_path, name):
    write_graph_file(graph, tmp_path / name)
    assert read_graph_file(tmp_path / name) == graph


def test_a_file_that_holds_no_graph_is_named(graph, tmp_path):
    in_meta = MetaGraphDef(
        meta_info_def={"meta_graph_version": "v", "any_info": {"type_url": "u"}}, graph_def=graph
    )
    for name, content in (
        ("bad.pb", b"\xff\xff"),
        ("text.pb", str(graph).encode()),
        ("model.keras", b"PK\x03\x04"),
        ("g.meta", in_meta.SerializeToString()),
        ("saved_model.pb", SavedModel(meta_graphs=[in_meta]).SerializeToString()),
        ("bad.pbtxt", b"node }"),
        ("b.txt", b"\xff"),
        ("truncated.pbtxt", str(graph).encode().rstrip()[:-1]),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(
            GraphError,
            match=rf"{name}: holds no graph \(.*\)\. Name a SavedModel's folder \(not its",
        ):
            read_graph_file(tmp_path / name)


def test_text_that_is_nested_without_end_is_one_error(tmp_path):
    depth = 3000
    node = 'node { attr { key: "f" value ' + '{ func { attr { key: "f" value ' * depth
    (tmp_path / "graph.pbtxt").write_text(node + "{ i: 1 }" + "} } }" * depth + " } }")
    with pytest.raises(GraphError, match=r"recursion"):
        read_graph_file(tmp_path / "graph.pbtxt")


def test_a_folder_that_cannot_be_written_is_named(graph, tmp_path):
    with pytest.raises(GraphError, match=r"g.pb: cannot be written"):
        write_graph_file(graph, tmp_path / "missing" / "g.pb")


def test_a_folder_without_a_model_is_named(tmp_path):
    with pytest.raises(GraphError, match=rf"^{tmp_path}: there is no saved_model.pb"):
        read_graphs(tmp_path, amp_tf.AmpConfig(), Hardware())


tf_keras = pytest.importorskip("tf_keras")
CONFIG = amp_tf.AmpConfig(precision="bfloat16", target="cpu")
X = np.linspace(-1, 1, 24, dtype=np.float32).reshape(2, 12)
RTOL = 2e-2  # bfloat16 keeps 8 bits: 2**-8 an operation, over two layers


class Product(tf.Module):
    @tf.function(input_signature=[tf.TensorSpec((2, 12))])
    def __call__(self, x):
        return tf.matmul(x, tf.ones((12, 4)))


def made(library):
    layers = library.layers
    return library.Sequential([layers.Input((12,)), layers.Dense(16, "relu"), layers.Dense(4)])


@pytest.mark.parametrize("kind", ["keras", "tf_keras", "a file of keras", "a module"])
def test_a_model_in_memory_or_a_file_is_converted(kind: str, tmp_path: Path) -> None:
    if kind == "a module":
        model = source = Product()
    else:
        model = source = made(tf_keras if kind == "tf_keras" else keras)
    expected = model(tf.constant(X)).numpy()
    if kind == "a file of keras":
        source = tmp_path / "model.keras"
        model.save(source)
    report = amp_tf.convert_saved_model(source, tmp_path / "out", CONFIG)
    assert report.nodes.where(op="MatMul", precision="bfloat16")
    signature = tf.saved_model.load(str(tmp_path / "out")).signatures["serving_default"]
    (got,) = signature(tf.constant(X)).values()
    assert got.dtype == tf.float32
    assert np.any(got != expected)
    np.testing.assert_allclose(got, expected, rtol=RTOL, atol=RTOL)


def test_what_cannot_be_exported_is_one_error_with_what_to_do(tmp_path: Path) -> None:
    unbuilt = keras.Sequential([keras.layers.Dense(2)])
    with pytest.raises(
        amp_tf.GraphError,
        match=r"^Sequential: the model cannot be exported \(.*built.*\)\. Call the model",
    ):
        amp_tf.convert_saved_model(unbuilt, tmp_path / "out", CONFIG)
    (tmp_path / "bad.keras").write_text("no zip")
    with pytest.raises(
        amp_tf.GraphError, match=r"bad\.keras: holds no Keras model\. Save it again"
    ):
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
        amp_tf.ConfigError,
        match=r"^convert_saved_model\(config\): expected an AmpConfig, got 'bfloat16'",
    ):
        amp_tf.convert_saved_model("nowhere", tmp_path / "out", wrong)
    with pytest.raises(
        amp_tf.ConfigError,
        match=r"^convert_saved_model\(dst\): None is not a path\. Name the folder",
    ):
        amp_tf.convert_saved_model("nowhere", None, CONFIG)
