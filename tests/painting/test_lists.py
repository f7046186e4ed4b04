"""Each step of the lists on the smallest graph that shows it. Node names say which list the op is on."""

from __future__ import annotations

import pytest

from amp_tf.painting.reasons import Rule
from tests.painting.painted import painted

pytestmark = pytest.mark.usefixtures("local_rules")

INPUT = "x = Placeholder()\n"
PRODUCT = INPUT + "allow1 = MatMul(x, x)\n"
CAST = "n = Placeholder() dtype=int32\ncast1 = Cast(n) SrcT=int32 DstT=float32\n"
DENY_CHAIN = INPUT + (
    "deny1 = Exp(x)\ninfer1 = Sqrt(deny1)\nclr1 = Relu(infer1)\ninfer2 = Sqrt(clr1)\nclr2 = Relu(infer2)\n"
    "allow1 = MatMul(clr2, clr2)\ninfer3 = Sqrt(allow1)"
)
INFER_CHAIN = ["infer1 = Sqrt(allow1)", "infer2 = Sqrt(infer1)", "infer3 = Sqrt(infer2)"]
NORM = "(allow1, x, x, x, x) is_training=false\nallow2 = MatMul(infer1, infer1)"

#: What is shown: the graph, the nodes (or types) that become 16 bit, and for some the rule and its cause.
SHOWN = {
    "an allow node is converted, its input is not": (
        PRODUCT,
        "allow1",
        {"allow1": (Rule.ALLOW_LIST, ""), "x": (Rule.NOT_LISTED, "")},
    ),
    "deny runs forward up to the last infer node": (
        DENY_CHAIN,
        "clr2 allow1 infer3",
        {
            "deny1": (Rule.DENY_LIST, ""),
            "infer1": (Rule.AFTER_DENY, "deny1"),
            "clr1": (Rule.AFTER_DENY, "infer1"),
            "infer2": (Rule.AFTER_DENY, "clr1"),
            "clr2": (Rule.BESIDE_ALLOW, "allow1"),
            "infer3": (Rule.AFTER_ALLOW, "allow1"),
        },
    ),
    "deny runs through a clear node that an infer node follows": (
        INPUT + "deny1 = Exp(x)\nclr1 = Relu(deny1)\ninfer1 = Sqrt(clr1)\nallow1 = MatMul(clr1, clr1)",
        "allow1",
        {"clr1": (Rule.AFTER_DENY, "deny1")},
    ),
    "infer and clear nodes between allow nodes are converted": (
        PRODUCT + "clr1 = Relu(allow1)\ninfer1 = Sqrt(clr1)\nallow2 = MatMul(infer1, infer1)",
        "allow1 clr1 infer1 allow2",
        {"clr1": (Rule.BETWEEN_ALLOW, None), "infer1": (Rule.BETWEEN_ALLOW, None)},
    ),
    "an infer node before an allow node alone stays": (
        INPUT + "infer1 = Sqrt(x)\nallow1 = MatMul(infer1, infer1)",
        "allow1",
        {"infer1": (Rule.NO_ALLOW_NEIGHBOUR, "")},
    ),
    "infer nodes after an allow node follow one another": (
        "\n".join([PRODUCT, *INFER_CHAIN]),
        "allow1 infer1 infer2 infer3",
        {"infer3": (Rule.AFTER_ALLOW, "infer2")},
    ),
    "whatever the order of the nodes": (
        "\n".join([*INFER_CHAIN[::-1], PRODUCT]),
        "infer3 infer2 infer1 allow1",
        {"infer3": (Rule.AFTER_ALLOW, "infer2")},
    ),
    "an infer node with one dangerous input does not follow": (
        PRODUCT + "deny1 = Exp(x)\ninfer1 = AddV2(allow1, deny1)",
        "allow1",
        {"infer1": (Rule.AFTER_DENY, "deny1")},
    ),
    "clear nodes on both sides of an allow node are converted": (
        INPUT + "clr1 = Relu(x)\nclr2 = Neg(clr1)\nallow1 = MatMul(clr2, clr2)\nclr3 = Relu(allow1)\nclr4 = Neg(clr1)",
        "clr1 clr2 allow1 clr3 clr4",
        {"clr2": (Rule.BESIDE_ALLOW, "allow1"), "clr1": (Rule.BESIDE_ALLOW, "clr2")},
    ),
    "an op on no list stops everything": (
        PRODUCT + "other1 = Sin(allow1)\nclr1 = Relu(other1)",
        "allow1",
        {"other1": (Rule.NOT_LISTED, ""), "clr1": (Rule.NO_ALLOW_NEIGHBOUR, "")},
    ),
    "each entry of a list of types goes its own way": (
        PRODUCT + "n = Placeholder() dtype=int32\nclr1 = IdentityN(allow1, x, n) T=[float32, float32, int32]",
        "allow1.T clr1.T[0]",
        {},
    ),
    "what the definition keeps float32 stays": (
        f"{PRODUCT}infer1 = FusedBatchNormV3{NORM}",
        "allow1.T infer1.T allow2.T",
        {},
    ),
    "an op with a successor is converted as that": (
        f"{PRODUCT}infer1 = FusedBatchNorm{NORM}",
        "allow1.T infer1.T allow2.T",
        {},
    ),
    "a cast whose readers are all converted casts at once": (
        CAST + "allow1 = MatMul(cast1, cast1)",
        "cast1.DstT allow1.T",
        {"cast1": (Rule.CAST_FOLLOWS, "")},
    ),
    "one with another reader stays": (CAST + "allow1 = MatMul(cast1, cast1)\nother1 = Sin(cast1)", "allow1", {}),
    "one without readers stays": (PRODUCT + CAST, "allow1", {}),
}


@pytest.mark.parametrize(("text", "f16", "why"), SHOWN.values(), ids=SHOWN)
def test_lists_decide(text: str, f16: str, why: dict[str, tuple[Rule, str | None]]) -> None:
    result = painted(text)
    assert (result.f16_types if "." in f16 else result.f16) == f16
    for name, (rule, cause) in why.items():
        found = result.why(name)
        assert found == (rule, found[1] if cause is None else cause)


def test_an_allow_list_node_of_another_type_is_left_alone():
    result = painted("x = Placeholder() dtype=int32\nallow1 = MatMul(x, x) T=int32\ny = Placeholder()\nr = Relu(y)")
    assert (result.f16, result.rule("allow1")) == ("", Rule.NO_FLOAT32)


def test_the_trail_leads_back_to_where_the_decision_began():
    painting = painted(DENY_CHAIN).painting
    trails = {name: painting.trail(painting.view.names.index(name)) for name in ("infer2", "clr2", "x")}
    assert trails == {"infer2": ["infer2", "clr1", "infer1", "deny1"], "clr2": ["clr2", "allow1"], "x": ["x"]}


def test_a_fixed_type_carries_danger_although_nothing_can_change_it():
    text = PRODUCT + "s = SparseMatMul(x, x) Ta=float32 Tb=float32\ninfer1 = AddV2(s, allow1)"
    result = painted(text, deny_add=("SparseMatMul",))
    assert (result.f16, result.why("infer1")) == ("allow1", (Rule.AFTER_DENY, "s"))


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
