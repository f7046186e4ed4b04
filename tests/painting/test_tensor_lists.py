from __future__ import annotations

import pytest

from amp_tf.painting.reasons import Rule
from tests.painting.painted import painted
from tests.small_graphs import function

pytestmark = pytest.mark.usefixtures("local_rules")

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


def lists(f16: str) -> list[str]:
    return [name for name in f16.split() if name in ("r", "w", "g")]


def test_a_list_between_products_is_converted_with_all_its_nodes():
    result = painted(BASE + "allow1 = MatMul(x, x)" + SET_GET.format(value="allow1") + "allow2 = MatMul(g, g)")
    assert lists(result.f16) == ["r", "w", "g"]
    assert result.rule("r") is Rule.LIST_FOLLOWS
    assert result.why("r")[1] in ("w", "g")


def test_the_value_flows_from_writer_to_reader_although_the_graph_shows_no_such_edge():
    result = painted(
        BASE + "deny1 = Exp(x)" + SET_GET.format(value="deny1") + "infer1 = Sqrt(g)\na = MatMul(infer1, x)"
    )
    assert result.why("g") == (Rule.AFTER_DENY, "w")
    assert result.why("infer1") == (Rule.AFTER_DENY, "g")


def test_one_dangerous_writer_keeps_the_whole_list():
    text = (
        BASE + "allow1 = MatMul(x, x)\ndeny1 = Exp(x)\nw0 = TensorListSetItem(r, index, allow1) element_dtype=float32"
    )
    text += SET_GET.format(value="deny1").replace("(r,", "(w0,") + "infer1 = Sqrt(g)\nallow2 = MatMul(infer1, x)"
    result = painted(text)
    assert lists(result.f16) == []
    assert "w0" not in result.f16.split()
    assert result.rule("w0") is Rule.LIST_DENIED
    assert result.why("w0")[1] in ("w", "g")


def test_a_list_next_to_nothing_that_is_converted_stays():
    result = painted(BASE + SET_GET.format(value="x") + "other1 = Sin(g)\nallow1 = MatMul(x, x)")
    assert result.f16 == "allow1"


def test_two_lists_are_decided_apart():
    text = BASE + SET_GET.format(value="x") + "allow1 = MatMul(g, g)\n"
    text += "r2 = TensorListReserve(shape, size) element_dtype=float32 shape_type=int32\n"
    text += "g2 = TensorListGetItem(r2, index, shape) element_dtype=float32\nother1 = Sin(g2)"
    assert painted(text).f16 == "r w g allow1"


def test_a_list_with_a_node_that_must_stay_stays():
    text = BASE + SET_GET.format(value="x") + "allow1 = MatMul(g, g)"
    for settings in ({"preserve": ["g"]}, {"keep_float32": ("^w$",)}):
        result = painted(text, **settings)
        assert result.f16 == "allow1"
        assert result.why("r") == (Rule.LIST_ESCAPES, "")


def test_a_list_with_a_node_on_another_device_stays():
    text = BASE + SET_GET.format(value="x").replace(
        "element_dtype=float32\n    g", "element_dtype=float32 @/gpu:0\n    g"
    )
    assert painted(text + "allow1 = MatMul(g, g)").f16 == "allow1"


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
    result = painted(BASE + SET_GET.format(value="x") + f"allow1 = MatMul(g, g)\n{boundary}", library)
    assert result.f16 == "allow1"
    assert result.why("g") == (Rule.LIST_ESCAPES, "")


def test_a_list_that_comes_in_as_an_argument_stays():
    result = painted(
        """
        function f(l: variant, i: int32, s: int32) -> (y: float32)
          g = TensorListGetItem(l, i, s) element_dtype=float32
          allow1 = MatMul(g:item:0, g:item:0)
          return y = allow1:product:0
        """
    )
    assert result.f16 == "allow1"
    assert result.why("g") == (Rule.LIST_ESCAPES, "")


def test_danger_spreads_from_a_list_op_on_the_deny_list_that_may_not_be_touched():
    text = BASE + SET_GET.format(value="x") + "clr1 = Relu(g)\ninfer1 = Sqrt(clr1)\nallow1 = MatMul(clr1, infer1)"
    changes = {"clear_remove": ("TensorListGetItem",), "deny_add": ("TensorListGetItem",)}
    elsewhere = text.replace("g = TensorListGetItem(w, index, shape)", "g = TensorListGetItem(w, index, shape) @/gpu:0")
    assert painted(elsewhere, **changes).why("clr1") == (Rule.AFTER_DENY, "g")
    assert painted(text + "\np = OptionalFromValue(w) Toutput_types=[variant]", **changes).f16 == "clr1 allow1"


@pytest.mark.usefixtures("local_rules")
def test_a_list_op_on_the_allow_list_attracts_its_neighbours_although_its_list_stays():
    # As in TensorFlow, and of no use: only a setting can put a list op there.
    result = painted(
        "l = Placeholder() dtype=variant\ni = Placeholder() dtype=int32\n"
        "g = TensorListGetItem(l, i, i) element_dtype=float32\nclr1 = Relu(g)",
        clear_remove=("TensorListGetItem",),
        allow_add=("TensorListGetItem",),
    )
    assert result.f16 == "clr1"
    assert result.why("g") == (Rule.LIST_DENIED, "")


def test_a_list_may_pass_through_ops_that_only_hand_it_on():
    text = BASE + SET_GET.format(value="x").replace("(w,", "(i,") + "i = Identity(w) T=variant\nallow1 = MatMul(g, g)"
    assert lists(painted(text).f16) == ["r", "w", "g"]


def test_a_list_of_another_type_is_left_alone():
    text = BASE.replace("element_dtype=float32", "element_dtype=int32") + (
        "g = TensorListGetItem(r, index, shape) element_dtype=int32\nallow1 = MatMul(x, x)"
    )
    result = painted(text)
    assert result.f16 == "allow1"
    assert result.rule("g") is Rule.NO_FLOAT32


def test_a_list_in_a_loop_is_one_list():
    text = (
        BASE
        + """
        c = Placeholder() dtype=bool
        l = LoopCond(c)
        e = Enter(r) T=variant frame_name='f'
        m = Merge(e, n) T=variant
        s = Switch(m, l) T=variant
        xe = Enter(x) frame_name='f'
        allow1 = MatMul(xe, xe)
        w = TensorListSetItem(s:1, index, allow1) element_dtype=float32
        n = NextIteration(w) T=variant
        exit = Exit(s) T=variant
        g = TensorListStack(exit, shape) element_dtype=float32
        allow2 = MatMul(g, g)
    """
    )
    result = painted(text)
    assert lists(result.f16) == ["r", "w", "g"]


def test_an_infer_node_that_reads_a_denied_list_and_a_product_stays():
    # g reads the list before the dangerous value is written: it is denied for the list's sake alone.
    text = (
        BASE
        + """
        allow1 = MatMul(x, x)
        w0 = TensorListSetItem(r, index, allow1) element_dtype=float32
        g = TensorListGetItem(w0, index, shape) element_dtype=float32
        deny1 = Exp(x)
        w = TensorListSetItem(w0, index, deny1) element_dtype=float32
        last = TensorListGetItem(w, index, shape) element_dtype=float32
        infer1 = Sqrt(last)
        infer2 = AddV2(allow1, g)
        clr1 = Relu(g)
    """
    )
    result = painted(text)
    assert result.f16 == "allow1"
    assert result.why("last") == (Rule.AFTER_DENY, "w")
    assert result.rule("g") is Rule.LIST_DENIED
