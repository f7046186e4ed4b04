"""Which nodes may change at all: preserved, kept, forced, elsewhere, without a kernel."""

from __future__ import annotations

import pytest

from amp_tf.oplists.hardware import Hardware
from amp_tf.painting.reasons import Code
from tests.painting.painted import BF16_CPU, VOLTA, painted

pytestmark = pytest.mark.usefixtures("local_rules")

CHAIN = (
    "x = Placeholder()\nallow1 = MatMul(x, x)\nclr1 = Relu(allow1)\nallow2 = MatMul(clr1, "
    "clr1)\nclr2 = Neg(allow2)"
)
GPU = "@/device:GPU:0"
CPU = "@/job:localhost/replica:0/task:0/device:CPU:0"
SIN = "x = Placeholder()\nother1 = Sin(x)"
FORCED = "x = Placeholder()\nallow1 = MatMul(x, x)\nforced = Mul(allow1, held)\n"

#: Each row has a graph, settings, the nodes that become 16 bit, and for some the rule and its
#: cause.
SHOWN = {
    "a preserved node stays and stops the paint": (
        CHAIN,
        {"preserve": ["allow1"]},
        "clr1 allow2 clr2",
        {"allow1": "PRESERVED", "clr1": "BESIDE_ALLOW allow2"},
    ),
    "a kept name stays and stops the paint": (
        CHAIN,
        {"keep_float32": ("^clr1$",)},
        "allow1 allow2 clr2",
        {"clr1": "KEPT_BY_NAME"},
    ),
    "a pattern is searched anywhere in the name": (CHAIN, {"keep_float32": ("low",)}, "", {}),
    "a node of an op on no list is forced": (
        SIN + "\nclr1 = Relu(other1)",
        {"force_f16": ("other",)},
        "other1 clr1",
        {"other1": "FORCED_BY_NAME", "clr1": "BESIDE_ALLOW other1"},
    ),
    "a node is not forced where its op cannot be": (
        CHAIN + "\nd = Polygamma(x, x)\ne = Erfinv(x)",
        {"force_f16": ("^[de]$",)},
        "allow1 clr1 allow2 clr2",
        {"d": "TYPE_NOT_ALLOWED", "e": "NO_KERNEL"},
    ),
    # TensorFlow aborts the process at a constant whose value has another type.
    "a constant is not forced": (
        FORCED + "held = Const() value=float32[]*2.5",
        {"force_f16": (".",), "preserve": ["x"]},
        "allow1 forced",
        {},
    ),
    "a variable is not forced": (
        FORCED + "v = VarHandleOp()\nheld = ReadVariableOp(v)",
        {"force_f16": (".",), "preserve": ["x"]},
        "allow1 forced",
        {},
    ),
    "keeping wins over forcing": (
        CHAIN,
        {"force_f16": ("allow",), "keep_float32": ("allow1",)},
        "clr1 allow2 clr2",
        {"allow1": "KEPT_BY_NAME", "allow2": "FORCED_BY_NAME"},
    ),
    "preserving wins over forcing": (
        CHAIN,
        {"force_f16": ("allow",), "preserve": ["allow2"]},
        "allow1 clr1",
        {"allow2": "PRESERVED"},
    ),
    "a scope keeps a node": (
        CHAIN.replace("Relu(allow1)", "Relu(allow1) _amp_tf_scope='float32'"),
        {},
        "allow1 allow2 clr2",
        {"clr1": "KEPT_BY_SCOPE"},
    ),
    "a scope forces a node": (
        SIN + " _amp_tf_scope='float16'",
        {},
        "other1",
        {"other1": "FORCED_BY_SCOPE"},
    ),
    "one for another type does not": (SIN + " _amp_tf_scope='bfloat16'", {}, "", {}),
    "an argument and a result keep their types": (
        "function f(x: float32) -> (y: float32)\nclr1 = Relu(x)\nallow1 = "
        "MatMul(clr1:activations:0, x)\n"
        "clr2 = Relu(allow1:product:0)\nreturn y = clr2:activations:0",
        {"force_f16": ("x",)},
        "clr1 allow1 clr2",
        {"x": "PRESERVED", "f/y": "PRESERVED"},
    ),
    "an op that holds functions stays although it is on a list": (
        "x = Placeholder()\na = MatMul(x, x)\nw = StatelessWhile(a) T=[float32] cond=c body=b",
        {"precision": "bfloat16"},
        "a",
        {"w": "CALLS_FUNCTION"},
    ),
    **{
        f"an op whose definition does not allow 16 bit stays, {field}": (
            "x = Placeholder()\na = Polygamma(x, x)\nb = MatMul(a, a)",
            {field: ("Polygamma",)},
            "b",
            {"a": "TYPE_NOT_ALLOWED"},
        )
        for field in ("allow_add", "infer_add", "clear_add")
    },
    "a preserved node that a rule would force still spreads its danger": (
        "x = Placeholder()\ndeny1 = Exp(x)\ninfer1 = Sqrt(deny1)\nallow1 = MatMul(infer1, x)",
        {"force_f16": ("deny1",), "preserve": ["deny1"]},
        "allow1",
        {"infer1": "AFTER_DENY deny1"},
    ),
    "a quantized node stays": (
        "f = Placeholder()\na = MatMul(f, f)\nq = QuantizeV2(a, f, f) T=quint8",
        {"allow_add": ("QuantizeV2",)},
        "a",
        {},
    ),
}


