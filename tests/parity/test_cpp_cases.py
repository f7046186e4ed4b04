"""Every case of auto_mixed_precision_test.cc, confirmed by the C++ pass.

Node names say which list the op is on: ``allow1``, ``infer1``, ``clr1`` (clear), ``deny1``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from amp_tf.config import AmpConfig
from tests.oracle import MODES, Mode, run_original
from tests.parity.comparison import can_run, differences, rewired, run_ours
from tests.small_graphs import function, graph, run

pytestmark = [pytest.mark.cpu_dependent, pytest.mark.usefixtures("local_rules")]
CPU = "@/job:localhost/replica:0/task:0/device:CPU:0"
INPUT = "input = Const() value=float32[32, 32]*0.03125\n"
PRODUCT = INPUT + "allow1 = MatMul(input, input)\n"
CHAIN = INPUT + "deny1 = Exp(input)\nclr1 = Relu(deny1)\ninfer1 = Sqrt(clr1)\nclr2 = Relu(infer1)\n"
MIDDLE = (
    CHAIN
    + "allow1 = MatMul(clr2, clr2)\nclr3 = Relu(allow1)\ninfer2 = Log(clr3)\nclr4 = Relu(infer2)\n"
)
SIMPLE = (
    MIDDLE + "deny2 = SparseMatMul(clr4, clr4) Ta=float32 Tb=float32\n"
    "clr5 = Relu(deny2)\nfetch = Identity(clr5)"
)
ALREADY = (
    INPUT + "cst1 = Cast(input) DstT={0}\n"
    "allow1 = MatMul(cst1, cst1) T={0}\nclr1 = Relu(allow1) T={0}\n"
    "cst2 = Cast(clr1) SrcT={0}\nclr2 = Relu(cst2)\nfetch = Identity(clr2)"
)
IMAGES = (
    "input = Const() value=float32[8, 56, 56, 16]*0.03125\nweight = Const() value=float32[3, 3, "
    "16, 16]*2\n"
    "bias = Const() value=float32[16]*0.03125\nscale = Const() value=float32[16]*3\n"
    "offset = Const() value=float32[16]*4\n"
)
CONV = "strides=[1, 1, 1, 1] padding='SAME'"
UNARY = (
    "input = Placeholder() shape=[128, 128]\neye = Placeholder() shape=[128, 128]\nallow1 = "
    "MatMul(input, eye)\n"
    "infer1 = {}(allow1)\nallow2 = MatMul(infer1, eye)\nfetch = Identity(allow2)"
)
# TensorLists: those that touch a matrix product become 16 bit as a whole; a list on its own, or one
# that passes through a function, stays float32.
LISTS = (
    PRODUCT
    + "shape = Const() dtype=int32 value=int32[2]*32\neight = Const() dtype=int32 value=int32[]*8\n"
)
EMPTY = "EmptyTensorList(shape, eight) shape_type=int32"
RESERVED = "TensorListReserve(shape, eight) shape_type=int32"
SET_GET = "".join(f"idx{n} = Const() dtype=int32 value=int32[]*{n}\n" for n in (1, 2, 3, 6)) + (
    f"tl1 = {RESERVED}\ntl1w1 = TensorListSetItem(tl1, idx1, input)\n"
    f"tl1w2 = TensorListSetItem(tl1, idx2, allow1)\ntl1rs = TensorListResize(tl1w2, idx6)\n"
    f"tl1r1 = TensorListGetItem(tl1rs, idx2, shape) Tshape=int32\ninfer1 = {{}}\n"
    f"allow2 = MatMul(infer1, infer1)\ntl1w3 = TensorListSetItem(tl1, idx3, allow2)\n"
    f"tl1r2 = TensorListGetItem(tl1w3, idx3, shape) Tshape=int32\n"
    f"tl2 = {RESERVED}\ntl2w1 = TensorListSetItem(tl2, idx1, input)\n"
    f"tl2r1 = TensorListGetItem(tl2w1, idx1, shape) Tshape=int32\n"
    "fetch = Identity(tl1r2)\nfetch2 = Identity(tl2r1)"
)
OF_LISTS = "tl1 tl1w1 allow1 tl1w2 tl1r1 infer1 allow2 tl1w3 tl1r2"
CALLED = """
    function Func1(ihandle: variant, x: float32) -> (ohandle: variant, y: float32)
      shape = Const() dtype=int32 value=int32[2]*32
      pushed = TensorListPushBack(ihandle, x)
      popped = TensorListPopBack(pushed:output_handle:0, shape:output:0)
      return ohandle = popped:output_handle:0
      return y = popped:tensor:0
