"""Products that TensorFlow fused are split again where the fused kernel has no 16-bit form."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import tensorflow as tf

import amp_tf
from amp_tf.graph.attributes import ROUNDED_ATTR
from amp_tf.graph.sizes import KnownShapes
from amp_tf.oplists.fusions import SPLIT_PRODUCTS
from amp_tf.oplists.hardware import Hardware
from amp_tf.painting.reasons import Rule
from tests import as_cpu
from tests.hooks import running
from tests.rewriting.fused_graphs import KINDS, dense, made, remapped
from tests.rewriting.rewritten import AUTO, BF16_CPU, feeds, node_of, ops, reads, rewrite, run
from tests.small_graphs import graph

PLAIN_CPU = Hardware()  # neither bf16 nor avx512
BFLOAT16 = amp_tf.AmpConfig(precision="bfloat16")
# Of :func:`dense`; the hooks have all shapes from TensorFlow.
BIAS_SHAPE = KnownShapes({"Placeholder_2": ((64,),)})
#: Ends of the names of what was split from a fused product.
PRODUCT = "-MatMul-0-AmpTfSplit"
BIAS = "-BiasAdd-0-AmpTfSplit"
# Limits are relative to the largest value, for one product. At most 0.026 and 0.004 were measured,
# where activations clip.
TOLERANCES = {"bfloat16": 0.05, "float16": 0.006}
# TensorFlow's remapper fuses these in the two ways of a CPU; the others with oneDNN alone.
ALWAYS_FUSED = [kind for kind in KINDS if kind.startswith(("MatMul", "Conv2D"))]


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """Judges each kind on a CPU with AVX2, without oneDNN and with it, each in a process of its
    own.

    On a CPU with bfloat16, TensorFlow's remapper fuses what was split once more, in bfloat16, to a
    node that runs and that Python does not import.
    """

    @functools.cache
    def ended(onednn):
        variables = as_cpu.variables() | {"TF_ENABLE_ONEDNN_OPTS": str(int(onednn))}
        return running.run(
            ["-m", "tests.rewriting.fused_graphs"], tmp_path_factory.mktemp("judging"), variables
        )

    def ask(onednn):
        assert ended(onednn).status == 0, ended(onednn).err
        return ended(onednn).result

    return ask


@pytest.mark.parametrize("precision", TOLERANCES)
@pytest.mark.parametrize(
    ("onednn", "kind"),
    [*((False, kind) for kind in ALWAYS_FUSED), *((True, kind) for kind in KINDS)],
)
def test_what_tensorflow_fuses_is_split_and_converted_and_the_result_is_that_of_float32(
    judged, onednn, kind, precision
):
    found = judged(onednn)[kind][precision]
    assert found["fused"][0] in SPLIT_PRODUCTS
    assert found["left"] == []
    assert found["types"] == [True]
    assert found["kept"]
    assert not found["again"]
    assert found["as unfused"]  # to the last bit
    assert found["split"] <= TOLERANCES[precision]
    assert found["iterated"] <= TOLERANCES[precision]


def test_the_last_node_keeps_the_name_and_the_others_are_named_after_it():
    fused, name = _dense()
    result = _rewrite(fused).graph
    assert node_of(result, name).op == "Relu"
    assert node_of(result, f"{name}{PRODUCT}").op == "MatMul"
    assert node_of(result, f"{name}{BIAS}").op == "BiasAdd"


@pytest.mark.parametrize(("shape", "op"), [([64], "BiasAdd"), ([1, 64], "AddV2"), (None, "AddV2")])
def test_a_bias_that_may_have_more_dimensions_than_one_is_added(shape, op):
    given = made(lambda: dense(tf.nn.relu))
    values = feeds(given)
    exact = run(given, values)
    fused = remapped(given)
    known = {}
    if shape:
        bias = node_of(fused, "Placeholder_2")
        bias.attr["shape"].shape.CopyFrom(tf.TensorShape(shape).as_proto())
        values["Placeholder_2:0"] = values["Placeholder_2:0"].reshape(shape)
        known["Placeholder_2"] = (tuple(shape),)
    result = _rewrite(fused, shapes=KnownShapes(known)).graph
    assert op in ops(result)
    tolerance = TOLERANCES["bfloat16"] * exact.max()
    np.testing.assert_allclose(run(result, values), exact, rtol=0, atol=tolerance)


def test_a_pattern_that_matches_the_fused_product_keeps_it():
    fused, name = _dense()
    result = _rewrite(fused, amp_tf.AmpConfig(precision="bfloat16", keep_float32=(f"^{name}$",)))
    assert not result.changed


def test_where_amp_tf_chooses_only_what_the_user_forces_is_split():
    def build():
        return dense(tf.nn.relu, name="first") + dense(tf.nn.relu, name="second")

    fused = remapped(made(build))
    first, second = sorted(node.name for node in fused.node if node.op == "_FusedMatMul")
    assert not _rewrite(fused, AUTO, shapes=None).changed
    config = amp_tf.AmpConfig(target="cpu", force_f16=(f"^{first}$",))
    result = _rewrite(fused, config, shapes=None).graph
    assert node_of(result, second).op == "_FusedMatMul"
    product = node_of(result, f"{first}{PRODUCT}")
    assert product.attr[ROUNDED_ATTR].type == tf.bfloat16
    assert ops(result)["MatMul"] == ops(result)["_FusedMatMul"] == 1


#: Something is taken off the result, so bias and activation are computed in float32.
SUBTRACTED = """
    x = Placeholder() shape=[512, 512]
    w = Placeholder() shape=[512, 512]
    bias = Const() value=float32[512]
    fused = _FusedMatMul(x, w, bias) num_args=1 fused_ops=['BiasAdd', 'Relu']
    left = Sub(fused, x)
    next = MatMul(left, w)
