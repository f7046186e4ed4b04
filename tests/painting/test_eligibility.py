from __future__ import annotations

import pytest

from amp_tf.painting.reasons import Rule
from tests.painting.painted import BF16_CPU, VOLTA, painted
from tests.small_graphs import function

pytestmark = pytest.mark.usefixtures("local_rules")

CHAIN = "x = Placeholder()\nallow1 = MatMul(x, x)\nclr1 = Relu(allow1)\nallow2 = MatMul(clr1, clr1)\nclr2 = Neg(allow2)"
GPU, CPU = "@/device:GPU:0", "@/job:localhost/replica:0/task:0/device:CPU:0"


def test_a_preserved_node_stays_and_stops_the_paint():
    result = painted(CHAIN, preserve=["allow1"])
    assert result.f16 == "clr1 allow2 clr2"
    assert result.why("allow1") == (Rule.PRESERVED, "")
    assert result.why("clr1") == (Rule.BESIDE_ALLOW, "allow2")


def test_a_preserved_node_that_would_become_its_successor_is_on_the_list_of_its_own_op():
    norm = "n = FusedBatchNorm(deny1, x, x, x, x)\ninfer1 = Log(n)\nallow1 = MatMul(infer1, infer1)"
    text = f"x = Placeholder()\ndeny1 = Exp(x)\n{norm}\nallow0 = MatMul(x, x)\nclr1 = Relu(infer1)"
    assert painted(text, preserve=["n"]).f16 == "allow1 allow0"
    assert painted(text, preserve=["n"]).rule("infer1") is Rule.NO_ALLOW_NEIGHBOUR
    assert painted(text, preserve=["n"], infer_add=("FusedBatchNorm",)).why("infer1") == (Rule.AFTER_DENY, "n")


def test_a_preserved_name_that_the_graph_does_not_have_is_no_error():
    assert painted(CHAIN, preserve=["nobody"]).f16 == "allow1 clr1 allow2 clr2"


def test_a_kept_name_stays_and_stops_the_paint():
    result = painted(CHAIN, keep_float32=("^clr1$",))
    assert result.f16 == "allow1 allow2 clr2"
    assert result.why("clr1") == (Rule.KEPT_BY_NAME, "")


def test_a_pattern_is_searched_anywhere_in_the_name():
    assert painted(CHAIN, keep_float32=("low",)).f16 == ""


def test_a_forced_node_is_converted_although_its_op_is_on_no_list_or_denied():
    for op in ("Sin", "Exp"):
        result = painted(f"x = Placeholder()\nother1 = {op}(x)\nclr1 = Relu(other1)", force_f16=("other",))
        assert result.f16 == "other1 clr1"
        assert result.why("other1") == (Rule.FORCED_BY_NAME, "")
        assert result.why("clr1") == (Rule.BESIDE_ALLOW, "other1")


def test_a_forced_node_is_not_converted_where_its_op_cannot_be():
    result = painted(CHAIN + "\nd = Polygamma(x, x)\ne = Erfinv(x)", force_f16=("^[de]$",))
    assert result.f16 == "allow1 clr1 allow2 clr2"
    assert result.why("d") == (Rule.TYPE_NOT_ALLOWED, "")
    assert result.why("e") == (Rule.NO_KERNEL, "")


@pytest.mark.parametrize(
    "text",
    [
        "c = Const() value=float32[]*2.5\nforced = Mul(allow1, c)",
        "v = VarHandleOp()\nr = ReadVariableOp(v)\nforced = Mul(allow1, r)",
    ],
    ids=["constant", "variable"],
)
def test_what_holds_a_value_is_not_forced(text):
    """TensorFlow aborts the process at a constant whose value has another type."""
    result = painted("x = Placeholder()\nallow1 = MatMul(x, x)\n" + text, force_f16=(".",), preserve=["x"])
    assert result.f16 == "allow1 forced"


def test_keeping_wins_over_forcing():
    result = painted(CHAIN, force_f16=("allow",), keep_float32=("allow1",))
    assert result.why("allow1") == (Rule.KEPT_BY_NAME, "")
    assert result.why("allow2") == (Rule.FORCED_BY_NAME, "")


def test_preserving_wins_over_forcing():
    assert painted(CHAIN, force_f16=("allow",), preserve=["allow2"]).why("allow2") == (Rule.PRESERVED, "")


def test_name_rules_that_match_nothing_are_told():
    assert painted(CHAIN, keep_float32=("loss", "allow1"), force_f16=("head",)).painting.unmatched == ("head", "loss")


def test_a_scope_keeps_a_node():
    result = painted(CHAIN.replace("Relu(allow1)", "Relu(allow1) _amp_tf_scope='float32'"))
    assert result.f16 == "allow1 allow2 clr2"
    assert result.why("clr1") == (Rule.KEPT_BY_SCOPE, "")


