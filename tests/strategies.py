"""Hypothesis strategies that several test files share."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping

import numpy as np
import tensorflow as tf
from hypothesis import strategies as st
from tensorflow.python.ops import control_flow_util, while_loop

from tests.parity.random_graphs import RandomGraph, random_graph

GraphDef = tf.compat.v1.GraphDef


@st.composite
def random_graphs(draw: st.DrawFn, max_nodes: int = 30, with_knobs: bool = True) -> RandomGraph:
    """Well-typed graphs over the ops of the lists; they say nothing about shapes and cannot run."""
    return random_graph(lambda n: draw(st.integers(0, n - 1)), max_nodes=max_nodes, with_knobs=with_knobs)


@dataclasses.dataclass(frozen=True)
class RunnableGraph:
    """A graph that runs, with its fetches and the values to feed.

    Attributes:
        depth: how many ops there are; rounding errors grow with it at most linearly, because every op is built so that
            it does not enlarge an error of its inputs by more than a small factor, and all values stay in [-1, 1].
    """

    graph_def: GraphDef
    fetch: tuple[str, ...]
    feeds: Mapping[str, np.ndarray]
    depth: int


_N = 4
_UNARY = ("Relu", "Tanh", "Sigmoid", "Neg", "Identity", "Abs", "Softsign", "Transpose", "Exp", "Sum", "Reshape", "List")
_BINARY = ("MatMul", "MatMul", "MatMul", "AddV2", "Mul", "Maximum", "Minimum", "Sub", "Pack", "Einsum", "Loop")


@st.composite
def runnable_graphs(draw: st.DrawFn) -> RunnableGraph:
    """Graphs of 4 × 4 matrices with products, sensitive ops, reshapes, lists and loops, all values within [-1, 1]."""
    seed = draw(st.integers(0, 2**16))
    names = draw(st.lists(st.sampled_from(_UNARY + _BINARY), min_size=3, max_size=14))
    with tf.Graph().as_default() as graph, lowered_control_flow():
        values = [tf.compat.v1.placeholder(tf.float32, [_N, _N], name=f"x{i}") for i in range(2)]
        for name in names:
            first = values[-1 - draw(st.integers(0, min(2, len(values) - 1)))]
            second = values[draw(st.integers(0, len(values) - 1))]
            values.append(_bounded(name, first, second))
        fetch = tf.identity(values[-1], name="fetch")
    random = np.random.default_rng(seed)
    feeds = {f"x{i}:0": random.uniform(-1, 1, (_N, _N)).astype(np.float32) for i in range(2)}
    return RunnableGraph(graph.as_graph_def(), (fetch.op.name,), feeds, len(names))


@contextlib.contextmanager
def lowered_control_flow() -> Iterator[None]:
    """Loops made inside come as Enter, Merge, Switch …, the form that Grappler sees, not as one While."""
    before = control_flow_util.ENABLE_CONTROL_FLOW_V2
    control_flow_util.ENABLE_CONTROL_FLOW_V2 = False
    try:
        yield
    finally:
        control_flow_util.ENABLE_CONTROL_FLOW_V2 = before


def _bounded(op: str, a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """One op, scaled so that inputs in [-1, 1] give outputs in [-1, 1]."""
    raw = tf.raw_ops
    table = {
        "Relu": lambda: tf.nn.relu(a),
        "Tanh": lambda: tf.tanh(a),
        "Sigmoid": lambda: tf.sigmoid(a),
        "Neg": lambda: -a,
        "Identity": lambda: tf.identity(a),
        "Abs": lambda: tf.abs(a),
        "Softsign": lambda: tf.nn.softsign(a),
        "Transpose": lambda: tf.transpose(a),
        "Exp": lambda: tf.exp(a) * 0.25,
        "Sum": lambda: a * tf.reduce_sum(a, keepdims=True) / _N**2,
        "Reshape": lambda: tf.reshape(tf.reshape(a, [-1]), [_N, _N]),
        "MatMul": lambda: tf.matmul(a, b) / _N,
        "Einsum": lambda: tf.einsum("ij,kj->ik", a, b) / _N,
        "AddV2": lambda: (a + b) / 2,
        "Sub": lambda: (a - b) / 2,
        "Mul": lambda: a * b,
        "Maximum": lambda: tf.maximum(a, b),
        "Minimum": lambda: tf.minimum(a, b),
        "Pack": lambda: tf.unstack(tf.stack([a, b]))[1],
        "List": lambda: _through_a_list(a, raw),
        "Loop": lambda: _loop(a, b),
    }
    return table[op]()


def _through_a_list(a: tf.Tensor, raw) -> tf.Tensor:
    shape = tf.constant([_N], name="row_shape")
    handle = raw.TensorListFromTensor(tensor=a, element_shape=shape)
    return raw.TensorListStack(input_handle=handle, element_shape=shape, element_dtype=tf.float32, num_elements=_N)


def _loop(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """Two steps of a loop."""
    _, result = while_loop.while_loop(
        lambda i, x: i < 2, lambda i, x: (i + 1, tf.matmul(tf.nn.relu(x), b) / _N), [0, a]
    )
    return result
