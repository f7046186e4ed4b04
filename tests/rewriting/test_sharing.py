"""Reads of variables, ops that make TensorLists, and lists of several functions are shared."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework.function_pb2 import FunctionDefLibrary

import amp_tf
from amp_tf.config import AmpConfig
from amp_tf.oplists.hardware import Hardware
from amp_tf.painting.reasons import Rule
from amp_tf.rewriting import pipeline
from amp_tf.rewriting.pipeline import rewrite_program
from tests.rewriting.rewritten import BF16_CPU, reads
from tests.small_graphs import function, graph, run

BF16 = amp_tf.AmpConfig(precision="bfloat16", target="cpu")
X = "x = Placeholder()\nv = VarHandleOp()\n"


TWO_READS = """
    r1 = ReadVariableOp(v)
    r2 = ReadVariableOp(v)
    a = MatMul(x, r1)
    b = MatMul(a, r2)
    out = Exp(b)
"""


#: Reads of variables, and those whose values are cast.
READS = {
    "reads that wait for nothing": (TWO_READS, ["r1"]),
    "behind a write": (
        "r1 = ReadVariableOp(v)\na = MatMul(x, r1)\nw = AssignVariableOp(v, x) ^r1\n"
        "r2 = ReadVariableOp(v) ^w\nb = MatMul(a, r2)\nout = Exp(b)",
        ["r1", "r2"],
    ),
    "on other devices and of other variables": (
        "u = VarHandleOp()\nr1 = ReadVariableOp(v)\nr2 = ReadVariableOp(u)\nr3 = "
        "ReadVariableOp(v) @/device:CPU:1\n"
        "a = MatMul(x, r1)\nb = MatMul(a, r2)\nc = MatMul(b, r3)\nout = Exp(c)",
        ["r1", "r2", "r3"],
    ),
}


@pytest.mark.parametrize(("text", "cast"), READS.values(), ids=READS)
def test_reads_that_give_the_same_are_cast_once(text, cast):
    result = amp_tf.rewrite(graph(X + text), BF16, hardware=BF16_CPU)
    sources = [node.input[0] for node in result.graph.node if node.op == "Cast"]
    assert [name for name in sources if name.startswith("r")] == cast
    assert not amp_tf.rewrite(result.graph, BF16, hardware=BF16_CPU).changed


@pytest.mark.parametrize("fed", ["r1", "r2"])
def test_a_read_that_is_fed_keeps_its_readers_and_no_others(fed):
    result = amp_tf.rewrite(graph(X + TWO_READS), BF16, preserve=[fed, "out"])
    sources = [node.input[0] for node in result.graph.node if node.op == "Cast"]
    assert {"r1", "r2"} <= set(sources)


def test_reads_of_a_function_are_shared_though_they_are_preserved():
    """TensorFlow preserves all of them, because they are stateful."""
    proto = graph(X.replace("VarHandleOp()", "_Arg() T=resource index=0") + TWO_READS)
    result = amp_tf.rewrite(proto, BF16, preserve=["r1", "r2", "out"], hardware=BF16_CPU)
    sources = [node.input[0] for node in result.graph.node if node.op == "Cast"]
    assert [name for name in sources if name.startswith("r")] == ["r1"]


def test_reads_that_no_product_reads_stay_as_they_are():
    text = TWO_READS.replace("MatMul(x, r1)", "Exp(r1)").replace("MatMul(a, r2)", "Exp(r2)")
    result = amp_tf.rewrite(graph(f"{X}{text}m = MatMul(x, x)"), BF16)
    assert result.changed
    assert reads(result.graph, "a") == ["r1"]
    assert reads(result.graph, "b") == ["r2"]


def test_where_nothing_becomes_16_bit_nothing_is_shared():
    config = amp_tf.AmpConfig(precision="bfloat16", keep_float32=("^[ab]$",))
    assert not amp_tf.rewrite(graph(X + TWO_READS), config).changed


def test_updates_inside_of_a_step_are_seen():
    """Two steps in one call: the second one's products read what the first one wrote."""
    variable = tf.Variable(np.eye(8, dtype=np.float32))

    @tf.function
    def steps(x):
        for factor in (2.0, 3.0):
            x = tf.matmul(tf.matmul(x, variable), variable)
            variable.assign(variable * factor)
        return x

    x = np.ones((4, 8), np.float32)
    with amp_tf.enable(BF16):
        np.testing.assert_allclose(steps(x).numpy(), 4.0 * x)  # exact: all are powers of two
    np.testing.assert_allclose(variable.numpy(), 6.0 * np.eye(8))


