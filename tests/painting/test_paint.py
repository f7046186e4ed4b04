"""Levels, forcing, changes, and the reasons of a whole painting."""

from __future__ import annotations

import pytest

from amp_tf.config import LEVELS
from amp_tf.painting.reasons import Code, Reason
from tests.painting.painted import painted

pytestmark = pytest.mark.usefixtures("local_rules")

CHAIN = """
    x = Placeholder()
    deny1 = Exp(x)
    infer1 = Sqrt(x)
    clr1 = Relu(infer1)
    allow1 = MatMul(clr1, clr1)
    infer2 = Sqrt(allow1)
    clr2 = Relu(infer2)
    other1 = Digamma(clr2)
"""


@pytest.mark.parametrize(
    ("level", "f16"),
    [
        ("DEFAULT", "clr1 allow1 infer2 clr2"),
        ("TREAT_INFER_AS_DENY", "clr1 allow1"),
        ("TENSOR_CORES_ONLY", "allow1"),
        ("UNSAFE_FORCE_ALL", "x deny1 infer1 clr1 allow1 infer2 clr2 other1"),
    ],
)
def test_each_level_goes_as_far_as_it_says(level, f16):
    assert level in LEVELS
    assert painted(CHAIN, level=level).f16 == f16


def test_forcing_all_says_so_and_leaves_constants_state_and_references():
    result = painted(
        CHAIN
        + """
        const1 = Const() dtype=float32 value=float32[4, 4]
        other2 = Sin(const1)
        v = VariableV2() shape=[4, 4]
        random1 = RandomUniform(shape) T=int32
        shape = Const() dtype=int32 value=int32[2]*4
        """,
        level="UNSAFE_FORCE_ALL",
    )
    assert result.code("other1") is Code.FORCED_BY_LEVEL
    assert result.code("other2") is Code.FORCED_BY_LEVEL
    assert {"const1", "v", "random1"}.isdisjoint(result.f16.split())


def test_forcing_all_respects_preserve_and_name_rules():
    result = painted(CHAIN, level="UNSAFE_FORCE_ALL", preserve=["clr2"], keep_float32=("deny",))
    assert result.f16 == "x infer1 clr1 allow1 infer2 other1"
    assert result.code("clr2") is Code.PRESERVED
    assert result.code("deny1") is Code.KEPT_BY_NAME


def test_a_detached_painting_still_says_why():
    painting = painted(CHAIN).painting
    detached = painting.detached()
    for node in range(painting.view.node_count):
        assert detached.reason(node) == painting.reason(node)
        assert detached.trail(node) == painting.trail(node)


POOLING_GRADIENT = (
    "x = Placeholder()\ng = MaxPool3DGrad(x, x, x) ksize=[1] strides=[1] padding='SAME'"
)


@pytest.mark.parametrize(
    "settings",
    [
        {"level": "UNSAFE_FORCE_ALL", "preserve": ["x"]},
        {"force_f16": ("^g$",)},
        {"clear_remove": ("MaxPool3DGrad",), "allow_add": ("MaxPool3DGrad",)},
    ],
)
def test_types_that_only_change_together_are_converted_together_where_a_setting_asks_for_the_op(
    settings,
):
    assert painted(POOLING_GRADIENT, precision="bfloat16", **settings).f16_types == "g.TInput g.T"


def test_types_that_only_change_together_stay_where_paint_would_reach_one_of_them():
    product = "a = MatMul(x, x)\nb = MaxPool3DGrad(x, x, a) ksize=[1] strides=[1] padding='SAME'"
    result = painted(f"x = Placeholder()\n{product}", precision="bfloat16")
    assert result.f16_types == "a.T"
    assert result.why("b") == (Code.NO_KERNEL, "")


def test_forcing_all_leaves_what_writes_a_reference():
    result = painted(
        "v = VariableV2() shape=[4, 4]\nx = Placeholder()\na = Assign(v, x)",
        level="UNSAFE_FORCE_ALL",
    )
    assert result.f16 == "x"


def test_an_op_on_the_allow_list_whose_result_is_no_float_keeps_a_type_that_has_no_kernel():
    result = painted(
        "x = Placeholder()\na = ApproximateEqual(x, x)\nm = MatMul(x, x)",
        allow_add=("ApproximateEqual",),
    )
    assert result.f16_types == "m.T"
    assert result.why("a") == (Code.NO_KERNEL, "")


@pytest.mark.parametrize(
    ("equation", "sums"),
    [
        *(
            (text, False)
            for text in (
                "bi,j->bij",
                " i , j -> i j ",
                "bsd,d->bsd",
                "...n,d->...nd",
                "ab->ba",
                ",->",
            )
        ),
        *(
            (text, True)
            for text in (
                "ij,jk->ik",
                "aecd,abcd->acbe",
                "bij,j->bi",
                "i,i->",
                "...i,i->...",
                "...i,i->i",
            )
        ),
    ],
)
def test_an_equation_is_a_product_where_it_sums(equation, sums):
    text = f"x = Placeholder()\nproduct = Einsum(x, x) N=2 equation={equation!r}"
    assert (painted(text).code("product") is Code.ALLOW_LIST) == sums
    assert painted(text, force_f16=("product",)).f16 == "product"
    between = (
        "x = Placeholder()\na = MatMul(x, x)\nproduct = Einsum(a, x) N=2 "
        f"equation={equation!r}\nb = MatMul(product, x)"
    )
    assert painted(between).f16 == "a product b"


def test_reasons_are_sentences():
    for rule in Code:
        assert rule.words
        assert not rule.words.endswith(".")
        assert 0 < rule < 256, "the canvas keeps a byte"
    assert (
        str(Reason(Code.AFTER_DENY, "loss/Exp"))
        == "it uses values of the deny-list node 'loss/Exp'"
    )
    assert str(Reason(Code.AFTER_ALLOW, "{0}")) == "it directly follows the converted node '{0}'"
    assert str(Reason(Code.DENY_LIST)) == "its op is on the deny list"
    assert (
        str(Reason(Code.NO_TARGET, detail="no GPU"))
        == "nothing is converted on this machine (no GPU)"
    )
