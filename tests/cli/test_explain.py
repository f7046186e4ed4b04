"""``amp-tf explain`` on files."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

from amp_tf.cli.main import main
from amp_tf.offline.reading import write_graph_file


@pytest.fixture
def calling(tmp_path):
    """Writes the graph of a function that calls others."""

    def write(*functions, finish=lambda value: value):
        inner = list(map(tf.function, functions))
        outer = tf.function(lambda x: finish(tf.add_n([each(x) for each in inner])))
        graph = outer.get_concrete_function(tf.TensorSpec((2, 2))).graph.as_graph_def()
        write_graph_file(graph, tmp_path / "g.pb")
        return tmp_path / "g.pb", graph

    return write


def product(x):
    return tf.matmul(x, x, name="product")


def test_where_nothing_is_converted_the_options_that_would_are_named(
    graph_file, capsys, without_16_bit
):
    named = "--precision float16 --target gpu"
    assert main(["explain", str(graph_file), "m"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith(
        "m (MatMul) computes in float32: no device of this machine is converted (this CPU has "
    )
    assert (
        f"Explain it with {named}, as a GPU would run it, or with --precision bfloat16, as this CPU"
        in second
    )
    assert main(["explain", str(graph_file), "--all"]) == 0
    assert capsys.readouterr().err.startswith(f"{named} is what a GPU would run; ")
    assert main(["explain", str(graph_file), "--all", *named.split()]) == 0
    assert capsys.readouterr().err == ""


def test_a_node_inside_a_function_is_found_and_of_several_that_hold_one_which_is_asked(
    calling, capsys
):
    command = ["explain", str(calling(product)[0]), "product", "--precision", "bfloat16"]
    assert main(command) == 0
    assert "product (MatMul, on the allow list) computes in bfloat16" in capsys.readouterr().out
    file, _ = calling(product, lambda x: tf.exp(product(x)))
    assert main(command) == 1
    assert (
        f"{file}: 2 functions hold a node 'product'. Choose with --function: "
        in capsys.readouterr().err
    )


def test_a_node_or_function_that_does_not_exist_is_answered_with_names_of_others(
    calling, graph_file, capsys
):
    file, graph = calling(lambda x: tf.matmul(x, x, name="model_1/dense_1/MatMul"))
    for asked in ("model/dense/MatMul", "dense_1/MatMul", "dense"):  # the last is a layer's name
        assert main(["explain", str(file), asked]) == 1
        assert capsys.readouterr().err.endswith(
            f" no node {asked!r}. The closest names: model_1/dense_1/MatMul.\n"
        )
    name = graph.library.function[0].signature.name
    asked = name.removeprefix("__")[:-1]
    for source, fix in ((file, f"The closest names: {name}."), (graph_file, "It has no functions")):
        assert main(["explain", str(source), "m", "--function", asked]) == 1
        assert f"{source}: the graph has no function {asked!r}. {fix}" in capsys.readouterr().err


def test_a_node_that_a_signature_names_is_explained_as_the_conversion_leaves_it(tmp_path, capsys):
    with tf.Graph().as_default() as graph, tf.compat.v1.Session(graph=graph) as session:
        x = tf.compat.v1.placeholder(tf.float32, (None, 4), name="x")
        y = tf.identity(tf.matmul(x, tf.eye(4)), name="y")
        tf.compat.v1.saved_model.simple_save(session, str(tmp_path / "model"), {"x": x}, {"y": y})
    assert main(["explain", str(tmp_path / "model"), "y", "--precision", "bfloat16"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == (
        "y (Identity, on the clear list) computes in float32: "
        "it is an input or an output of the graph, whose type must not change."
    )


def test_a_node_of_any_graph_of_a_model_is_found(tmp_path, capsys):
    graphs = []
    for name in ("first", "second"):
        with tf.Graph().as_default() as graph:
            tf.matmul(tf.ones((4, 4)), tf.ones((4, 4)), name=name)
        graphs.append(MetaGraphDef(graph_def=graph.as_graph_def()))
    (tmp_path / "saved_model.pb").write_bytes(SavedModel(meta_graphs=graphs).SerializeToString())
    for name in ("first", "second"):
        assert main(["explain", str(tmp_path), name, "--precision", "bfloat16"]) == 0
        assert capsys.readouterr().out.startswith(
            f"{name} (MatMul, on the allow list) computes in bfloat16"
        )


def test_all_nodes_are_listed_with_their_reasons_or_those_of_an_op(graph_file, capsys):
    assert main(["explain", str(graph_file), "--all", "--precision", "bfloat16"]) == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    kinds = [
        ("float32", "Placeholder", "x"),
        ("bfloat16", "Relu", "r"),
        ("bfloat16", "MatMul", "m"),
        ("float32", "Exp", "e"),
    ]
    assert [line[:4] for line in lines] == [
        [precision, op, "", name] for precision, op, name in kinds
    ]
    assert lines[3][4] == "its op is on the deny list"
    one_op = ["--all", "--op", "MatMul", "--precision", "bfloat16"]
    assert main(["explain", str(graph_file), *one_op]) == 0
    assert capsys.readouterr().out == "bfloat16\tMatMul\t\tm\tits op is on the allow list\n"
    for arguments in ([], ["m", "--all"]):
        assert main(["explain", str(graph_file), *arguments]) == 1
        assert "name one NODE, or add --all for all of them" in capsys.readouterr().err


def test_a_keras_file_is_explained_compared_and_rewritten(tmp_path, capsys):
    keras = pytest.importorskip("keras")
    model = keras.Sequential([keras.Input((4,), name="x"), keras.layers.Dense(4)])
    file = str(tmp_path / "model.keras")
    inputs = str(tmp_path / "in.npz")
    model.save(file)
    options = ["--precision", "bfloat16", "--target", "cpu"]
    assert main(["explain", file, "--all", "--op", "MatMul", *options]) == 0
    assert "bfloat16\tMatMul" in capsys.readouterr().out
    np.savez(inputs, x=np.ones((2, 4), np.float32))
    assert main(["compare", file, "--inputs", inputs, *options]) == 0
    assert capsys.readouterr().out.startswith("model.keras: healthy in bfloat16")
    for result in ("--dry-run", str(tmp_path / "out")):
        assert main(["rewrite", file, result, *options]) == 0
        assert " nodes converted to bfloat16 (" in capsys.readouterr().out.splitlines()[0]
    assert (tmp_path / "out" / "saved_model.pb").exists()