TWICE = (
    X
    + """
b = VarHandleOp()
r1 = ReadVariableOp(v)
r2 = ReadVariableOp(v)
b1 = ReadVariableOp(b)
b2 = ReadVariableOp(b)
one = _FusedMatMul(x, r1, b1) num_args=1 fused_ops=['BiasAdd']
two = _FusedMatMul(one, r2, b2) num_args=1 fused_ops=['BiasAdd']
left = Sub(one, two)
out = MatMul(left, x)
"""
)


def test_what_reads_a_shared_variable_can_be_split_as_well():
    result = amp_tf.rewrite(graph(TWICE), BF16, hardware=BF16_CPU).graph
    for name in ("one", "two"):
        product = f"{name}-MatMul-0-AmpTfSplit-0-CastToFp32-0-AutoMixedPrecision"
        assert reads(result, name) == [product, "b1"]


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


def rewrite(text, **settings):
    config = AmpConfig(precision="bfloat16", **settings)
    return amp_tf.rewrite(graph(text), config, hardware=BF16_CPU, preserve=ENDS)


def element_types(result):
    types = {}
    for node in result.graph.node:
        if "element_dtype" in node.attr:
            types[node.name] = node.attr["element_dtype"].type
    return types


def test_a_list_of_products_is_16_bit_beside_one_of_exponentials():
    result = rewrite(SHARED)
    narrow = dict.fromkeys((TWIN, "narrow", "back1"), 14)
    wide = dict.fromkeys(("empty", "wide", "back2"), 1)
    assert element_types(result) == narrow | wide
    assert reads(result.graph, TWIN) == reads(result.graph, "empty") == ["shape", "size", "^x"]
    ends = ("fetch1", "fetch2")
    x = np.random.default_rng(0).normal(size=(4, 4), scale=0.3).astype("float32")
    feeds = {"x:0": x}
    before = run(graph(SHARED), ends, feeds)
    after = run(result.graph, ends, feeds)
    tolerance = 3 * 2**-8 * np.abs(before[0]).max()
    np.testing.assert_allclose(after[0], before[0], rtol=0, atol=tolerance)
    np.testing.assert_array_equal(after[1], before[1])


@pytest.mark.parametrize(
    "text",
    [
        SHARED.replace("deny2 = Exp(back2:1)", "deny2 = MatMul(back2:1, x)"),  # both can
        SHARED.replace("allow2 = MatMul(back1:1, x)", "allow2 = Exp(back1:1)"),  # neither can
        SHARED.replace("PushBack(empty, deny1)", "PushBack(own, deny1)").replace(
            "    wide",
            "    own = EmptyTensorList(shape, size) element_dtype=float32 shape_type=int32\n    "
            "wide",
        ),
    ],
)
def test_lists_that_agree_or_have_ops_of_their_own_stay_as_they_are(text):
    for node in rewrite(text).graph.node:
        assert not node.name.endswith("AmpTfList"), node.name


def test_an_op_that_the_user_keeps_in_float32_makes_all_its_lists():
    result = rewrite(SHARED, keep_float32=("^empty$",))
    assert set(element_types(result).values()) == {1}


XLA = Hardware(cpu_has_bf16=True, is_xla=True)

MAIN = """
function main(x: float32, w: float32) -> (y: float32)
  shape = Const() dtype=int32 value=int32[2]*4
  size = Const() dtype=int32 value=int32[]*2
  list = EmptyTensorList(shape:output:0, size:output:0) element_dtype=float32 shape_type=int32
  kept = PartitionedCall(list:handle:0, x, w) Tin=[variant, float32, float32] Tout=[variant] f=keep
  used = PartitionedCall(kept:output:0, w) Tin=[variant, float32] Tout=[float32] f=use
  return y = used:output:0
"""
KEEP = """
    function keep(list: variant, x: float32, w: float32) -> (more: variant)
      product = MatMul(x, w)
      pushed = TensorListPushBack(list, {value}) element_dtype=float32
      return more = pushed:output_handle:0
"""
USE = """
    function use(list: variant, w: float32) -> (y: float32)
      shape = Const() dtype=int32 value=int32[2]*4
      popped = TensorListPopBack(list, shape:output:0) element_dtype=float32
      wave = {op}(popped:tensor:0)
      other = Sin(popped:tensor:0)
      product = MatMul({value}, w)
      return y = product:product:0
"""
READ_BY_PRODUCT = USE.replace(
    "      wave = {op}(popped:tensor:0)\n      other = Sin(popped:tensor:0)\n", ""
)