"""


both_ways = pytest.mark.parametrize("config", [BFLOAT16, AUTO], ids=["bfloat16", "auto"])


@both_ways
def test_a_product_is_16_bit_where_what_it_was_fused_with_stays_float32_for_accuracy(config):
    result = amp_tf.rewrite(graph(SUBTRACTED), config, hardware=BF16_CPU)
    product = node_of(result.graph, f"fused{PRODUCT}")
    assert product.attr["T"].type == tf.bfloat16
    for name in (f"fused{BIAS}", "fused", "left"):
        assert node_of(result.graph, name).attr["T"].type == tf.float32, name
    assert not amp_tf.rewrite(result.graph, config, hardware=BF16_CPU).changed


@both_ways
@pytest.mark.parametrize(
    ("activation", "left"),
    [
        ("Relu", "m = Mean(fused, axis) keep_dims=true\nleft = Sub(fused, m)"),
        ("Tanh", "left = Sub(fused, x)"),
    ],
    ids=["centred", "bounded"],
)
def test_a_product_stays_whole_where_all_of_it_is_16_bit_once_it_is_split(activation, left, config):
    text = SUBTRACTED.replace("Relu", activation).replace("left = Sub(fused, x)", left)
    proto = graph(f"axis = Const() dtype=int32 value=int32[1]*1\n{text}")
    fused = node_of(amp_tf.rewrite(proto, config, hardware=BF16_CPU).graph, "fused")
    assert fused.op == "_FusedMatMul"
    assert fused.attr["T"].type == tf.bfloat16


def test_a_product_is_16_bit_where_what_it_was_fused_with_is_fetched():
    fused, name = _dense()
    result = amp_tf.rewrite(fused, BFLOAT16, hardware=BF16_CPU, preserve=["fetch", name]).graph
    assert node_of(result, f"{name}{PRODUCT}").attr["T"].type == tf.bfloat16
    assert node_of(result, name).attr["T"].type == tf.float32


def test_where_amp_tf_chooses_a_product_that_is_not_faster_is_whole_again():
    small = graph(SUBTRACTED.replace("512", "8"))
    assert "_FusedMatMul" in ops(rewrite(small, preserve=()).graph)


@pytest.mark.parametrize(
    ("settings", "hardware"),
    [
        ({"allow_remove": ("MatMul",)}, PLAIN_CPU),
        ({"allow_remove": ("_FusedMatMul",)}, PLAIN_CPU),
        ({"force_f16": ("Relu",)}, BF16_CPU),
        ({}, BF16_CPU),
        ({}, Hardware(cpu_has_avx512=True)),
    ],
    ids=["product off the list", "fused product off the list", "bf16, forced", "bf16", "avx512"],
)
def test_nothing_is_split_where_its_product_stays_float32_or_the_fused_kernel_runs(
    settings, hardware
):
    fused, name = _dense()
    config = amp_tf.AmpConfig(precision="bfloat16", **settings)
    result = amp_tf.rewrite(fused, config, hardware=hardware, preserve=["fetch"])
    assert node_of(result.graph, name).op == "_FusedMatMul"
    assert len(result.graph.node) - len(fused.node) == result.report.casts


@pytest.mark.parametrize(
    "steps", [("BiasAdd", "GeluExact"), ("BiasAdd", "_MklSwish"), ("SomethingNew",), ()]
)
def test_what_is_not_known_stays_whole_and_the_report_says_why(steps):
    fused, name = _dense()
    attributes = node_of(fused, name).attr
    attributes["fused_ops"].list.s[:] = [step.encode() for step in steps]
    result = _rewrite(fused)
    assert not result.changed
    (whole,) = result.report.nodes.where(op="_FusedMatMul")
    assert whole.reason.rule is Rule.NO_FUSED_KERNEL
    told = f"1 node (1 _FusedMatMul), such as {name!r}: {Rule.NO_FUSED_KERNEL.words}"
    assert told in str(result.report)


def test_a_split_product_waits_for_what_the_fused_one_waited_for():
    fused, name = _dense()
    fused.node.add(name="first", op="NoOp")
    node_of(fused, name).input.append("^first")
    result = _rewrite(fused).graph
    for part in (name, f"{name}{PRODUCT}", f"{name}{BIAS}"):
        assert "^first" in reads(result, part)


@pytest.mark.parametrize(("second", "is_split"), [("Exp", True), ("Floor", True), ("Tanh", False)])
def test_a_chain_of_functions_is_split_where_one_shows_roundings_at_full_size(second, is_split):
    chain = graph(f"""
        x = Placeholder() shape=[4, 4]
        a = MatMul(x, x)
        twice = Mul(a, a)
        chain = _UnaryOpsComposition(twice) T=float32 op_names=['Abs', '{second}']
        fetch = MatMul(chain, x)
    """)
    found = node_of(_rewrite(chain, shapes=None).graph, "chain").op
    assert found == (second if is_split else "_UnaryOpsComposition")


def _dense():
    """A graph with a fused product, and that product's name."""
    fused = remapped(made(lambda: dense(tf.nn.relu)))
    (name,) = (node.name for node in fused.node if node.op == "_FusedMatMul")
    return fused, name


def _rewrite(graph, config=BFLOAT16, preserve=("fetch",), shapes=BIAS_SHAPE):
    return amp_tf.rewrite(graph, config, hardware=PLAIN_CPU, preserve=preserve, shapes=shapes)