@pytest.mark.parametrize(("text", "settings", "f16", "why"), SHOWN.values(), ids=SHOWN)
def test_nodes_that_may_change(text, settings, f16, why):
    result = painted(text, **settings)
    assert result.f16 == f16
    assert {name: result.told(name) for name in why} == why


def test_a_preserved_node_that_would_become_its_successor_is_on_the_list_of_its_own_op():
    norm = "n = FusedBatchNorm(deny1, x, x, x, x)\ninfer1 = Log(n)\nallow1 = MatMul(infer1, infer1)"
    text = f"x = Placeholder()\ndeny1 = Exp(x)\n{norm}\nallow0 = MatMul(x, x)\nclr1 = Relu(infer1)"
    result = painted(text, preserve=["n"])
    assert result.f16 == "allow1 allow0"
    assert result.code("infer1") is Code.NO_ALLOW_NEIGHBOUR
    listed = painted(text, preserve=["n"], infer_add=("FusedBatchNorm",))
    assert listed.told("infer1") == "AFTER_DENY n"


def test_name_rules_that_match_nothing_are_told():
    result = painted(CHAIN, keep_float32=("loss", "allow1"), force_f16=("head",))
    patterns = result.painting.obstacles.patterns
    assert patterns == {"head": False, "loss": False, "allow1": True}


LAYERS = """
    x = Placeholder()
    net/block_1/first/MatMul = MatMul(x, x)
    net/block_1/first/Relu = Relu(net/block_1/first/MatMul)
    net/block_12/first/MatMul = MatMul(net/block_1/first/Relu, x)
    gradient_tape/net/block_1/first/MatMul/MatMul_1 = MatMul(net/block_12/first/MatMul, x)
"""


@pytest.mark.parametrize(
    "pattern", ["layer:block_1", "layer:net/block_1/first", "layer:block_\\d/first"]
)
def test_a_layer_is_kept_by_its_path_with_its_gradient(pattern):
    result = painted(LAYERS, keep_float32=(pattern, "layer:block_2"))
    assert result.f16 == "net/block_12/first/MatMul"
    assert result.told("net/block_1/first/Relu") == "KEPT_BY_NAME"
    assert result.painting.obstacles.patterns == {pattern: True, "layer:block_2": False}