def types_of_lists(*texts, **settings):
    """The element type of each node of a list, by its name; the first function is the root."""
    types = {}
    for result in rewritten(*texts, **settings):
        for node in result.graph.node_def:
            if "element_dtype" in node.attr:
                types[node.name] = tf.as_dtype(node.attr["element_dtype"].type).name
    return types


def rewritten(*texts, **settings):
    root, *functions = map(function, texts)
    config = AmpConfig(precision="bfloat16", **settings)
    library = FunctionDefLibrary(function=functions)
    return rewrite_program(root, functions, config, XLA, library)


def cast_inputs(definition):
    """Returns the inputs of a function's casts."""
    found = []
    for node in definition.node_def:
        if node.op == "Cast":
            found.append(node.input[0])
    return found


def everywhere(kind):
    return dict.fromkeys(("list", "pushed", "popped"), kind)


def test_what_products_alone_read_is_rounded_before_it_is_kept():
    texts = MAIN, KEEP.format(value="x"), READ_BY_PRODUCT.format(value="popped:tensor:0")
    main, keep, use = rewritten(*texts)
    assert types_of_lists(*texts) == everywhere("bfloat16")
    assert use.report.graphs[0].painting.count(Rule.LIST_SHARED) == 1
    assert cast_inputs(keep.graph) == ["x", "w"]  # x for both who read it
    assert cast_inputs(use.graph) == ["product:product:0", "w"]  # none of what is read
    assert main.changed
    assert main.report.why_nothing is None


def test_whoever_asks_for_a_shape_reads_no_value():
    """The gradient of a convolution does."""
    use = READ_BY_PRODUCT.format(value="popped:tensor:0").replace(
        "      product", "      sides = Shape(popped:tensor:0) T=float32\n      product"
    )
    texts = MAIN, KEEP.format(value="x"), use
    assert types_of_lists(*texts) == everywhere("bfloat16")


@pytest.mark.parametrize("op", ["Sin", "Exp"])
def test_what_others_read_too_stays(op):
    use = USE.format(value="popped:tensor:0", op=op)
    assert types_of_lists(MAIN, KEEP.format(value="x"), use) == everywhere("float32")


def test_what_was_rounded_before_is_kept_as_it_is_whoever_reads_it():
    use = USE.format(value="wave:y:0", op="Sin")
    assert types_of_lists(MAIN, KEEP.format(value="product:product:0"), use) == everywhere(
        "bfloat16"
    )


@pytest.mark.parametrize(
    ("value", "op", "kind"),
    [
        ("x", "Mul", "bfloat16"),
        ("root:y:0", "Mul", "bfloat16"),
        ("large:y:0", "Mul", "float32"),  # 16 bit may not hold it
        ("x", "Sub", "float32"),  # a difference would show the rounding
    ],
)
def test_what_float32_arithmetic_reads_for_a_product_is_rounded_once(value, op, kind):
    keep = KEEP.format(value=value).replace(
        "      pushed", "      root = Sqrt(x)\n      large = Exp(x)\n      pushed"
    )
    use = USE.format(value="read:z:0", op="Sin")
    use = use.replace("wave = Sin(popped:tensor:0)", f"read = {op}(popped:tensor:0, w)")
    use = use.replace("      other = Sin(popped:tensor:0)\n", "")
    assert types_of_lists(MAIN, keep, use) == everywhere(kind)


def test_a_list_that_is_read_into_another_is_rounded_by_it():
    relay = """
        function relay(list: variant, other: variant) -> (more: variant)
          shape = Const() dtype=int32 value=int32[2]*4
          taken = TensorListPopBack(list, shape:output:0) element_dtype=float32
          put = TensorListPushBack(other, taken:tensor:0) element_dtype=float32
          return more = put:output_handle:0
    """
    main = MAIN.replace(
        "used = PartitionedCall(kept:output:0,", "used = PartitionedCall(moved:output:0,"
    )
    main = main.replace(
        "  used",
        "  second = EmptyTensorList(shape:output:0, size:output:0) element_dtype=float32 "
        "shape_type=int32\n"
        "  moved = PartitionedCall(kept:output:0, second:handle:0) Tin=[variant, variant] "
        "Tout=[variant] f=relay\n"
        "  used",
    )
    keep = KEEP.format(value="x")
    names = ("list", "second", "pushed", "taken", "put", "popped")
    found = types_of_lists(main, keep, relay, READ_BY_PRODUCT.format(value="popped:tensor:0"))
    assert found == dict.fromkeys(names, "bfloat16")
    found = types_of_lists(main, keep, relay, USE.format(value="popped:tensor:0", op="Sin"))
    assert found == dict.fromkeys(names, "float32")


