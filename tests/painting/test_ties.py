"""Ties give one type to TensorLists, loops, maxima and what they are compared with."""

from __future__ import annotations

import numpy as np
import pytest

from amp_tf.errors import GraphError
from amp_tf.painting.reasons import Code
from tests.painting.painted import CPU, fetched, painted, rewritten
from tests.small_graphs import function

pytestmark = pytest.mark.cpu_dependent

X = np.random.default_rng(0).normal(size=(8, 64)).astype("float32")
local = pytest.mark.usefixtures("local_rules")


def loop(body, last):
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


def test_a_pooling_of_rounded_values_is_converted():
    window = "ksize=[1, 2, 2, 2, 1] strides=[1, 2, 2, 2, 1] padding='VALID'"
    nodes = rewritten(f"""
        a = Placeholder() shape=[512, 8]
        b = Placeholder() shape=[8, 16]
        images = Placeholder() shape=[2, 8, 8, 8, 8]
        w = Placeholder() shape=[512, 4]
        deep = Shape(images) out_type=int32
        two = Const() dtype=int32 value=int32[]*2
        all = Const() dtype=int32 value=int32[]*512
        flat = Pack(two, all) T=int32
        values = MatMul(a, b)
        x = Reshape(values, deep)
        pool = MaxPool3D(x) {window}
        rows = Reshape(pool, flat)
        product = MatMul(rows, w)
        ones = Const() value=float32[2, 4]*1
        back = MatMul(ones, w) transpose_b=true
        small = Shape(pool) out_type=int32
        gradient = Reshape(back, small)
        fetch = MaxPool3DGrad(x, pool, gradient) {window}
    """)[2]
    assert nodes["pool"].precision.is_f16


EXPONENTIALS = """
    x = Placeholder() shape=[8, 64]
    values = Exp(x)
    axis = Const() dtype=int32 value=int32[]*1
"""


@pytest.mark.parametrize(
    "settings",
    [{}, {"clear_remove": ("Equal",), "infer_add": ("Equal",)}, {"clear_remove": ("Equal",)}],
)
def test_a_maximum_and_the_values_that_it_is_compared_with_are_rounded_alike(settings):
    """As in the gradient of a maximum, which divides by how many values it finds."""
    text = f"""
        {EXPONENTIALS}
        w = Placeholder() shape=[8, 4]
        first = Const() dtype=int32 value=int32[]*0
        largest = Max(values, axis)
        row = ExpandDims(largest, first)
        product = MatMul(row, w)
        column = ExpandDims(largest, axis)
        found = Equal(column, values)
        mask = Cast(found) SrcT=bool DstT=float32
        count = Sum(mask, axis) keep_dims=true
        fetch = RealDiv(mask, count)
    """
    old, new, nodes = rewritten(text, **settings)
    shares = fetched(new, x=X)
    assert np.isfinite(shares).all()  # none found is a division by zero
    np.testing.assert_array_equal(shares > 0, fetched(old, x=X) > 0)
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


@pytest.mark.parametrize(
    ("op", "why"),
    [
        ("Abs", Code.COMPARED),
        ("Relu", Code.COMPARED),
        ("ReverseV2", Code.CARRIED),
        ("Tile", Code.CARRIED),
    ],
)
def test_what_is_compared_with_what_it_was_made_of_is_rounded_like_it(op, why):
    """x is below max(x, 0) where it is negative, and nowhere else.

    Ops that only arrange x stay float32 already because the comparison reads x in float32.
    """
    inputs = "x" if op in ("Abs", "Relu") else "x, how"
    text = f"""
        x = Placeholder()
        how = Const() dtype=int32 value=int32[2]*1
        chosen = {op}({inputs})
        mask = Greater(chosen, x)
        product = MatMul(chosen, x)
    """
    result = painted(text, **CPU)
    assert result.f16 == "product"
    assert result.code("chosen") is why


LARGEST = "chosen = Max(values, axis) keep_dims=true"
#: Comparisons of values with their largest.
MASKS = {
    "equal to the largest": f"{LARGEST}\nmask = Equal(values, chosen)",
    "among the two largest": """
        two = Const() dtype=int32 value=int32[]*2
        best = TopKV2(values, two) T=float32 Tk=int32 index_type=int32
        chosen = Min(best, axis) keep_dims=true
        mask = GreaterEqual(values, chosen)
    """,
    "below the largest": f"{LARGEST}\nmask = Less(values, chosen)",
    "above itself": "chosen = Maximum(values, values)\nmask = Greater(chosen, values)",
    "above itself in a stack": """
        stack = Pack(values, values)
        both = Unpack(stack) num=2
        chosen = Identity(both:1)
        mask = Greater(chosen, values)
    """,
    "above the mirrored row": """
        axes = Const() dtype=int32 value=int32[1]*0
        chosen = ReverseV2(values, axes) Tidx=int32
        mask = Greater(values, chosen)
    """,
}


@pytest.mark.parametrize("lines", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("precision", ["float16", "bfloat16", "auto"])
def test_a_mask_of_the_largest_values_is_as_in_float32(lines, precision):
    text = f"""
        {EXPONENTIALS}
        w = Placeholder() shape=[64, 4]
        {lines}
        fetch = Cast(mask) SrcT=bool DstT=float32
        all = Shape(values) out_type=int32
        spread = BroadcastTo(chosen, all)
        product = MatMul(spread, w)
    """
    old, new, nodes = rewritten(text, precision=precision, ignore_performance=True)
    np.testing.assert_array_equal(fetched(new, x=X), fetched(old, x=X))
    assert nodes["product"].precision.is_f16


@pytest.mark.parametrize("count", [7, 70])
def test_a_maximum_of_a_stack_is_found_in_it_however_many_values_it_has(count):
    parts = [f"x{number}" for number in range(count)]
    given = "\n".join(f"{part} = Placeholder()" for part in parts)
    result = painted(
        f"""
        {given}
        axis = Const() dtype=int32 value=int32[]*0
        stack = Pack({", ".join(parts)}) N={count}
        largest = Max(stack, axis)
        mask = Equal(largest, stack)
        product = MatMul(largest, x0)
        """,
        keep_float32=("^stack$",),
        **CPU,
    )
    assert result.f16 == "product"
    assert result.code("largest") is Code.COMPARED


@pytest.mark.parametrize(
    "largest",
    [
        "SegmentMax(values, ids) Tindices=int32",
        "SegmentMin(values, ids) Tindices=int32",
    ],
)
def test_the_maxima_of_segments_are_compared_unrounded(largest):
    """As in their gradient, which gathers them for their members: the gather only arranges them,
    and the comparison reads it in float32.
    """
    result = painted(
        f"""
        values = Placeholder()
        axis = Const() dtype=int32 value=int32[]*0
        ids = Placeholder() dtype=int32
        largest = {largest}
        gathered = GatherV2(largest, ids, axis) Tindices=int32 Taxis=int32
        mask = Equal(values, gathered)
        product = MatMul(gathered, values)
        """,
        **CPU,
    )
    assert result.f16 == "product"
    assert result.code("gathered") is Code.CARRIED


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
    text = BASE + SET_GET.format(value="x") + f"allow1 = MatMul(g, g)\n{boundary}"
    result = painted(text, library)
    assert result.f16 == "allow1"
    assert result.why("g") == (Code.LIST_ESCAPES, "")
