"""Constants that are infinite or zero in 16 bit; in float16 squares, quotients and gradients of
roots.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import amp_tf
from amp_tf.oplists.hardware import Hardware
from amp_tf.painting.reasons import Code
from amp_tf.precision import Precision
from tests.left_out import differing, without
from tests.painting.painted import CPU, GPU, both, painted


@pytest.fixture(autouse=True)
def only_range():
    """Without what else decides by where values come from and where they go."""
    with without(differing("need", "origin")):
        yield


BF16_CPU = Hardware(cpu_has_bf16=True)
LOWEST = float(tf.float32.min)


def attention(masked) -> tf.compat.v1.GraphDef:
    """Products of 512 rows, with a mask over the scores; ``masked`` takes the scores and what is
    allowed.
    """
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, (8, 512, 64), name="x")
        allowed = tf.compat.v1.placeholder(tf.bool, (512, 512), name="allowed")
        scores = tf.matmul(x, x, transpose_b=True, name="scores")
        weights = tf.nn.softmax(tf.identity(masked(scores, allowed), name="masked"), name="softmax")
        tf.matmul(weights, x, name="result")
    return graph.as_graph_def(add_shapes=True)


def nodes(graph_def, **settings):
    result = amp_tf.rewrite(graph_def, amp_tf.AmpConfig(**settings), hardware=BF16_CPU)
    return result, {node.name: node for node in result.report.nodes}


def where(lowest):
    return lambda scores, allowed: tf.where(allowed, scores, lowest)


CELLS = np.array([[1, 2], [3, 4]], np.int64)
MASKS = {
    "where": where(LOWEST),
    "a sum": lambda scores, allowed: scores + tf.where(allowed, 0.0, LOWEST),
    "a fill": lambda scores, allowed: tf.where(allowed, scores, tf.fill([512, 512], LOWEST)),
    "a sparse sum": lambda scores, allowed: (
        scores + tf.sparse.to_dense(tf.SparseTensor(CELLS, tf.fill([2], LOWEST), (512, 512)))
    ),
    "a scattered sum": lambda scores, allowed: (
        scores + tf.scatter_nd(CELLS, tf.fill([2], LOWEST), (512, 512))
    ),
    "an update": lambda scores, allowed: (
        scores + tf.tensor_scatter_nd_update(tf.zeros((512, 512)), CELLS, tf.fill([2], LOWEST))
    ),
    "a diagonal": lambda scores, allowed: scores + tf.linalg.diag(tf.fill([512], LOWEST)),
    "a triangle": lambda scores, allowed: (
        scores + tf.linalg.band_part(tf.fill([512, 512], LOWEST), -1, 0)
    ),
    "an empty segment": lambda scores, allowed: (
        scores + tf.math.unsorted_segment_max(tf.ones((2,)), tf.constant([3, 4]), 512)
    ),
    "many values": lambda scores, allowed: (
        scores + np.where(np.eye(512), 0.0, LOWEST).astype("float32")
    ),
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_a_mask_of_the_lowest_float32_stays_in_float32_with_its_softmax(mask):
    _, found = nodes(attention(mask))
    assert found["softmax"].reason.code is Code.BEYOND_RANGE
    assert found["softmax"].reason.cause == "masked"
    assert found["scores"].reason.code is found["result"].reason.code is Code.ALLOW_LIST


@pytest.mark.parametrize("lowest", [-1e9, -np.inf, Precision.BFLOAT16.max_finite])
def test_a_mask_that_bfloat16_can_hold_is_converted(lowest):
    _, found = nodes(attention(where(lowest)))
    assert found["softmax"].reason.code.converts


@pytest.mark.parametrize("settings", [{"level": "UNSAFE_FORCE_ALL"}, {"force_f16": ("softmax",)}])
def test_who_forces_16_bit_gets_it(settings):
    _, found = nodes(attention(where(LOWEST)), precision="bfloat16", **settings)
    assert found["softmax"].precision.is_f16


def test_a_carrier_that_is_forced_says_so_and_carries_no_further():
    text = (
        "never = Const() value=float32[]*-1e9\nx = Placeholder()\ni = Const() dtype=int32 "
        "value=int32[1]*0\n"
    )
    text += "d = MatrixSetDiagV3(x, never, i)\na = MatMul(x, x)\ns = AddV2(a, d)\nb = MatMul(s, x)"
    assert painted(text).f16 == "a b"
    forced = painted(text, force_f16=("^d$",))
    assert forced.f16 == "d a s b"
    assert forced.code("d") is Code.FORCED_BY_NAME


def guarded(guard):
    """A logarithm of a product, kept from zero by ``guard``."""
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, (512, 512), name="x")
        odds = tf.sigmoid(tf.matmul(x, x, name="product"), name="odds")
        tf.matmul(tf.math.log(odds + guard, name="log"), x, name="result")
    return graph.as_graph_def(add_shapes=True)


TABLE = np.full(512, 1e-9, "float32")
GUARDS = {
    "one": 1e-8,
    "rounded to zero": 2.0**-25,
    "a row": TABLE,
    "different ones": TABLE * np.linspace(0, 9, 512, dtype="float32"),
}


@pytest.mark.parametrize("guard", GUARDS.values(), ids=GUARDS)
def test_a_guard_that_float16_makes_zero_stays(guard):
    _, found = nodes(guarded(guard), precision="float16", ignore_performance=True)
    assert found["log"].reason.code is Code.BEYOND_RANGE
    assert found["odds"].reason.code.converts


@pytest.mark.parametrize(
    "guard", [0.0, 1e-7, 2.0**-24, np.where(np.arange(512) == 7, 1.0, TABLE).astype("float32")]
)
def test_a_guard_that_float16_holds_is_converted(guard):
    _, found = nodes(guarded(guard), precision="float16", ignore_performance=True)
    assert found["log"].reason.code.converts
    _, found = nodes(guarded(1e-30), precision="bfloat16")
    assert found["log"].reason.code.converts


@pytest.mark.parametrize(
    ("precision", "bound", "is_held"),
    [
        ("float16", 0.999, True),
        ("bfloat16", 0.999, False),
        ("bfloat16", 0.99, True),
        ("bfloat16", 1.0, True),
    ],
)
def test_a_factor_close_to_one(precision, bound, is_held):
    with tf.Graph().as_default() as graph:
        scaled = tf.multiply(tf.matmul(tf.ones((64, 64)), tf.ones((64, 64))), bound, name="scaled")
        tf.matmul(scaled, tf.ones((64, 64)))
    _, found = nodes(graph.as_graph_def(add_shapes=True), precision=precision)
    assert found["scaled"].reason.code.converts is is_held


def test_a_broken_constant_is_no_extreme_one_and_stays_as_it_is():
    graph_def = attention(where(LOWEST))
    constant = next(
        node for node in graph_def.node if node.op == "Const" and node.attr["dtype"].type == 1
    )
    for break_it in (
        lambda: setattr(constant.attr["value"].tensor, "tensor_content", b"odd"),
        constant.attr.clear,
    ):
        break_it()
        constant.attr["dtype"].type = 1
        before = graph_def.SerializeToString(deterministic=True)
        _, found = nodes(graph_def)
        assert found["softmax"].reason.code.converts
        assert graph_def.SerializeToString(deterministic=True) == before


def into_a_product(make):
    """A product of what a constant makes, and one behind an addition."""
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, (64, 64), name="x")
        first = tf.matmul(*make(x), name="first")
        tf.matmul(tf.nn.relu(first) + 1.0, tf.fill((64, 64), 0.5), name="second")
        tf.identity(first, name="result")
    return graph.as_graph_def(add_shapes=True)


INTO_PRODUCTS = {
    "a constant": lambda x: (x, np.full((64, 64), -1e9, "float32")),
    "a fill": lambda x: (tf.fill(tf.shape(x), -1e9), x),
    "ones times it": lambda x: (tf.ones_like(x) * -1e9, x),
    "a broadcast": lambda x: (tf.broadcast_to(-1e9, (64, 64)), tf.transpose(x)),
    "data times it": lambda x: (x, tf.reshape(x * 1e-8, (64, 64))),
    "one of two": lambda x: (tf.where(x > 0.5, 0.0, 1e9), x),
    "a part": lambda x: (x, tf.concat([x[:32], tf.fill((32, 64), -1e9)], axis=0)),
}


def run_with(graph, x):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.import_graph_def(graph, name="")
        return session.run("result:0", {"x:0": x})


@pytest.mark.parametrize("make", INTO_PRODUCTS.values(), ids=INTO_PRODUCTS)
def test_a_constant_beyond_the_range_that_goes_straight_into_a_product_keeps_it(make):
    graph_def = into_a_product(make)
    converted, found = nodes(graph_def, precision="float16", ignore_performance=True)
    assert found["first"].reason.code is Code.BEYOND_RANGE
    assert found["second"].reason.code is Code.ALLOW_LIST
    x = np.random.default_rng(0).uniform(size=(64, 64)).astype("float32")
    expected = run_with(graph_def, x)
    assert expected.any()
    np.testing.assert_array_equal(run_with(converted.graph, x), expected)


def test_a_guard_that_is_added_or_a_bound_keeps_no_product():
    def guarded_by(x):
        return tf.maximum(x, 1e-8) + 1e-8, x * (1 - 1e-7)

    _, found = nodes(into_a_product(guarded_by), precision="float16", ignore_performance=True)
    assert found["first"].reason.code is Code.ALLOW_LIST


# ---------------------------------------------------------------- squares and quotients

INPUT = "x = Placeholder()\ny = Placeholder()\na = MatMul(x, y)\n"
MOVED = (
    "multiples = Const() dtype=int32 value=int32[2]*4\ncount = Const() value=float32[]*8\ng = "
    "RsqrtGrad(x, a)\n"
    "moved = Tile(g, multiples)\nscaled = RealDiv(moved, count)\nm = Mul(scaled, {})\nb = "
    "MatMul(m, y)"
)
#: The graph, what leaves float16's range, and what becomes 16 bit in bfloat16.
SQUARES = {
    "a square": ("s = Mul(a, a)\nb = MatMul(s, y)", "s", "a s b"),
    "a product of two values does not": ("s = Mul(a, y)\nb = MatMul(s, y)", "", "a s b"),
    "a quotient": ("q = RealDiv(a, y)\nb = MatMul(q, y)", "q", "a q b"),
    "a quotient by a constant does not": (
        "eight = Const() value=float32[]*8\nq = RealDiv(a, eight)\nb = MatMul(q, y)",
        "",
        "a q b",
    ),
    # that of a root of 1e-3 is 16 times as large; times 1e-3 it is in range again, but not if it
    # was cast
    "what reads the gradient of a root": (
        "g = SqrtGrad(x, a)\nm = Mul(g, a)\nb = MatMul(m, y)",
        "m",
        "a m b",
    ),
    # in the gradient of RMSNorm: the gradient of a mean tiles it and divides it by a count
    "also once it was moved and multiplied by a constant": (MOVED.format("a"), "scaled m", "a m b"),
    "whatever reads it then": (MOVED.format("y"), "scaled m", None),
}


@pytest.mark.parametrize(("text", "left", "bfloat16"), SQUARES.values(), ids=SQUARES)
def test_squares_and_quotients_are_float32_in_float16_alone(text, left, bfloat16):
    result = painted(INPUT + text, **GPU)
    assert {result.code(name) for name in left.split()} == ({Code.LEAVES_RANGE} if left else set())
    assert left or result.f16 == bfloat16
    assert bfloat16 is None or painted(INPUT + text, **CPU).f16 == bfloat16


@both
def test_what_reads_an_op_that_gives_the_lowest_float32_is_float32(settings):
    """As a sampled softmax does, for samples that are among the true classes."""
    text = (
        "x = Placeholder()\ntrue = Placeholder() dtype=int64\nsampled = Placeholder() "
        "dtype=int64\na = MatMul(x, x)\n"
        "hits = ComputeAccidentalHits(true, sampled) num_true=1\ns = AddV2(a, hits:2)\nb = "
        "MatMul(s, x)"
    )
    assert painted(text, **settings).why("s") == (Code.BEYOND_RANGE, "hits")
