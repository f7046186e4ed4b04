"""Layers by the names of their nodes; what a report calls a layer is tested with the report."""

from __future__ import annotations

import pytest

from amp_tf.graph.layers import is_gradient, is_within, scope_of


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("StatefulPartitionedCall/functional_1/block/dense_1/MatMul", "functional_1/block/dense_1"),
        ("functional_1/rnn/while/body/_12/cell/MatMul", "functional_1/rnn/cell"),
        ("StatefulPartitionedCall/MatMul_1", "MatMul_1"),
    ],
)
def test_the_innermost_layer_of_a_forward_node(name: str, path: str) -> None:
    assert scope_of(name) == path


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
def test_a_layer_has_its_own_nodes_and_their_gradients(name: str, path: str, belongs: bool) -> None:
    assert is_within(name, path) is belongs


def test_gradients_are_known_by_their_scope() -> None:
    assert is_gradient("StatefulPartitionedCall/gradient_tape/m/dense/MatMul/MatMul")
    assert is_gradient("gradients_1/m/dense/MatMul_grad/MatMul")
    assert not is_gradient("m/gradient_penalty/MatMul")