@pytest.mark.parametrize("name", ["list", "pushed", "popped"])
def test_a_list_that_the_user_keeps_somewhere_stays_everywhere(name):
    texts = MAIN, KEEP.format(value="x"), READ_BY_PRODUCT.format(value="popped:tensor:0")
    assert types_of_lists(*texts, keep_float32=(f"^{name}$",)) == everywhere("float32")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("(y: float32)", "(y: float32, out: variant)\n      return out = kept:output:0"),
        (
            "return y",
            "seen = OptionalFromValue(kept:output:0) Toutput_types=[variant]\n      return y",
        ),
        (
            "return y",
            "lost = PartitionedCall(kept:output:0) Tin=[variant] Tout=[variant] f=nobody_knows\n  "
            "    return y",
        ),
    ],
)
def test_a_list_of_which_not_all_users_are_known_stays(before, after):
    main = MAIN.replace(before, after)
    keep = KEEP.format(value="x")
    found = types_of_lists(main, keep, READ_BY_PRODUCT.format(value="popped:tensor:0"))
    assert found == everywhere("float32")


def test_a_list_that_a_recursive_function_takes_stays():
    """Its call goes on with the function as it was."""
    use = READ_BY_PRODUCT.format(value="popped:tensor:0")
    again = (
        "again = PartitionedCall(list, w) Tin=[variant, float32] Tout=[float32] f=use\n      "
        "return y"
    )
    texts = MAIN, KEEP.format(value="x"), use.replace("return y", again)
    assert types_of_lists(*texts) == everywhere("float32")


LOOPING = """
    function main(h: float32, c: float32, w: float32) -> (y: float32)
      looped = StatelessWhile(h, c, w) T=[float32, float32, float32] cond=goes_on body=cell
      return y = looped:output:0
"""
GOES_ON = """
    function goes_on(h: float32, c: float32, w: float32) -> (go: bool)
      go = Const() dtype=bool value=bool[]*1
      return go = go:output:0
"""
#: The gate is used by products of the next iteration alone, through h; c is a running sum.
CELL = """
    function cell(h: float32, c: float32, w: float32) -> (h2: float32, c2: float32, w2: float32)
      product = MatMul(h, w)
      gate = Sigmoid(product:product:0)
      step = Tanh(product:product:0)
      sum = AddV2(c, step:y:0)
      shown = Tanh(sum:z:0)
      out = Mul(gate:y:0, shown:y:0)
      return h2 = out:z:0
      return c2 = sum:z:0
      return w2 = w
"""


def f16_nodes(*texts):
    """The nodes of the loop's body that compute in 16 bit."""
    names = set()
    for result in rewritten(*texts):
        found = result.report.nodes.where(precision="bfloat16", function="cell")
        names |= {node.name for node in found}
    return names


def test_what_the_next_iteration_multiplies_is_used_by_a_product():
    assert f16_nodes(LOOPING, GOES_ON, CELL) == {"product", "gate", "step", "out"}


def test_each_result_is_the_argument_in_its_place():
    """With the results the other way round c comes from a product, and h is the running sum."""
    crossed = (
        CELL.replace("h2 = out", "h2 = Z")
        .replace("c2 = sum", "c2 = out")
        .replace("h2 = Z", "h2 = sum")
    )
    assert f16_nodes(LOOPING, GOES_ON, crossed) == {"product", "step"}


def test_a_function_that_is_called_otherwise_too_is_judged_alone():
    types = "[float32, float32, float32]"
    called = f"called = PartitionedCall(h, c, w) Tin={types} Tout={types} f=cell\n      return"
    main = LOOPING.replace("return", called)
    assert f16_nodes(main, GOES_ON, CELL) == {"product"}


def test_a_function_that_is_rewritten_alone_knows_the_loops_of_its_library():
    library = FunctionDefLibrary(function=[function(LOOPING), function(GOES_ON), function(CELL)])
    report = pipeline.rewrite(function(CELL), BF16, hardware=XLA, library=library).report
    assert {node.name for node in report.nodes.where(precision="bfloat16")} == {
        "product",
        "gate",
        "step",
        "out",
    }