def test_a_scope_forces_a_node():
    result = painted("x = Placeholder()\nother1 = Sin(x) _amp_tf_scope='float16'")
    assert result.f16 == "other1"
    assert result.why("other1") == (Rule.FORCED_BY_SCOPE, "")


def test_a_scope_for_any_16_bit_type_forces_and_one_for_another_type_does_not():
    text = "x = Placeholder()\nother1 = Sin(x) _amp_tf_scope='{}'"
    assert painted(text.format("f16"), precision="bfloat16").f16 == "other1"
    assert painted(text.format("bfloat16"), precision="float16").f16 == ""


LAYERS = """
    x = Placeholder()
    net/block_1/first/MatMul = MatMul(x, x)
    net/block_1/first/Relu = Relu(net/block_1/first/MatMul)
    net/block_12/first/MatMul = MatMul(net/block_1/first/Relu, x)
    gradient_tape/net/block_1/first/MatMul/MatMul_1 = MatMul(net/block_12/first/MatMul, x)
"""


@pytest.mark.parametrize("pattern", ["layer:block_1", "layer:net/block_1/first", "layer:block_\\d/first"])
def test_a_layer_is_kept_by_its_path_with_its_gradient(pattern):
    result = painted(LAYERS, keep_float32=(pattern,))
    assert result.f16 == "net/block_12/first/MatMul"
    assert result.why("net/block_1/first/Relu") == (Rule.KEPT_BY_NAME, "")
    assert result.painting.unmatched == ()


def test_a_layers_pattern_that_matches_nothing_is_told():
    assert painted(LAYERS, keep_float32=("layer:block_2",)).painting.unmatched == ("layer:block_2",)


ATTRIBUTES = "num_args=2 TArgs=[float32, float32] fused_ops=['BiasAdd', 'Add']"
FUSED = f"""
    x = Placeholder()
    net/block/first/w = Placeholder()
    net/block/first/b = Placeholder()
    net/before/Relu = Relu(x)
    net/block/add = _FusedMatMul(net/before/Relu, net/block/first/w, net/block/first/b, net/before/Relu) {ATTRIBUTES}
"""


def test_a_product_that_tensorflow_named_after_the_sum_around_its_layer_belongs_to_its_layer():
    for pattern, kept in (("layer:block/first", True), ("layer:block", True), ("layer:before", False)):
        result = painted(FUSED, precision="bfloat16", keep_float32=(pattern,))
        assert (result.rule("net/block/add") is Rule.KEPT_BY_NAME) == kept, pattern


def test_a_scope_for_some_layers_is_for_their_nodes_alone():
    inner = "float32\tlayer:block_1\tlayer:block_7"
    marked = LAYERS.replace("MatMul(x, x)", f"MatMul(x, x) _amp_tf_scope='{inner}'")
    marked = marked.replace("Relu, x)", f"Relu, x) _amp_tf_scope='{inner}'")
    result = painted(marked)
    assert result.why("net/block_1/first/MatMul") == (Rule.KEPT_BY_SCOPE, "")
    assert result.why("net/block_12/first/MatMul") == (Rule.ALLOW_LIST, "")


def test_nodes_on_another_device_stay_and_what_follows_them_too():
    text = f"""
        x = Placeholder()
        allow1 = MatMul(x, x) {GPU}
        clr1 = Relu(allow1) {CPU}
        allow2 = MatMul(x, x) {CPU}
        clr2 = Relu(x)
        allow3 = MatMul(clr2, clr2)
    """
    on_gpu, on_cpu = painted(text, hardware=VOLTA), painted(text, hardware=BF16_CPU)
    assert on_gpu.f16 == "allow1 clr2 allow3"
    assert on_cpu.f16 == "allow2 clr2 allow3"
    assert on_gpu.why("allow2") == (Rule.OTHER_DEVICE, "")
    assert on_cpu.why("allow1") == (Rule.OTHER_DEVICE, "")


def test_a_functions_arguments_and_results_keep_their_types():
    result = painted(
        "function f(x: float32) -> (y: float32)\nclr1 = Relu(x)\nallow1 = MatMul(clr1:activations:0, x)\n"
        "clr2 = Relu(allow1:product:0)\nreturn y = clr2:activations:0"
    )
    assert result.f16 == "clr1 allow1 clr2"
    assert result.why("x") == result.why("f/y") == (Rule.PRESERVED, "")


def test_an_argument_is_not_forced_by_a_name_rule():
    result = painted(
        "function f(x: float32) -> (y: float32)\nallow1 = MatMul(x, x)\nreturn y = allow1:product:0", force_f16=(".",)
    )
    assert result.f16 == "allow1"


def test_a_node_that_calls_a_function_stays():
    called = function("function g(x: float32) -> (y: float32)\nreturn y = x")
    result = painted("x = Placeholder()\na = MatMul(x, x)\nb = g(a)\nc = MatMul(b, b)", called)
    assert result.f16 == "a c"