@pytest.mark.parametrize(
    ("pattern", "kept"),
    [("layer:block/first", True), ("layer:block", True), ("layer:before", False)],
)
def test_a_product_that_tensorflow_named_after_the_sum_around_its_layer_belongs_to_its_layer(
    pattern, kept
):
    text = (
        "x = Placeholder()\nnet/block/first/w = Placeholder()\nnet/block/first/b = Placeholder()\n"
        "net/before/Relu = Relu(x)\nnet/block/add = _FusedMatMul(net/before/Relu, "
        "net/block/first/w, "
        "net/block/first/b, net/before/Relu) num_args=2 TArgs=[float32, float32] "
        "fused_ops=['BiasAdd', 'Add']"
    )
    result = painted(text, precision="bfloat16", keep_float32=(pattern,))
    assert (result.code("net/block/add") is Code.KEPT_BY_NAME) == kept


def test_a_scope_for_some_layers_is_for_their_nodes_alone():
    inner = "float32\tlayer:block_1\tlayer:block_7"
    marked = LAYERS.replace("MatMul(x, x)", f"MatMul(x, x) _amp_tf_scope='{inner}'")
    marked = marked.replace("Relu, x)", f"Relu, x) _amp_tf_scope='{inner}'")
    result = painted(marked)
    assert result.told("net/block_1/first/MatMul") == "KEPT_BY_SCOPE"
    assert result.told("net/block_12/first/MatMul") == "ALLOW_LIST"


@pytest.mark.parametrize(
    ("hardware", "f16", "other"),
    [(VOLTA, "allow1 clr2 allow3", "allow2"), (BF16_CPU, "allow2 clr2 allow3", "allow1")],
)
def test_nodes_on_another_device_stay_and_what_follows_them_too(hardware, f16, other):
    text = f"""
        x = Placeholder()
        allow1 = MatMul(x, x) {GPU}
        clr1 = Relu(allow1) {CPU}
        allow2 = MatMul(x, x) {CPU}
        clr2 = Relu(x)
        allow3 = MatMul(clr2, clr2)
    """
    result = painted(text, hardware=hardware)
    assert result.f16 == f16
    assert result.told(other) == "OTHER_DEVICE"


THREE = "x = Placeholder()\na1 = MatMul(x, x)\na2 = MatMul(x, x)\nb = MatMul(x, x)"


@pytest.mark.parametrize(
    ("text", "settings", "rule"),
    [
        ("x = Placeholder()\nr = Relu(x)", {}, Code.NOTHING_TO_CONVERT),
        (CHAIN, {"preserve": ["allow1", "allow2"]}, Code.PRESERVED),
        (CHAIN, {"keep_float32": ("allow",)}, Code.KEPT_BY_NAME),
        (
            CHAIN.replace("clr1, clr1)", f"clr1, clr1) {GPU}"),
            {"preserve": ["allow1"]},
            Code.PRESERVED,
        ),
        (CHAIN.replace("x)", f"x) {GPU}").replace("clr1)", f"clr1) {GPU}"), {}, Code.OTHER_DEVICE),
        (
            "x = Placeholder()\np = AvgPool3D(x) ksize=[1] strides=[1] padding='SAME'",
            {"infer_remove": ("AvgPool3D",), "allow_add": ("AvgPool3D",)},
            Code.NO_KERNEL,
        ),
        ("", {}, Code.NOTHING_TO_CONVERT),
        (
            THREE,
            {"keep_float32": ("a",), "preserve": ["b"]},
            Code.KEPT_BY_NAME,
        ),  # in the way of most nodes
        (THREE, {"keep_float32": ("b",), "preserve": ["a1", "a2"]}, Code.PRESERVED),
    ],
)
def test_where_nothing_is_converted_the_commonest_obstacle_is_the_reason(text, settings, rule):
    result = painted(text, **settings)
    assert result.f16 == ""
    assert result.painting.why_nothing == rule


def test_without_a_target_every_node_says_why():
    result = painted(CHAIN, precision="auto", hardware=Hardware())
    assert result.painting.precision is None
    assert result.painting.why_nothing is Code.NO_TARGET
    assert result.words("allow1") == (
        "nothing is converted on this machine "
        "(this CPU has neither avx512_bf16 nor amx_bf16 and TensorFlow sees no GPU)"
    )
    assert list(result.painting.dtypes_after()) == list(result.painting.view.dtypes)
    assert result.painting.trail(1) == [1]
