"""Each rule on the smallest graph that shows it. Node names say which list the op is on."""

from __future__ import annotations

import pytest

from amp_tf.painting.reasons import Rule
from tests.painting.painted import painted

pytestmark = pytest.mark.usefixtures("local_rules")

INPUT = "x = Placeholder()\n"


def test_an_allow_list_node_is_converted_and_its_input_is_not():
    result = painted(INPUT + "allow1 = MatMul(x, x)")
    assert result.f16 == "allow1"
    assert result.why("allow1") == (Rule.ALLOW_LIST, "")
    assert result.why("x") == (Rule.NOT_LISTED, "")


def test_an_allow_list_node_of_another_type_is_left_alone():
    result = painted("x = Placeholder() dtype=int32\nallow1 = MatMul(x, x) T=int32\ny = Placeholder()\nr = Relu(y)")
    assert result.f16 == ""
    assert result.rule("allow1") is Rule.NO_FLOAT32


DENY_CHAIN = """
    x = Placeholder()
    deny1 = Exp(x)
    infer1 = Sqrt(deny1)
    clr1 = Relu(infer1)
    infer2 = Sqrt(clr1)
    clr2 = Relu(infer2)
    allow1 = MatMul(clr2, clr2)
    infer3 = Sqrt(allow1)
"""


def test_deny_runs_forward_up_to_the_last_infer_node():
    result = painted(DENY_CHAIN)
    assert result.f16 == "clr2 allow1 infer3"
    assert result.why("deny1") == (Rule.DENY_LIST, "")
    assert [result.why(name) for name in ("infer1", "clr1", "infer2")] == [
        (Rule.AFTER_DENY, "deny1"),
        (Rule.AFTER_DENY, "infer1"),
        (Rule.AFTER_DENY, "clr1"),
    ]
    assert result.why("clr2") == (Rule.BESIDE_ALLOW, "allow1")
    assert result.why("infer3") == (Rule.AFTER_ALLOW, "allow1")


def test_the_trail_leads_back_to_where_the_decision_began():
    result = painted(DENY_CHAIN)
    names = result.painting.view.names
    assert result.painting.trail(names.index("infer2")) == ["infer2", "clr1", "infer1", "deny1"]
    assert result.painting.trail(names.index("clr2")) == ["clr2", "allow1"]
    assert result.painting.trail(names.index("x")) == ["x"]


def test_deny_does_not_run_backward():
    result = painted(INPUT + "allow1 = MatMul(x, x)\ninfer1 = Sqrt(allow1)\ndeny1 = Exp(infer1)")
    assert result.f16 == "allow1 infer1"


def test_deny_does_not_run_through_an_allow_list_node():
    result = painted(INPUT + "deny1 = Exp(x)\nallow1 = MatMul(deny1, deny1)\ninfer1 = Sqrt(allow1)")
    assert result.f16 == "allow1 infer1"


def test_deny_runs_through_a_clear_node_only_if_an_infer_or_deny_node_follows():
    followed = painted(INPUT + "deny1 = Exp(x)\nclr1 = Relu(deny1)\ninfer1 = Sqrt(clr1)\nallow1 = MatMul(clr1, clr1)")
    assert followed.f16 == "allow1"
    assert followed.why("clr1") == (Rule.AFTER_DENY, "deny1")
    alone = painted(INPUT + "deny1 = Exp(x)\nclr1 = Relu(deny1)\nallow1 = MatMul(clr1, clr1)")
    assert alone.f16 == "clr1 allow1"


def test_a_fixed_type_carries_danger_although_nothing_can_change_it():
    result = painted(
        INPUT + "allow1 = MatMul(x, x)\ns = SparseMatMul(x, x) Ta=float32 Tb=float32\ninfer1 = AddV2(s, allow1)",
        deny_add=("SparseMatMul",),
    )
    assert result.f16 == "allow1"
    assert result.why("infer1") == (Rule.AFTER_DENY, "s")


def test_infer_and_clear_nodes_between_allow_nodes_are_converted():
    result = painted(
        INPUT + "allow1 = MatMul(x, x)\nclr1 = Relu(allow1)\ninfer1 = Sqrt(clr1)\nallow2 = MatMul(infer1, infer1)"
    )
    assert result.f16 == "allow1 clr1 infer1 allow2"
    assert result.rule("clr1") is result.rule("infer1") is Rule.BETWEEN_ALLOW
    assert {result.why("clr1")[1], result.why("infer1")[1]} <= {"infer1", "allow2"}


def test_an_infer_node_before_an_allow_node_alone_stays():
    result = painted(INPUT + "infer1 = Sqrt(x)\nallow1 = MatMul(infer1, infer1)")
    assert result.f16 == "allow1"
    assert result.why("infer1") == (Rule.NO_ALLOW_NEIGHBOUR, "")


def test_infer_nodes_after_an_allow_node_follow_one_another_whatever_the_order_of_the_nodes():
    chain = ["allow1 = MatMul(x, x)", "infer1 = Sqrt(allow1)", "infer2 = Sqrt(infer1)", "infer3 = Sqrt(infer2)"]
    for lines in (chain, chain[::-1]):
        result = painted("\n".join([INPUT, *lines]))
        assert set(result.f16.split()) == {"allow1", "infer1", "infer2", "infer3"}
        assert result.why("infer3") == (Rule.AFTER_ALLOW, "infer2")


def test_an_infer_node_with_one_dangerous_input_does_not_follow():
    result = painted(INPUT + "allow1 = MatMul(x, x)\ndeny1 = Exp(x)\ninfer1 = AddV2(allow1, deny1)")
    assert result.f16 == "allow1"
    assert result.why("infer1") == (Rule.AFTER_DENY, "deny1")