def test_an_op_that_holds_functions_stays_although_it_is_on_a_list():
    result = painted(
        "x = Placeholder()\na = MatMul(x, x)\nw = StatelessWhile(a) T=[float32] cond=c body=b", precision="bfloat16"
    )
    assert result.f16 == "a"
    assert result.why("w") == (Rule.CALLS_FUNCTION, "")


def test_an_op_without_a_16_bit_kernel_stays_and_says_so():
    text = (
        "x = Placeholder()\na = MatMul(x, x)\np = AvgPool3D(a) ksize=[1] strides=[1] padding='SAME'\nb = MatMul(p, p)"
    )
    result = painted(text)
    assert result.f16 == "a b"
    assert result.why("p") == (Rule.NO_KERNEL, "")
    assert painted(text, precision="bfloat16").f16 == "a p b", "the CPU has a bfloat16 kernel of it"


def test_an_op_whose_definition_does_not_allow_16_bit_stays_and_says_so():
    for field in ("allow_add", "infer_add", "clear_add"):
        result = painted("x = Placeholder()\na = Polygamma(x, x)\nb = MatMul(a, a)", **{field: ("Polygamma",)})
        assert result.f16 == "b"
        assert result.why("a") == (Rule.TYPE_NOT_ALLOWED, "")


def test_a_quantized_node_stays():
    result = painted(
        "x = Placeholder() dtype=qint8\nf = Placeholder()\na = MatMul(f, f)\nq = QuantizeV2(a, f, f) T=quint8",
        allow_add=("QuantizeV2",),
    )
    assert result.f16 == "a"
    assert not result.rule("q").converts


@pytest.mark.parametrize(
    ("text", "settings", "rule"),
    [
        ("x = Placeholder()\nr = Relu(x)", {}, Rule.NOTHING_TO_CONVERT),
        (CHAIN, {"preserve": ["allow1", "allow2"]}, Rule.PRESERVED),
        (CHAIN, {"keep_float32": ("allow",)}, Rule.KEPT_BY_NAME),
        (CHAIN.replace("clr1, clr1)", f"clr1, clr1) {GPU}"), {"preserve": ["allow1"]}, Rule.PRESERVED),
        (CHAIN.replace("x)", f"x) {GPU}").replace("clr1)", f"clr1) {GPU}"), {}, Rule.OTHER_DEVICE),
        (
            "x = Placeholder()\np = AvgPool3D(x) ksize=[1] strides=[1] padding='SAME'",
            {"infer_remove": ("AvgPool3D",), "allow_add": ("AvgPool3D",)},
            Rule.NO_KERNEL,
        ),
        ("", {}, Rule.NOTHING_TO_CONVERT),
    ],
)
def test_where_nothing_is_converted_the_commonest_obstacle_is_the_reason(text, settings, rule):
    result = painted(text, **settings)
    assert result.f16 == ""
    assert result.painting.why_nothing is rule


def test_without_a_target_every_node_says_why():
    from amp_tf.oplists.hardware import Hardware

    result = painted(CHAIN, precision="auto", hardware=Hardware())
    assert result.painting.precision is None
    assert result.painting.why_nothing is Rule.NO_TARGET
    assert result.words("allow1") == (
        "no device of this machine is converted "
        "(this CPU has neither avx512_bf16 nor amx_bf16 and TensorFlow sees no GPU)"
    )
    assert list(result.painting.dtypes_after()) == list(result.painting.view.dtypes)
    assert result.painting.trail(1) == ["allow1"]


def test_a_preserved_node_that_a_rule_would_force_still_spreads_its_danger():
    text = "x = Placeholder()\ndeny1 = Exp(x)\ninfer1 = Sqrt(deny1)\nallow1 = MatMul(infer1, x)"
    result = painted(text, force_f16=("deny1",), preserve=["deny1"])
    assert result.f16 == "allow1"
    assert result.why("infer1") == (Rule.AFTER_DENY, "deny1")


def test_a_cast_on_another_device_still_follows_its_readers():
    text = f"""
        n = Placeholder() dtype=int32
        cast1 = Cast(n) SrcT=int32 DstT=float32 {GPU}
        allow1 = MatMul(cast1, cast1)
    """
    assert painted(text).f16_types == "cast1.DstT allow1.T"


def test_of_several_obstacles_the_one_in_the_way_of_most_nodes_is_the_reason():
    text = "x = Placeholder()\na1 = MatMul(x, x)\na2 = MatMul(x, x)\nb = MatMul(x, x)"
    assert painted(text, keep_float32=("a",), preserve=["b"]).painting.why_nothing is Rule.KEPT_BY_NAME
    assert painted(text, keep_float32=("b",), preserve=["a1", "a2"]).painting.why_nothing is Rule.PRESERVED
