"""The layer of a node is told by the scopes in its name, recorded ones first."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from amp_tf.graph import layers
from amp_tf.graph.layers import (
    KerasLayer,
    innermost_scope,
    is_gradient,
    path_of,
    recorded,
    scope_of,
)
from amp_tf.graph.names import describe_unmatched, matcher
from amp_tf.tools.keeping import scope_pattern

# Scopes as Keras 3.15 opens them in fit, each with the layer that opens it.
KERAS_3 = {
    "net_1": ("net", "net"),
    "net_1/encoder_1": ("encoder", "net encoder"),
    "net_1/encoder_1/block_1_1": ("encoder/block_1", "net encoder block_1"),
    "net_1/encoder_1/block_1_1/attention_1": (
        "encoder/block_1/attention",
        "net encoder block_1 attention",
    ),
    "net_1/encoder_1/block_12_1": ("encoder/block_12", "net encoder block_12"),
    "net_1/dense_1": ("dense", "net dense"),
    "net_1/dense_1_2": ("dense_1", "net dense_1"),
    "net_1/shared_1": ("shared", "net shared"),
    "net_1/shared_3": ("shared", "net shared"),
    "net_1/lstm_1": ("lstm", "net lstm"),
    "net_1/lstm_1/while/lstm_cell_1": ("lstm/lstm_cell", "net lstm lstm_cell"),
}
FORWARD = "StatefulPartitionedCall/net_1"
BACKWARD = "StatefulPartitionedCall/gradient_tape/net_1"
BODY = f"{FORWARD}/lstm_1/while/body/_41/net_1/lstm_1/while"
LOOP_BACK = (
    f"{BACKWARD}/lstm_1/while/net_1/lstm_1/while_grad/body/_82/gradient_tape/net_1/lstm_1/while"
    "/gradients/net_1/lstm_1/while/lstm_cell_1/MatMul_grad/MatMul"
)


@pytest.fixture(autouse=True)
def empty():
    recorded.forget()
    yield
    recorded.forget()


def record(known=KERAS_3):
    for scope, (path, names) in known.items():
        recorded.record(scope, KerasLayer(path, tuple(names.split())))


@pytest.mark.parametrize(
    ("name", "path"),
    [
        (f"{FORWARD}/encoder_1/block_1_1/attention_1/MatMul", "encoder/block_1/attention"),
        (f"{FORWARD}/encoder_1/block_1_1/attention_1/Gelu/mul", "encoder/block_1/attention"),
        (
            f"{BACKWARD}/encoder_1/block_1_1/attention_1/MatMul/MatMul_1",
            "encoder/block_1/attention",
        ),
        ("net_1/encoder_1/block_1_1/ArithmeticOptimizer/AddOpsRewrite_add", "encoder/block_1"),
        (
            f"ConstantFolding/{BACKWARD}/encoder_1/block_12_1/mul/BroadcastGradientArgs-0",
            "encoder/block_12",
        ),
        (f"{FORWARD}/dense_1/MatMul", "dense"),
        (f"{FORWARD}/dense_1_2/MatMul", "dense_1"),
        (f"{FORWARD}/shared_3/Relu", "shared"),
        (f"{BODY}/TensorArrayV2Read/TensorListGetItem", "lstm"),
        (f"{BODY}/lstm_cell_1/MatMul", "lstm/lstm_cell"),
        (LOOP_BACK, "lstm/lstm_cell"),
        ("StatefulPartitionedCall/adam/Add_2", ""),
        ("IteratorGetNext", ""),
    ],
)
def test_a_node_belongs_to_the_innermost_layer_whose_scope_it_was_made_in(name, path):
    record()
    assert path_of(name) == path


@pytest.mark.parametrize(
    "name", ["net/dense/MatMul", "net_1/dense_1/MatMul", "gradients/net/dense_7/MatMul_grad/MatMul"]
)
def test_without_a_record_a_number_at_the_end_of_a_scope_may_be_tensorflows(name):
    assert matcher("layer:dense")(name)
    assert matcher("layer:net/dense")(name)
    assert not matcher("layer:den")(name)
    assert not matcher("layer:net/MatMul/dense")(name)
    assert not matcher("layer:dense/dense")(name)


def test_the_pattern_for_a_scope_is_not_for_another_one_with_a_number():
    for scope in ("m/dense", "m/dense_1", "m-2/a.b"):
        is_for = matcher(scope_pattern(scope))
        assert is_for(f"{scope}/MatMul")
        assert is_for(f"StatefulPartitionedCall/gradient_tape/{scope}/MatMul/MatMul_1")
        assert is_for(f"{scope}/inner/Tanh")
        assert not is_for(f"{scope}_1/MatMul")
        assert not is_for(f"{scope}s/MatMul")


def test_a_scope_that_two_graphs_give_to_two_layers_is_found_by_both():
    record()
    recorded.record("net_1/dense_1", KerasLayer("dense_1", ("net", "dense_1")))
    assert matcher("layer:dense")("net_1/dense_1/MatMul")
    assert matcher("layer:dense_1")("net_1/dense_1/MatMul")


def test_the_record_is_bounded(monkeypatch):
    monkeypatch.setattr(layers, "_MOST", 3)
    record()
    assert recorded.paths() == ["shared", "lstm", "lstm/lstm_cell"]


def test_threads_may_record_and_read_at_once(monkeypatch):
    monkeypatch.setattr(layers, "_MOST", 50)
    interval = sys.getswitchinterval()

    def work(thread):
        for number in range(5_000):
            recorded.record(f"{thread}/{number}", KerasLayer(f"{number}", (f"{number}",)))
            if number % 100 == 0:
                assert len(recorded.paths()) <= 50

    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))
    finally:
        sys.setswitchinterval(interval)


SHARED = (
    "body",
    "cond",
    "while",
    "then",
    "else",
    "gradients",
    "branch0",
)  # names that TensorFlow's scopes have, too


@pytest.mark.parametrize("name", SHARED)
def test_a_layer_may_have_the_name_of_a_loop_a_branch_or_a_gradient(name):
    recorded.record("net_1", KerasLayer("net", ("net",)))
    recorded.record(
        f"net_1/{name}_1", KerasLayer(name, ("net", name))
    )  # as Keras 3 opens it in fit
    recorded.record(f"net_1/{name}", KerasLayer(name, ("net", name)))  # as tf_keras does
    for scope in (f"net_1/{name}_1", f"net_1/{name}"):
        forward = f"StatefulPartitionedCall/{scope}/MatMul"
        backward = f"StatefulPartitionedCall/gradient_tape/{scope}/MatMul/MatMul_1"
        assert path_of(forward) == path_of(backward) == name
        assert scope_of(forward) == scope
        assert [is_gradient(forward), is_gradient(backward)] == [False, True]
        assert innermost_scope(backward, {name, scope}) == scope
        assert matcher(f"layer:{name}")(forward)
        assert is_gradient(f"gradients/{scope}/MatMul_grad/MatMul")


@pytest.mark.parametrize("name", SHARED)
def test_such_a_layer_is_told_from_the_scopes_of_tensorflow_around_it(name):
    recorded.record("net", KerasLayer("net", ("net",)))
    recorded.record(f"net/{name}", KerasLayer(name, ("net", name)))
    recorded.record(f"net/{name}/while/cell", KerasLayer(f"{name}/cell", ("net", name, "cell")))
    inside = f"net/{name}/while/body/_12/net/{name}/while/cell/MatMul"
    beside = "net/rnn/while/body/_12/net/rnn/while/gradients/net/rnn/while/MatMul_grad/MatMul"
    branch = "net/rnn/cond/then/_3/net/rnn/cond/else/_5/net/rnn/cond/MatMul"
    assert path_of(inside) == f"{name}/cell"
    assert scope_of(inside) == f"net/{name}/net/{name}/cell"
    assert path_of(beside) == path_of(branch) == "net"
    assert is_gradient(beside)
    assert scope_of(branch) == "net/rnn/net/rnn/net/rnn"


@pytest.mark.parametrize("name", ["body", "then", "else", "gradients", "branch0"])
def test_a_layer_of_a_file_is_told_by_its_place_where_that_tells(name):
    assert scope_of(f"StatefulPartitionedCall/net/{name}/MatMul") == f"net/{name}"
    assert scope_of(
        f"StatefulPartitionedCall/net/{name}/cond/{name}/_7/net/{name}/cond/MatMul"
    ).endswith(f"net/{name}")
    assert not is_gradient(f"net/{name}/MatMul")
    assert is_gradient("train/gradients/net/dense/MatMul_grad/MatMul")


@pytest.mark.parametrize("name", ["while", "cond"])
def test_a_scope_of_a_file_that_may_be_a_layers_or_a_loops_is_found_as_both(name):
    assert matcher(f"layer:net/{name}")(f"net/{name}/MatMul")
    assert matcher("layer:net/cell")(f"net/{name}/cell/MatMul")
    assert not matcher(f"layer:net/{name}")(f"net/{name}/body/_4/net/cell/MatMul")


@pytest.mark.parametrize("is_recorded", [True, False])
def test_what_matched_nothing_is_told_with_the_closest_layer(is_recorded):
    if is_recorded:
        record()
    told = describe_unmatched(
        ("^loss$", "layer:encoder/blok_12", "layer:qqqq"), ["net_1/encoder_1/block_12_1/add"]
    )
    close = "encoder/block_12" if is_recorded else "encoder_1/block_12_1"
    assert told == f"^loss$, layer:encoder/blok_12 (did you mean layer:{close}?), layer:qqqq"


def test_a_layer_that_matched_no_node_is_not_proposed_for_itself():
    record()  # such a layer may have run only before these settings were in force
    assert describe_unmatched(["layer:block_12"], ["add"]) == "layer:block_12"


@pytest.mark.parametrize(
    ("name", "path", "belongs"),
    [
        ("m/dense_1/MatMul", "m/dense_1", True),
        ("m/dense_12/MatMul", "m/dense_1", False),
        ("StatefulPartitionedCall/m/dense_1/MatMul", "m/dense_1", True),
        ("gradient_tape/m/dense_1/MatMul/MatMul_1", "m/dense_1", True),
        ("gradient_tape/m/dense_12/MatMul/MatMul_1", "m/dense_1", False),
        ("gradients/dense_1/MatMul_grad/MatMul", "dense_1/MatMul", True),
        ("gradients/MatMul_grad/MatMul", "MatMul", True),
        ("m/encoder/dense/MatMul", "dense", True),
        ("m/encoder/dense/MatMul", "m/dense", False),
        ("m/rnn/while/body/_3/m/rnn/cell/MatMul", "m/rnn/cell", True),
    ],
)
def test_a_layer_has_its_own_nodes_and_their_gradients(name, path, belongs):
    assert (innermost_scope(name, {path}) == path) is belongs


def test_gradients_are_known_by_their_scope():
    assert is_gradient("StatefulPartitionedCall/gradient_tape/m/dense/MatMul/MatMul")
    assert is_gradient("gradients_1/m/dense/MatMul_grad/MatMul")
    assert not is_gradient("m/gradient_penalty/MatMul")
