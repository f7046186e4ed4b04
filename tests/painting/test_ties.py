"""Ties give one type to TensorLists, loops, maxima and what they are compared with."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from amp_tf.errors import GraphError
from amp_tf.painting.reasons import Code
from tests.painting.painted import painted, rewritten
from tests.small_graphs import function, run

pytestmark = pytest.mark.cpu_dependent

rng = np.random.default_rng(0)
local = pytest.mark.usefixtures("local_rules")


def loop(body: str, last: str) -> str:
    """A loop as Grappler sees it; ``m:0`` is the value that goes round, and ``last`` what becomes
    of it.
    """
    return f"""
        x = Placeholder()
        c = Placeholder() dtype=bool
        in0 = MatMul(x, x)
        e = Enter(in0) frame_name='f'
        m = Merge(e, n)
        l = LoopCond(c)
        s = Switch(m, l)
        {body}
        n = NextIteration({last})
        exit = Exit(s)
        out0 = MatMul(exit, exit)
    """


def test_a_dangerous_op_in_the_loop_keeps_both_ends_of_its_back_edge():
    result = painted(loop("deny1 = Exp(s:1)\ninfer1 = Sqrt(deny1)", "infer1"))
    assert {"n", "m", "deny1"}.isdisjoint(result.f16.split())
    assert {"in0", "out0"} <= set(result.f16.split())


def test_the_other_end_follows_although_it_has_no_reason_of_its_own():
    result = painted(
        loop("clr1 = Relu(s:1)\nother1 = Digamma(clr1)", "other1"), clear_remove=("NextIteration",)
    )
    assert "m" in result.f16.split()
    assert result.why("n") == (Code.LOOP_FOLLOWS, "")


def test_a_next_iteration_that_no_merge_reads_is_refused_with_the_place():
    text = "x = Placeholder()\na = MatMul(x, x)\nn = NextIteration(a)\nr = Relu(n)"
    with pytest.raises(GraphError) as caught:
        painted(text)
    assert str(caught.value) == (
        "node 'r': reads a NextIteration, which only a Merge may do, and is a Relu. "
        "The loop is broken; export the graph again."
    )


def test_loops_that_one_enter_starts_have_one_type_in_any_order_of_their_nodes():
    second = "m2 = Merge(e, n2)\ns2 = Switch(m2, l)\ndeny1 = Exp(s2:1)\nn2 = NextIteration(deny1)"
    lines = loop(f"allow1 = MatMul(s:1, s:1)\n{second}", "allow1").split("\n")
    for text in ("\n".join(lines), "\n".join(reversed(lines))):
        assert set(painted(text).f16.split()) == {"in0", "s", "allow1", "exit", "out0"}


def test_a_loop_whose_result_is_compared_with_its_start_is_float32_as_a_whole():
    text = loop("allow1 = MatMul(s:1, s:1)", "allow1").replace("Enter(in0)", "Enter(b)")
    text += "b = Const() value=float32[4]*1.3\nabove = Greater(exit, b)"
    assert painted(text, precision="bfloat16", keep_float32=("^above$",)).f16 == "in0 allow1 out0"


# ---------------------------------------------------------------- maxima

WINDOW = {"ksize": [1, 2, 2, 2, 1], "strides": [1, 2, 2, 2, 1], "padding": "VALID"}


def test_a_pooling_of_rounded_values_is_converted():
    def build():
        x = tf.matmul(
            tf.ones((512, 8)),
            tf.constant(rng.normal(size=(8, 16)).astype("float32")),
            name="values",
        )
        x = tf.reshape(x, (2, 8, 8, 8, 8))
        pooled = tf.raw_ops.MaxPool3D(input=x, name="pool", **WINDOW)
        y = tf.matmul(tf.reshape(pooled, (2, 512)), tf.ones((512, 4)), name="product")
        tf.identity(tf.gradients(y, x)[0], name="fetch")

    assert rewritten(build)[2]["pool"].precision.is_f16


def test_a_maximum_and_the_values_that_it_is_compared_with_are_rounded_alike():
    def build():
        x = tf.exp(tf.constant(rng.normal(size=(8, 64)).astype("float32")), name="values")
        largest = tf.reduce_max(x, 1, name="largest")
        y = tf.matmul(largest[None], tf.ones((8, 4)), name="product")
        tf.identity(tf.gradients(y, x)[0], name="fetch")

    for settings in (
        {},
        {"clear_remove": ("Equal",), "infer_add": ("Equal",)},
        {"clear_remove": ("Equal",)},
    ):
        old, new, nodes = rewritten(build, **settings)
        values = run(new, ["fetch"])[0]
        assert np.isfinite(values).all()  # none found is a division by zero
        np.testing.assert_array_equal(values > 0, run(old, ["fetch"])[0] > 0)
        assert nodes["product"].precision.is_f16


def test_a_rounding_before_both_a_maximum_and_its_values_does_not_excuse_another_of_one_alone():
    text = """
        x = Placeholder()
        c = Placeholder() dtype=bool
        allow1 = MatMul(x, x)
        rounded = SelectV2(c, allow1, x)
        carried = Identity(rounded)
        axis = Const() dtype=int32 value=int32[]*1
        largest = Max(carried, axis)
        same = Equal(largest, carried)
        allow2 = MatMul(largest, x)
        """
    for deny in ((), ("Equal",)):
        result = painted(text, precision="bfloat16", keep_float32=("^carried$",), deny_add=deny)
        f16 = set(result.f16.split())
        assert {"allow1", "allow2"} <= f16
        assert ("largest" in f16) == ("same" in f16)


def masks(x):
    best = tf.reduce_max(x, 1, keepdims=True)
    second = tf.math.top_k(x, 2).values[:, -1:]
    larger = tf.maximum(x, x)
    twice = tf.reshape(tf.stack([x, x], 1), (-1, x.shape[1]))[::2]
    before = tf.concat([x[:1], x[:-1]], 0)
    return {
        "equal to the largest": (tf.equal(x, best), best),
        "among the two largest": (x >= second, second),
        "below the largest": (tf.less(x, best), best),
        "above itself": (larger > x, larger),
        "above itself in a stack": (twice > x, twice),
        "above the row before": (x > before, before),
    }


@pytest.mark.parametrize("op", ["Abs", "Relu", "ReverseV2", "Tile"])
def test_what_is_compared_with_what_it_was_made_of_is_rounded_like_it(op):
    """x is below max(x, 0) where it is negative, and nowhere else."""
    result = painted(
        f"""
        x = Placeholder()
        how = Const() dtype=int32 value=int32[2]*1
        chosen = {op}({"x" if op in ("Abs", "Relu") else "x, how"})
        mask = Greater(chosen, x)
        product = MatMul(chosen, x)
        """,
        precision="bfloat16",
        target="cpu",
    )
    assert result.f16 == "product"
    assert result.code("chosen") is Code.COMPARED


@pytest.mark.parametrize("which", list(masks(tf.ones((2, 4)))))
@pytest.mark.parametrize("precision", ["float16", "bfloat16", "auto"])
def test_a_mask_of_the_largest_values_is_as_in_float32(which, precision):
    def build():
        x = tf.exp(tf.constant(rng.normal(size=(8, 64)).astype("float32")), name="values")
        mask, chosen = masks(x)[which]
        tf.cast(mask, tf.float32, name="fetch")
        tf.matmul(tf.broadcast_to(chosen, (8, 64)), tf.ones((64, 4)), name="product")

    old, new, nodes = rewritten(build, precision=precision, ignore_performance=True)
    np.testing.assert_array_equal(run(new, ["fetch"])[0], run(old, ["fetch"])[0])
    assert nodes["product"].precision.is_f16


# ---------------------------------------------------------------- TensorLists

BASE = """
    x = Placeholder()
    shape = Const() dtype=int32 value=int32[2]*4
    size = Const() dtype=int32 value=int32[]*2
    index = Const() dtype=int32 value=int32[]*0
    r = TensorListReserve(shape, size) element_dtype=float32 shape_type=int32
