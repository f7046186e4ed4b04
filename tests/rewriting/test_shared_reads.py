"""Reads of one variable share a cast where no write can come between, and no others do."""

from __future__ import annotations

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

import amp_tf
from amp_tf.graph.edits import Edits
from amp_tf.reporting import process
from tests.small_graphs import graph

BF16 = amp_tf.AmpConfig(precision="bfloat16", target="cpu")
X = "x = Placeholder()\nv = VarHandleOp()\n"


def casts(text: str, config: amp_tf.AmpConfig = BF16) -> list[str]:
    """The names of the nodes that are cast, of reads."""
    result = amp_tf.rewrite(graph(X + text), config)
    again = amp_tf.rewrite(result.graph, config)
    assert not again.changed
    sources = [node.input[0] for node in result.graph.node if node.op == "Cast"]
    return [name for name in sources if name.startswith("r")]


def test_reads_that_wait_for_nothing_are_cast_once():
    text = "r1 = ReadVariableOp(v)\nr2 = ReadVariableOp(v)\na = MatMul(x, r1)\nb = MatMul(a, r2)\nout = Exp(b)"
    assert casts(text) == ["r1"]


def test_a_read_behind_a_write_keeps_its_own():
    text = (
        "r1 = ReadVariableOp(v)\na = MatMul(x, r1)\nw = AssignVariableOp(v, x) ^r1\n"
        "r2 = ReadVariableOp(v) ^w\nb = MatMul(a, r2)\nout = Exp(b)"
    )
    assert casts(text) == ["r1", "r2"]


def test_reads_on_other_devices_and_of_other_variables_keep_their_own():
    text = (
        "u = VarHandleOp()\nr1 = ReadVariableOp(v)\nr2 = ReadVariableOp(u)\n"
        "r3 = ReadVariableOp(v) @/device:CPU:1\na = MatMul(x, r1)\nb = MatMul(a, r2)\nc = MatMul(b, r3)\nout = Exp(c)"
    )
    assert casts(text) == ["r1", "r2", "r3"]


def test_reads_that_no_product_reads_stay_as_they_are():
    text = "r1 = ReadVariableOp(v)\nr2 = ReadVariableOp(v)\na = Exp(r1)\nb = Exp(r2)\nm = MatMul(x, x)\nout = Exp(m)"
    result = amp_tf.rewrite(graph(X + text), BF16)
    inputs = {node.name: list(node.input) for node in result.graph.node}
    assert inputs["a"] == ["r1"]
    assert inputs["b"] == ["r2"]


def test_where_nothing_becomes_16_bit_nothing_is_shared():
    text = "r1 = ReadVariableOp(v)\nr2 = ReadVariableOp(v)\na = MatMul(x, r1)\nb = MatMul(a, r2)\nout = Exp(b)"
    assert not amp_tf.rewrite(graph(X + text), amp_tf.AmpConfig(precision="bfloat16", keep_float32=("^[ab]$",))).changed


@pytest.fixture
def cell_of_12_steps() -> keras.Model:
    keras.utils.set_random_seed(1)
    inputs = keras.Input((12, 8))
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.LSTM(16, unroll=True)(inputs)))
    model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=False)
    return model


def test_an_unrolled_cell_casts_each_weight_once(cell_of_12_steps: keras.Model):
    """It was 12 casts for each of two kernels and a bias."""
    process.reset()
    x, y = np.ones((4, 12, 8), np.float32), np.ones((4, 1), np.float32)
    with amp_tf.enable(BF16):
        cell_of_12_steps.train_on_batch(x, y)
        step = max(amp_tf.report().graphs, key=lambda one: one.total)
    assert step.converted > 300
    assert step.casts < 50


def test_updates_inside_of_a_step_are_seen():
    """Two steps in one call: the second one's products read what the first one wrote."""
    variable = tf.Variable(np.eye(8, dtype=np.float32))

    @tf.function
    def steps(x):
        for factor in (2.0, 3.0):
            x = tf.matmul(tf.matmul(x, variable), variable)
            variable.assign(variable * factor)
        return x

    x = np.ones((4, 8), np.float32)
    with amp_tf.enable(BF16):
        np.testing.assert_allclose(steps(x).numpy(), 4.0 * x)  # exact: all are powers of two
    np.testing.assert_allclose(variable.numpy(), 6.0 * np.eye(8))


TWICE = (
    X
    + """
b = VarHandleOp()
r1 = ReadVariableOp(v)
r2 = ReadVariableOp(v)
b1 = ReadVariableOp(b)
b2 = ReadVariableOp(b)
one = _FusedMatMul(x, r1, b1) num_args=1 fused_ops=['BiasAdd']
two = _FusedMatMul(one, r2, b2) num_args=1 fused_ops=['BiasAdd']
left = Sub(one, two)
out = MatMul(left, x)
"""
)


def test_what_reads_a_shared_variable_can_be_split_as_well():
    inputs = {node.name: list(node.input) for node in amp_tf.rewrite(graph(TWICE), BF16).graph.node}
    assert inputs["one"] == ["one-MatMul-0-AmpTfSplit-0-CastToFp32-0-AutoMixedPrecision", "b1"]
    assert inputs["two"] == ["two-MatMul-0-AmpTfSplit-0-CastToFp32-0-AutoMixedPrecision", "b1"]


def test_verification_finds_changes_that_are_put_together_wrongly(monkeypatch):
    def together(edits, later):
        names = [field.name for field in dataclasses.fields(Edits)]
        return Edits(*(getattr(edits, name) + getattr(later, name) for name in names))

    monkeypatch.setattr(Edits, "then", together)
    with pytest.raises(amp_tf.RewriteError, match=r"did not pass verification: inputs kept: input 1 of 'two'"):
        amp_tf.rewrite(graph(TWICE.replace("r2, b2", "r2, b1")), BF16)
