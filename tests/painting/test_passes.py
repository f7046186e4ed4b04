"""Each step of the lists on the smallest graph that shows it.

Node names say which list the op is on.
"""

from __future__ import annotations

import pytest

from amp_tf.painting.reasons import Code
from tests.painting.painted import painted

pytestmark = pytest.mark.usefixtures("local_rules")

INPUT = "x = Placeholder()\n"
PRODUCT = INPUT + "allow1 = MatMul(x, x)\n"
CAST = "n = Placeholder() dtype=int32\ncast1 = Cast(n) SrcT=int32 DstT=float32\n"
DENY_CHAIN = INPUT + (
    "deny1 = Exp(x)\ninfer1 = Sqrt(deny1)\nclr1 = Relu(infer1)\ninfer2 = Sqrt(clr1)\nclr2 = "
    "Relu(infer2)\n"
    "allow1 = MatMul(clr2, clr2)\ninfer3 = Sqrt(allow1)"
)
INFER_CHAIN = ["infer1 = Sqrt(allow1)", "infer2 = Sqrt(infer1)", "infer3 = Sqrt(infer2)"]

#: Each row has a graph, the nodes (or types) that become 16 bit, and for some the rule and its
#: cause.
SHOWN = {
    "an allow node is converted, its input is not": (
        PRODUCT,
        "allow1",
        {"allow1": "ALLOW_LIST", "x": "NOT_LISTED"},
    ),
    "deny runs forward up to the last infer node": (
        DENY_CHAIN,
        "clr2 allow1 infer3",
        {
            "deny1": "DENY_LIST",
            "infer1": "AFTER_DENY deny1",
            "clr1": "AFTER_DENY infer1",
            "infer2": "AFTER_DENY clr1",
            "clr2": "BESIDE_ALLOW allow1",
            "infer3": "AFTER_ALLOW allow1",
        },
    ),
    "deny runs through a clear node that an infer node follows": (
        INPUT
        + "deny1 = Exp(x)\nclr1 = Relu(deny1)\ninfer1 = Sqrt(clr1)\nallow1 = MatMul(clr1, clr1)",
        "allow1",
        {"clr1": "AFTER_DENY deny1"},
    ),
    "infer nodes after an allow node follow one another": (
        "\n".join([PRODUCT, *INFER_CHAIN]),
        "allow1 infer1 infer2 infer3",
        {"infer3": "AFTER_ALLOW infer2"},
    ),
    "an infer node with one dangerous input does not follow": (
        PRODUCT + "deny1 = Exp(x)\ninfer1 = AddV2(allow1, deny1)",
        "allow1",
        {"infer1": "AFTER_DENY deny1"},
    ),
    "a cast whose readers are all converted casts at once": (
        CAST + "allow1 = MatMul(cast1, cast1)",
        "cast1.DstT allow1.T",
        {"cast1": "CAST_FOLLOWS"},
    ),
    "one with another reader stays": (
        CAST + "allow1 = MatMul(cast1, cast1)\nother1 = Sin(cast1)",
        "allow1",
        {},
    ),
    "one without readers stays": (PRODUCT + CAST, "allow1", {}),
}


@pytest.mark.parametrize(("text", "f16", "why"), SHOWN.values(), ids=SHOWN)
def test_lists_decide(text, f16, why):
    result = painted(text)
    assert (result.f16_types if "." in f16 else result.f16) == f16
    assert {name: result.told(name) for name in why} == why


@pytest.mark.parametrize("trail", ["infer2 clr1 infer1 deny1", "clr2 allow1", "x"])
def test_the_trail_leads_back_to_where_the_decision_began(trail):
    painting = painted(DENY_CHAIN).painting
    names = painting.view.names
    first, *_ = trail.split()
    found = painting.trail(names.index(first))
    assert " ".join(names[node] for node in found) == trail
    assert painting.first_cause(names.index(first)) == found[-1]


@pytest.mark.parametrize(
    ("reader", "rule"),
    [
        ("r = Identity(v)", Code.REFERENCE_VARIABLE),
        ("r = Enter(v) frame_name='f'", Code.BESIDE_ALLOW),
        ("i = Identity(v)\nr = Enter(i) frame_name='f'", Code.REFERENCE_VARIABLE),
        ("i = Identity(v)\nr = Identity(i)", Code.BESIDE_ALLOW),
        ("c = Placeholder()\nr = Identity(c)", Code.BESIDE_ALLOW),
    ],
)
def test_what_reads_a_reference_variable_keeps_its_type(reader, rule):
    result = painted(f"v = VariableV2() shape=[4, 4]\n{reader}\nallow1 = MatMul(r, r)")
    assert ("r" in result.f16.split()) == rule.converts
    assert result.why("r") == (rule, "allow1" if rule.converts else "")