"""
SET_GET = """
    w = TensorListSetItem(r, index, {value}) element_dtype=float32
    g = TensorListGetItem(w, index, shape) element_dtype=float32
"""


@local
def test_a_list_with_a_node_that_must_stay_stays():
    text = BASE + SET_GET.format(value="x") + "allow1 = MatMul(g, g)"
    for settings in ({"preserve": ["g"]}, {"keep_float32": ("^w$",)}):
        result = painted(text, **settings)
        assert result.f16 == "allow1"
        assert result.why("r") == (Code.LIST_ESCAPES, "")


@local
@pytest.mark.parametrize(
    "boundary",
    [
        "p = PartitionedCall(w) Tin=[variant] Tout=[variant] f=h",
        "p = StatefulPartitionedCall(w) Tin=[variant] Tout=[variant] f=h",
        "p = OptionalFromValue(w) Toutput_types=[variant]",
        "p = h(w)",
        "p = StatelessWhile(w) T=[variant] cond=h body=h",
    ],
)
def test_a_list_that_leaves_the_graph_stays(boundary):
    library = function("function h(x: variant) -> (y: variant)\nreturn y = x")
    result = painted(
        BASE + SET_GET.format(value="x") + f"allow1 = MatMul(g, g)\n{boundary}", library
    )
    assert result.f16 == "allow1"
    assert result.why("g") == (Code.LIST_ESCAPES, "")