def test_clear_nodes_on_both_sides_of_an_allow_node_are_converted():
    result = painted(
        INPUT + "clr1 = Relu(x)\nclr2 = Neg(clr1)\nallow1 = MatMul(clr2, clr2)\nclr3 = Relu(allow1)\nclr4 = Neg(clr1)"
    )
    assert result.f16 == "clr1 clr2 allow1 clr3 clr4"
    assert result.why("clr2") == (Rule.BESIDE_ALLOW, "allow1")
    assert result.why("clr1") == (Rule.BESIDE_ALLOW, "clr2")


def test_clear_does_not_run_through_an_infer_node_that_stays():
    result = painted(INPUT + "clr1 = Relu(x)\ninfer1 = Sqrt(clr1)\nallow1 = MatMul(infer1, infer1)")
    assert result.f16 == "allow1"


def test_an_op_on_no_list_stops_everything():
    result = painted(INPUT + "allow1 = MatMul(x, x)\nother1 = Sin(allow1)\nclr1 = Relu(other1)")
    assert result.f16 == "allow1"
    assert result.rule("other1") is Rule.NOT_LISTED
    assert result.rule("clr1") is Rule.NO_ALLOW_NEIGHBOUR


def test_each_entry_of_a_list_of_types_goes_its_own_way():
    result = painted(
        INPUT + "allow1 = MatMul(x, x)\nclr1 = IdentityN(allow1, x, n) T=[float32, float32, int32]\n"
        "n = Placeholder() dtype=int32\nother1 = Sin(x)"
    )
    assert result.f16_types == "allow1.T clr1.T[0]"


def test_an_attribute_that_the_definition_keeps_float32_stays():
    batch_norm = INPUT + (
        "c = Placeholder()\nallow1 = MatMul(x, x)\n"
        "infer1 = FusedBatchNormV3(allow1, c, c, c, c) is_training=false\nallow2 = MatMul(infer1, infer1)"
    )
    assert painted(batch_norm).f16_types == "allow1.T infer1.T allow2.T"


def test_an_op_with_a_successor_is_converted_as_that():
    text = """
        x = Placeholder()
        c = Placeholder()
        allow1 = Conv2D(x, x) padding='SAME' strides=[1, 1, 1, 1]
        infer1 = FusedBatchNorm(allow1, c, c, c, c) is_training=false
        allow2 = Conv2D(infer1, x) padding='SAME' strides=[1, 1, 1, 1]
    """
    assert painted(text).f16_types == "allow1.T infer1.T allow2.T"


def test_an_existing_cast_whose_readers_are_all_converted_casts_to_16_bit_at_once():
    text = "n = Placeholder() dtype=int32\ncast1 = Cast(n) SrcT=int32 DstT=float32\nallow1 = MatMul(cast1, cast1)"
    result = painted(text)
    assert result.f16_types == "cast1.DstT allow1.T"
    assert result.why("cast1") == (Rule.CAST_FOLLOWS, "")


def test_an_existing_cast_with_one_other_reader_stays():
    text = "n = Placeholder() dtype=int32\ncast1 = Cast(n) SrcT=int32 DstT=float32\n"
    assert painted(text + "allow1 = MatMul(cast1, cast1)\nother1 = Sin(cast1)").f16 == "allow1"


def test_an_existing_cast_that_is_fetched_stays():
    text = "n = Placeholder() dtype=int32\ncast1 = Cast(n) SrcT=int32 DstT=float32\nallow1 = MatMul(cast1, cast1)"
    result = painted(text, preserve=["cast1"])
    assert result.f16 == "allow1"
    assert result.why("cast1") == (Rule.PRESERVED, "")


def test_an_existing_cast_without_readers_stays():
    text = INPUT + "allow1 = MatMul(x, x)\nn = Placeholder() dtype=int32\ncast1 = Cast(n) SrcT=int32 DstT=float32"
    assert painted(text).f16 == "allow1"


@pytest.mark.parametrize(
    ("reader", "rule"),
    [
        ("r = Identity(v)", Rule.REFERENCE_VARIABLE),
        ("r = Enter(v) frame_name='f'", Rule.BESIDE_ALLOW),
        ("i = Identity(v)\nr = Enter(i) frame_name='f'", Rule.REFERENCE_VARIABLE),
        ("i = Identity(v)\nr = Identity(i)", Rule.BESIDE_ALLOW),
        ("c = Placeholder()\nr = Identity(c)", Rule.BESIDE_ALLOW),
    ],
)
def test_what_reads_a_reference_variable_keeps_its_type(reader, rule):
    result = painted(f"v = VariableV2() shape=[4, 4]\n{reader}\nallow1 = MatMul(r, r)")
    assert ("r" in result.f16.split()) == rule.converts
    assert result.why("r") == (rule, "allow1" if rule.converts else "")


@pytest.mark.parametrize("op", ["Inv", "Log", "Log1p", "Sigmoid", "Softmax", "Softplus", "Sqrt", "Tanh", "Erf"])
def test_an_infer_op_between_products_is_converted(op):
    result = painted(INPUT + f"allow1 = MatMul(x, x)\ninfer1 = {op}(allow1)\nallow2 = MatMul(infer1, infer1)")
    assert result.f16 == "allow1 infer1 allow2"


def test_a_sum_is_dangerous_in_float16_and_safe_in_bfloat16():
    text = INPUT + "a = Const() dtype=int32 value=int32[]*0\nallow1 = MatMul(x, x)\nsum1 = Sum(allow1, a)\n"
    assert painted(text, precision="float16").f16 == "allow1"
    assert painted(text, precision="float16").why("sum1") == (Rule.DENY_LIST, "")
    assert painted(text, precision="bfloat16").f16 == "allow1 sum1"
