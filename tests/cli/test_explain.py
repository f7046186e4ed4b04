"""``amp-tf explain`` on files."""

import keras
import numpy as np
import pytest
import tensorflow as tf

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
    graph_file, tell, without_16_bit
):
    named = "--precision float16 --target gpu"
    first, second = tell("explain", graph_file, "m").out.splitlines()
    assert first.startswith(
        "m (MatMul) computes in float32: nothing is converted on this machine (this CPU has "
    )
    assert (
        f"Explain it with {named}, as a GPU would run it, or with --precision bfloat16, as this CPU"
        in second
    )
    assert tell("explain", graph_file, "--all").err.startswith(f"{named} is what a GPU would run; ")
    assert tell("explain", graph_file, "--all", *named.split()).err == ""


def test_a_node_inside_a_function_is_found_and_of_several_that_hold_one_which_is_asked(
    calling, tell
):
    command = ["explain", str(calling(product)[0]), "product", "--precision", "bfloat16"]
    assert "product (MatMul, on the allow list) computes in bfloat16" in tell(*command).out
    file, _ = calling(product, lambda x: tf.exp(product(x)))
    assert (
        f"{file}: 2 functions hold a node 'product'. Choose with --function: "
        in tell(*command, status=1).err
    )


def test_a_node_or_function_that_does_not_exist_is_answered_with_names_of_others(
    calling, graph_file, tell
):
    file, graph = calling(lambda x: tf.matmul(x, x, name="model_1/dense_1/MatMul"))
    for asked in ("model/dense/MatMul", "dense_1/MatMul", "dense"):  # the last is a layer's name
        assert tell("explain", file, asked, status=1).err.endswith(
            f" no node {asked!r}. The closest names: model_1/dense_1/MatMul.\n"
        )
    name = graph.library.function[0].signature.name
    asked = name.removeprefix("__")[:-1]
    for source, fix in ((file, f"The closest names: {name}."), (graph_file, "It has no functions")):
        assert (
            f"{source}: the graph has no function {asked!r}. {fix}"
            in tell("explain", source, "m", "--function", asked, status=1).err
        )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--op", "Matmul"], "the graph has no op 'Matmul'. The closest names: MatMul."),
        (
            ["--op", "MatMul", "--op", "Sigmoid"],
            "the graph has no op 'Sigmoid'. The closest names: ",
        ),
        (["--function", "none"], "the graph has no function 'none'. The closest names: __infer"),
    ],
)
def test_of_all_nodes_an_op_or_function_that_does_not_exist_is_an_error_too(
    options, said, calling, tell
):
    command = ["explain", str(calling(product)[0]), "--all", "--precision", "bfloat16"]
    told = tell(*command, *options, status=1)
    assert told.out == ""
    assert said in told.err


def test_all_nodes_are_listed_with_their_reasons_or_those_of_an_op(graph_file, tell):
    all_nodes = ["explain", str(graph_file), "--all", "--precision", "bfloat16", "--target", "cpu"]
    placeholder, relu, product, exp = tell(*all_nodes).out.splitlines()
    assert placeholder.startswith("float32\tPlaceholder\t\tx\t")
    assert relu.startswith("bfloat16\tRelu\t\tr\t")
    assert exp == "float32\tExp\t\te\tits op is on the deny list"
    assert tell(*all_nodes, "--op", "MatMul").out == f"{product}\n"
    assert product == "bfloat16\tMatMul\t\tm\tits op is on the allow list"
    for arguments in ([], ["m", "--all"]):
        assert (
            "name one NODE, or add --all for all of them"
            in tell("explain", graph_file, *arguments, status=1).err
        )


def test_a_keras_file_is_explained_compared_and_rewritten(tmp_path, tell):
    model = keras.Sequential([keras.Input((4,), name="x"), keras.layers.Dense(4)])
    file = str(tmp_path / "model.keras")
    model.save(file)
    inputs = str(tmp_path / "in.npz")
    np.savez(inputs, x=np.ones((2, 4), np.float32))
    out = str(tmp_path / "out")
    for command, said in (
        (["explain", file, "--all", "--op", "MatMul"], "bfloat16\tMatMul"),
        (["compare", file, "--inputs", inputs], "model.keras: healthy in bfloat16"),
        (["rewrite", file, "--dry-run"], " nodes converted to bfloat16 ("),
        (["rewrite", file, out], " nodes converted to bfloat16 ("),
    ):
        assert (
            said in tell(*command, "--precision", "bfloat16", "--target", "cpu").out.splitlines()[0]
        )
    assert (tmp_path / "out" / "saved_model.pb").exists()
