"""Lists that one op makes get ops of their own where some can be 16 bit and others cannot."""

from __future__ import annotations

import numpy as np
import pytest

import amp_tf
from amp_tf.config import AmpConfig
from tests.painting.painted import BF16_CPU
from tests.parity.case import run
from tests.small_graphs import graph

SHARED = """
    x = Placeholder() shape=[4, 4]
    shape = Const() dtype=int32 value=int32[2]*4
    size = Const() dtype=int32 value=int32[]*2
    empty = EmptyTensorList(shape, size) element_dtype=float32 shape_type=int32 ^x
    allow1 = MatMul(x, x)
    narrow = TensorListPushBack(empty, allow1) element_dtype=float32
    back1 = TensorListPopBack(narrow, shape) element_dtype=float32
    allow2 = MatMul(back1:1, x)
    deny1 = Exp(x)
    wide = TensorListPushBack(empty, deny1) element_dtype=float32
    back2 = TensorListPopBack(wide, shape) element_dtype=float32
    deny2 = Exp(back2:1)
    fetch1 = Identity(allow2)
    fetch2 = Identity(deny2)
"""
TWIN = "empty-0-AmpTfList"
ENDS = ["x", "fetch1", "fetch2"]


def rewrite(text: str, **settings):
    config = AmpConfig(precision="bfloat16", **settings)
    return amp_tf.rewrite(graph(text), config, hardware=BF16_CPU, preserve=ENDS)


def element_types(result) -> dict[str, int]:
    return {node.name: node.attr["element_dtype"].type for node in result.graph.node if "element_dtype" in node.attr}


def test_a_list_of_products_is_16_bit_beside_one_of_exponentials():
    result = rewrite(SHARED)
    types = element_types(result)
    assert {name for name, kind in types.items() if kind == 14} == {TWIN, "narrow", "back1"}
    assert {name for name, kind in types.items() if kind == 1} == {"empty", "wide", "back2"}
    nodes = {node.name: node for node in result.graph.node}
    assert list(nodes[TWIN].input) == list(nodes["empty"].input) == ["shape", "size", "^x"]
    x = np.random.default_rng(0).normal(size=(4, 4), scale=0.3).astype("float32")
    before, after = (run(given, ("fetch1", "fetch2"), {"x:0": x}) for given in (graph(SHARED), result.graph))
    np.testing.assert_allclose(after[0], before[0], rtol=0, atol=3 * 2**-8 * np.abs(before[0]).max())
    np.testing.assert_array_equal(after[1], before[1])


def test_a_second_rewrite_finds_nothing_to_part():
    once = rewrite(SHARED).graph
    again = amp_tf.rewrite(once, AmpConfig(precision="bfloat16"), hardware=BF16_CPU, preserve=ENDS)
    assert not again.changed


@pytest.mark.parametrize(
    "text",
    [
        SHARED.replace("deny2 = Exp(back2:1)", "deny2 = MatMul(back2:1, x)"),  # both can
        SHARED.replace("allow2 = MatMul(back1:1, x)", "allow2 = Exp(back1:1)"),  # neither can
        SHARED.replace("PushBack(empty, deny1)", "PushBack(own, deny1)").replace(
            "    wide", "    own = EmptyTensorList(shape, size) element_dtype=float32 shape_type=int32\n    wide"
        ),
    ],
)
def test_lists_that_agree_or_have_ops_of_their_own_stay_as_they_are(text):
    assert not [node.name for node in rewrite(text).graph.node if node.name.endswith("AmpTfList")]


def test_an_op_that_the_user_keeps_in_float32_makes_all_its_lists():
    result = rewrite(SHARED, keep_float32=("^empty$",))
    assert set(element_types(result).values()) == {1}