"""


class Case(NamedTuple):
    """A graph, and the nodes that are 16 bit afterwards.

    Attributes:
        f16: on CPUs; ``cuda``, where given, on GPUs.
        fetch: the nodes that are preserved, and whose values must agree with float32.
        atol, rtol: how far a fetched value may be from float32's with float16; bfloat16, which has
            three bits fewer, may be eight times as far.
        feeds: values by tensor name.
    """

    text: str
    f16: str
    fetch: tuple[str, ...] = ("fetch",)
    rtol: float = 5e-4
    atol: float = 1e-6
    feeds: dict[str, Any] = {}  # noqa: RUF012 (nobody changes it)
    level: str = "DEFAULT"
    cuda: str | None = None


def between_products(op, low, high, atol, rtol):
    values = np.random.default_rng(0).uniform(low, high, (128, 128)).astype(np.float32)
    feeds = {"input:0": values, "eye:0": np.eye(128, dtype=np.float32)}
    return Case(UNARY.format(op), "allow1 infer1 allow2", rtol=rtol, atol=atol, feeds=feeds)


CASES = {
    "NoOp": Case(f"{CHAIN}fetch = Identity(clr2)", ""),
    "AlreadyFp16": Case(ALREADY.format("float16"), "cst1 allow1 clr1 cst2"),
    "MklAlreadyBf16": Case(ALREADY.format("bfloat16"), "cst1 allow1 clr1 cst2"),
    "Simple": Case(SIMPLE, "clr2 allow1 clr3"),
    "CpuSimple": Case(SIMPLE.replace("\n", f" {CPU}\n"), "clr2 allow1 clr3", cuda=""),
    "NoInferOp": Case(
        f"{MIDDLE}allow2 = MatMul(clr4, clr4)\ninfer3 = Log(allow2)\nfetch = Identity(infer3)",
        "clr2 allow1 clr3 clr4 allow2",
        level="TREAT_INFER_AS_DENY",
    ),
    "BidirectionalClearChain": Case(
        f"{INPUT}clr1 = Relu(input)\nclr2 = Relu(input)\nallow1 = MatMul(clr1, clr1)\n"
        "clr3 = ShapeN(clr1, clr2) out_type=int32\nclr4 = Relu(clr2)\nfetch = Identity(allow1)\n"
        "fetch2 = Identity(clr4)",
        "clr1 clr2 allow1 clr3 clr4",
        ("fetch", "fetch2"),
    ),
    "PreserveFetches": Case(
        f"{PRODUCT}clr1 = Relu(allow1)\ninfer1 = Sqrt(clr1)\ndeny1 = Exp(infer1)\nclr2 = "
        "Relu(deny1)\n"
        "allow2 = MatMul(clr2, clr2)\nclr3 = Relu(allow2)\ndeny2 = Exp(clr3)\nclr4 = Relu(deny2)",
        "allow2",
        ("allow1", "clr2", "clr3"),
        rtol=5e-3,
    ),
    "PreserveCPUNodes": Case(
        f"{INPUT}clr1 = Relu(input)\nallow1 = MatMul(clr1, clr1)\ninfer1 = Tanh(allow1)\n"
        f"allow2 = MatMul(infer1, infer1) {CPU}\nclr2 = Relu(allow2)\nfetch = Identity(clr2)",
        # on the CPU the pinned node is as processable as the rest
        "clr1 allow1 infer1 allow2 clr2",
        rtol=1e-2,
        # Since TensorFlow 2.20 an infer node that follows an allow node is converted; the C++ test
        # says Tanh stays.
        cuda="clr1 allow1 infer1",
    ),
    "PreserveIdentityAfterVariable": Case(
        f"{INPUT}var1 = VariableV2() shape=[32, 32]\nclr1 = Identity(var1)\nallow1 = "
        "MatMul(input, clr1)\n"
        "input2 = Const() value=float32[32, 32]*0.03125\nclr2 = Identity(input2)\nallow2 = "
        "MatMul(input, clr2)\n"
        "fetch = Identity(allow1)\nfetch2 = Identity(allow2)",
        "allow1 clr2 allow2",
        ("fetch", "fetch2"),
        rtol=5e-3,
        feeds={"var1:0": np.full((32, 32), 3.141593, np.float32)},
    ),
    "FusedBatchNorm": Case(
        f"{IMAGES}none = Const() value=float32[0]\nallow1 = Conv2D(input, weight) {CONV}\n"
        "fbn1 = FusedBatchNorm(allow1, scale, offset, none, none)\n"
        "bng1 = FusedBatchNormGrad(fbn1, allow1, scale, fbn1:3, fbn1:4)\ninfer1 = Add(fbn1, bng1)\n"
        f"allow2 = Conv2D(infer1, weight) {CONV}\nfetch = Identity(allow2)",
        "allow1 fbn1 bng1 infer1 allow2",
        rtol=1e-2,
    ),
    "RepeatedAndListTypeAttrs": Case(
        f"{PRODUCT}clr1 = IdentityN(allow1, allow1, allow1) T=[float32, float32, float32]\n"
        "infer1 = AddN(clr1, clr1:1, clr1:2)\nallow2 = MatMul(infer1, infer1)\nfetch = "
        "Identity(allow2)",
        "allow1 clr1 infer1 allow2",
        rtol=1e-2,
    ),
    "ExistingCast": Case(
        "input = Const() dtype=bool value=bool[32, 32]*1\ncst1 = Cast(input) SrcT=bool "
        "DstT=float32\n"
        "allow1 = MatMul(cst1, cst1)\nfetch = Identity(allow1)",
        "cst1 allow1",
    ),
    # mrg2: optimised graphs of real models have two Merges of one NextIteration
    "RecurrentEdgeColorMismatch": Case(
        f"{INPUT}deny1 = Exp(input)\nent1 = Enter(deny1) frame_name='loop1'\nmrg1 = Merge(ent1, "
        "nxt1)\n"
        "con1 = Const() dtype=bool value=bool[]*0 ^mrg1\nlpc1 = LoopCond(con1)\nswt1 = "
        "Switch(mrg1, lpc1)\n"
        "infer1 = Sqrt(swt1:1)\nallow1 = MatMul(infer1, infer1)\nnxt1 = "
        "NextIteration(allow1)\next1 = Exit(swt1)\n"
        "fetch = Identity(ext1)\nmrg2 = Merge(ent1, nxt1)",
        "allow1",
    ),
    "BatchMatMul": Case(
        "input = Const() value=float32[64, 32, 32]*0.0303\nallow1 = BatchMatMul(input, input)\n"
        "fetch = Identity(allow1)",
        "allow1",
        rtol=3e-3,
    ),
    "CpuMixedFanout": Case(
        f"{PRODUCT}input2 = Const() value=float32[32, 32]*0.0625\nallow2 = MatMul(allow1, input2)\n"
        "deny = Exp(allow1)\ninfer = Add(deny, allow2)\nfetch = Identity(infer)",
        "allow1 allow2",
    ),
    "MklInferFollowUpStreamAllow": Case(
        f"{IMAGES}allow = Conv2D(input, weight) {CONV}\ninfer = BiasAdd(allow, bias)\nclr = "
        "Relu(infer)\n"
        "fetch = Identity(clr)",
        "allow infer clr",
        rtol=1e-2,
    ),
    "MklInferFollowUpStreamDeny": Case(
        f"{IMAGES}deny = Pow(input, bias)\ninfer = BiasAdd(deny, bias)\nclr = Relu(infer)\nfetch "
        "= Identity(clr)",
        "",
    ),
    # The range of the input, and the tolerances.
    "EluOp": between_products("Elu", -5, 5, 1e-3, 1e-3),
    "ErfOp": between_products("Erf", -5, 5, 1e-3, 0),
    "ErfcOp": between_products("Erfc", -5, 5, 1e-3, 0),
    "InvOp": between_products("Inv", 0.01, 10, 0, 1e-3),
    "LogOp": between_products("Log", 0.01, 10, 1e-3, 2e-3),
    "Log1pOp": between_products("Log1p", -0.99, 9, 1e-3, 5e-3),
    "LogSoftmaxOp": between_products("LogSoftmax", -8, 8, 0, 1e-2),
    "ReciprocalOp": between_products("Reciprocal", 0.01, 10, 0, 1e-3),
    "SigmoidOp": between_products("Sigmoid", -5, 5, 1e-3, 0),
    "SoftmaxOp": between_products("Softmax", -8, 8, 2e-3, 0),
    "SoftplusOp": between_products("Softplus", -5, 5, 2e-3, 2e-3),
    "SqrtOp": between_products("Sqrt", 0, 10, 1e-3, 1e-3),
    "TanhOp": between_products("Tanh", -5, 5, 1e-3, 0),
    "TensorListSetGet": Case(LISTS + SET_GET.format("Tanh(tl1r1)"), OF_LISTS, ("fetch", "fetch2")),
    "MklTensorListSetGet": Case(
        LISTS + SET_GET.format("Mul(tl1r1, tl1r1)"), OF_LISTS, ("fetch", "fetch2"), rtol=1e-2
    ),
    "TensorListPushPop": Case(
        f"{LISTS}tl1 = {EMPTY}\ntl1w1 = TensorListPushBack(tl1, input)\n"
        f"tl1w2 = TensorListPushBack(tl1w1, allow1)\ntl1r1 = TensorListPopBack(tl1w2, shape)\n"
        "infer1 = Tanh(tl1r1:1)\nallow2 = MatMul(infer1, infer1)\ntl1w3 = "
        f"TensorListPushBack(tl1, allow2)\n"
        f"tl1r2 = TensorListPopBack(tl1w3, shape)\ntl2 = {EMPTY}\ntl2w1 = "
        f"TensorListPushBack(tl2, input)\n"
        f"tl2r1 = TensorListPopBack(tl2w1, shape)\nfetch = Identity(tl1r2:1)\nfetch2 = "
        "Identity(tl2r1:1)",
        OF_LISTS,
        ("fetch", "fetch2"),
    ),
    # Nothing but the list itself connects tl2w1 to a 16-bit node; if it stayed float32, the graph
    # would be broken.
    "TensorListFromTensor": Case(
        f"{LISTS}row = Const() dtype=int32 value=int32[1]*32\n"
        f"tl1 = TensorListFromTensor(allow1, row) shape_type=int32\n"
        f"tl1r1 = TensorListStack(tl1, row)\ninfer1 = Tanh(tl1r1)\nallow2 = MatMul(infer1, "
        "infer1)\n"
        f"tl2 = TensorListFromTensor(allow1, row) shape_type=int32\n"
        f"tl2w1 = TensorListPushBack(tl2, input)\nfetch = Identity(allow2)",
        "allow1 tl1 tl1r1 infer1 allow2 tl2 tl2w1",
    ),
    "TensorListPushBackBatchAndConcatLists": Case(
        f"{LISTS}tl1 = {EMPTY}\ntl2 = {EMPTY}\nhandles = Pack(tl1, tl2) T=variant\nitems = "
        "Pack(allow1, allow1)\n"
        f"tl12w1 = TensorListPushBackBatch(handles, items)\nzero = Const() dtype=int32 "
        "value=int32[]*0\n"
        "halves = Split(zero, tl12w1) num_split=2 T=variant\nscalar = Const() dtype=int32 "
        "value=int32[0]\n"
        "first = Reshape(halves, scalar) T=variant Tshape=int32\n"
        "second = Reshape(halves:1, scalar) T=variant Tshape=int32\n"
        f"tl3 = TensorListConcatLists(first, second)\ntl3r1 = TensorListPopBack(tl3, shape)\n"
        "infer1 = Tanh(tl3r1:1)\nallow2 = MatMul(infer1, infer1)\nfetch = Identity(allow2)",
        "tl1 tl2 allow1 items tl12w1 tl3 tl3r1 infer1 allow2",
    ),
    "TensorListThroughFunction": Case(
        f"{LISTS}infer1 = Tanh(allow1)\ntl1 = {EMPTY}\ntl1w1 = TensorListPushBack(tl1, infer1)\n"
        f"call = Func1(tl1w1, infer1)\ntl1r1 = TensorListPopBack(call, shape)\ntl2 = "
        f"{EMPTY}\n"
        f"tl2w1 = TensorListPushBack(tl2, infer1)\ntl2r1 = TensorListPopBack(tl2w1, shape)\n"
        "allow2 = MatMul(tl1r1:1, tl2r1:1)\nfetch = Identity(allow2)",
        "allow1 infer1 tl2 tl2w1 tl2r1 allow2",
    ),
}


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
@pytest.mark.parametrize("name", CASES)
def test_types_ops_and_casts_are_those_of_tensorflow_and_wires_and_values_stay(name, mode):
    case = CASES[name]
    functions = [function(CALLED)] if "Func1" in case.text else []
    graph_def = graph(case.text, *functions)
    knobs = AmpConfig(level=case.level)
    original = run_original(graph_def, mode, case.fetch, knobs)
    ours = run_ours(graph_def, mode, case.fetch, knobs)
    f16 = case.f16
    if mode is Mode.CUDA and case.cuda is not None:
        f16 = case.cuda
    already = set()
    for node in graph_def.node:
        if any(value.type in (14, 19) for value in node.attr.values()):
            already.add(node.name)
    wanted = set(f16.split())
    assert original.nodes_in(mode.f16) | already == wanted
    assert ours.nodes_in(mode.f16) | already == wanted
    assert differences(ours, original) == []
    assert rewired(graph_def, ours.graph) == []
    if can_run(mode):
        check_values(case, graph_def, ours.graph, 8 if mode is Mode.BFLOAT16 else 1)


def check_values(case, before, after, factor):
    rtol = case.rtol * factor
    atol = case.atol * factor
    expected = run(before, case.fetch, case.feeds)
    found = run(after, case.fetch, case.feeds)
    for name, value, float32 in zip(case.fetch, found, expected, strict=True):
        assert value.dtype == np.float32
        np.testing.assert_allclose(value, float32, rtol, atol, err_msg=name)
