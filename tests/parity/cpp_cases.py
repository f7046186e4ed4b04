"""The graphs of TensorFlow's auto_mixed_precision_test.cc, as data.

Node names say which list the op is on: ``allow1``, ``infer1``, ``clr1`` (clear), ``deny1``.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import function

from tests.oracle import Mode
from tests.parity.case import Case, Expected, GraphDef, everywhere

raw = tf.raw_ops
F32 = tf.float32
CPU = "/job:localhost/replica:0/task:0/device:CPU:0"


def constant(name: str, value: float = 1 / 32, shape: tuple[int, ...] = (32, 32)) -> tf.Tensor:
    return tf.constant(value, tf.float32, shape, name=name)


def relu(x: tf.Tensor, name: str) -> tf.Tensor:
    return raw.Relu(features=x, name=name)


def matmul(x: tf.Tensor, name: str) -> tf.Tensor:
    return raw.MatMul(a=x, b=x, name=name)


def _deny_to_clear_chain() -> tf.Tensor:
    """input - deny1 - clr1 - infer1 - clr2."""
    x = raw.Exp(x=constant("input"), name="deny1")
    x = raw.Sqrt(x=relu(x, "clr1"), name="infer1")
    return relu(x, "clr2")


def no_op() -> None:
    tf.identity(_deny_to_clear_chain(), name="fetch")


def already_f16(dtype: tf.DType) -> None:
    x = raw.Cast(x=constant("input", 1.0), DstT=dtype, name="cst1")
    x = relu(matmul(x, "allow1"), "clr1")
    x = raw.Cast(x=x, DstT=tf.float32, name="cst2")
    tf.identity(relu(x, "clr2"), name="fetch")


def simple() -> None:
    x = relu(matmul(_deny_to_clear_chain(), "allow1"), "clr3")
    x = relu(raw.Log(x=x, name="infer2"), "clr4")
    x = raw.SparseMatMul(a=x, b=x, name="deny2")
    tf.identity(relu(x, "clr5"), name="fetch")


def simple_on_cpu() -> None:
    with tf.device(CPU):
        simple()


def no_infer_op() -> None:
    x = relu(matmul(_deny_to_clear_chain(), "allow1"), "clr3")
    x = relu(raw.Log(x=x, name="infer2"), "clr4")
    x = raw.Log(x=matmul(x, "allow2"), name="infer3")
    tf.identity(x, name="fetch")


def bidirectional_clear_chain() -> None:
    x = constant("input")
    clr1, clr2 = relu(x, "clr1"), relu(x, "clr2")
    allow1 = matmul(clr1, "allow1")
    raw.ShapeN(input=[clr1, clr2], name="clr3")
    clr4 = relu(clr2, "clr4")
    tf.identity(allow1, name="fetch1")
    tf.identity(clr4, name="fetch2")


def preserve_fetches() -> None:
    x = relu(matmul(constant("input"), "allow1"), "clr1")
    x = raw.Exp(x=raw.Sqrt(x=x, name="infer1"), name="deny1")
    x = relu(matmul(relu(x, "clr2"), "allow2"), "clr3")
    relu(raw.Exp(x=x, name="deny2"), "clr4")


def preserve_cpu_nodes() -> None:
    x = matmul(relu(constant("input"), "clr1"), "allow1")
    x = raw.Tanh(x=x, name="infer1")
    with tf.device(CPU):
        x = matmul(x, "allow2")
    tf.identity(relu(x, "clr2"), name="fetch")


def preserve_identity_after_variable() -> None:
    x = constant("input")
    var1 = raw.VariableV2(shape=[32, 32], dtype=tf.float32, name="var1")
    allow1 = raw.MatMul(a=x, b=raw.Identity(input=var1, name="clr1"), name="allow1")
    input2 = constant("input2")
    allow2 = raw.MatMul(a=x, b=raw.Identity(input=input2, name="clr2"), name="allow2")
    tf.identity(allow1, name="fetch1")
    tf.identity(allow2, name="fetch2")


def fused_batch_norm() -> None:
    x, weight = constant("input", 1 / 32, (8, 56, 56, 16)), constant("weight", 2.0, (3, 3, 16, 16))
    scale, offset = constant("scale", 3.0, (16,)), constant("offset", 4.0, (16,))
    mean, variance = constant("mean", 5.0, (0,)), constant("variance", 6.0, (0,))
    conv = {"strides": [1, 1, 1, 1], "padding": "SAME"}
    allow1 = raw.Conv2D(input=x, filter=weight, name="allow1", **conv)
    fbn1 = raw.FusedBatchNorm(x=allow1, scale=scale, offset=offset, mean=mean, variance=variance, name="fbn1")
    bng1 = raw.FusedBatchNormGrad(
        y_backprop=fbn1.y,
        x=allow1,
        scale=scale,
        reserve_space_1=fbn1.reserve_space_1,
        reserve_space_2=fbn1.reserve_space_2,
        name="bng1",
    )
    infer1 = raw.Add(x=fbn1.y, y=bng1.x_backprop, name="infer1")
    allow2 = raw.Conv2D(input=infer1, filter=weight, name="allow2", **conv)
    tf.identity(allow2, name="fetch")


def repeated_and_list_type_attrs() -> None:
    allow1 = matmul(constant("input"), "allow1")
    clr1 = raw.IdentityN(input=[allow1, allow1, allow1], name="clr1")
    infer1 = raw.AddN(inputs=clr1, name="infer1")
    tf.identity(matmul(infer1, "allow2"), name="fetch")


def existing_cast() -> None:
    x = tf.constant(True, shape=[32, 32], name="input")
    x = raw.Cast(x=x, DstT=tf.float32, name="cst1")
    tf.identity(matmul(x, "allow1"), name="fetch")


def recurrent_edge_color_mismatch():
    x = raw.Exp(x=constant("input"), name="deny1")
    ent1 = raw.Enter(data=x, frame_name="loop1", name="ent1")
    mrg1 = raw.Merge(inputs=[ent1, ent1], name="mrg1").output
    lpc1 = raw.LoopCond(input=tf.constant(False, name="con1"), name="lpc1")
    swt1 = raw.Switch(data=mrg1, pred=lpc1, name="swt1")
    infer1 = raw.Sqrt(x=swt1.output_true, name="infer1")
    nxt1 = raw.NextIteration(data=matmul(infer1, "allow1"), name="nxt1")
    ext1 = raw.Exit(data=swt1.output_false, name="ext1")
    tf.identity(ext1, name="fetch")
    # Two Merges of one NextIteration: optimised graphs of real models have them.
    raw.Merge(inputs=[ent1, nxt1], name="mrg2")

    def close_the_loop(graph_def: GraphDef) -> None:
        nodes = {node.name: node for node in graph_def.node}
        nodes["mrg1"].input[1] = "nxt1"
        nodes["con1"].input.append("^mrg1")  # the condition must be inside the frame

    return close_the_loop


def batch_matmul() -> None:
    x = constant("input", 1 / 33, (64, 32, 32))
    tf.identity(raw.BatchMatMul(x=x, y=x, name="allow1"), name="fetch1")


def mixed_fanout() -> None:
    with tf.device(CPU):
        input1, input2 = constant("input1", 1 / 32), constant("input2", 2 / 32)
        allow1 = raw.MatMul(a=input1, b=input2, name="allow1")
        allow2 = raw.MatMul(a=allow1, b=input2, name="allow2")
        infer = raw.Add(x=raw.Exp(x=allow1, name="deny"), y=allow2, name="infer")
        tf.identity(infer, name="fetch")


def infer_follow_upstream_allow() -> None:
    x, weight = constant("input1", 1 / 32, (8, 56, 56, 16)), constant("weight", 2.0, (3, 3, 16, 16))
    x = raw.Conv2D(input=x, filter=weight, strides=[1, 1, 1, 1], padding="SAME", name="allow")
    x = raw.BiasAdd(value=x, bias=constant("input2", 1 / 32, (16,)), name="infer")
    tf.identity(relu(x, "clr"), name="fetch")


def infer_follow_upstream_deny() -> None:
    x, power = constant("input1", 1 / 32, (8, 56, 56, 16)), constant("input2", 1.0, (16,))
    x = raw.Pow(x=x, y=power, name="deny")
    x = raw.BiasAdd(value=x, bias=constant("input3", 1 / 32, (16,)), name="infer")
    tf.identity(relu(x, "clr"), name="fetch")


def unary_between_matmuls(op: str) -> None:
    eye = tf.constant(np.eye(128), tf.float32, name="eye")
    x = tf.compat.v1.placeholder(tf.float32, [128, 128], name="input")
    x = raw.MatMul(a=x, b=eye, name="allow1")
    arguments = {"Elu": "features", "LogSoftmax": "logits", "Softmax": "logits", "Softplus": "features"}
    x = getattr(raw, op)(**{arguments.get(op, "x"): x}, name="infer1")
    tf.identity(raw.MatMul(a=x, b=eye, name="allow2"), name="fetch1")


_SIMPLE = "clr2 allow1 clr3"
_BFLOAT16, _CUDA_LISTS, _CUDA = Mode

CASES = (
    Case("NoOp", no_op, ("fetch",), everywhere("", 0)),
    Case("AlreadyFp16", lambda: already_f16(tf.float16), ("fetch",), everywhere("", 0)),
    Case("Simple", simple, ("fetch",), everywhere(_SIMPLE, 2)),
    Case("NoInferOp", no_infer_op, ("fetch",), everywhere(f"{_SIMPLE} clr4 allow2", 4), level="TREAT_INFER_AS_DENY"),
    Case(
        "BidirectionalClearChain",
        bidirectional_clear_chain,
        ("fetch1", "fetch2"),
        everywhere("clr1 clr2 allow1 clr3 clr4", 3),
    ),
    Case("PreserveFetches", preserve_fetches, ("allow1", "clr2", "clr3"), everywhere("allow2", 2), rtol=5e-3),
    Case(
        "PreserveCPUNodes",
        preserve_cpu_nodes,
        ("fetch",),
        {
            # Since TensorFlow 2.20 an infer node that follows an allow node is converted; the C++ test says Tanh stays.
            _CUDA: Expected("clr1 allow1 infer1", 2),
            # On the CPU the pinned node is as processable as the rest.
            _BFLOAT16: Expected("clr1 allow1 infer1 allow2 clr2", 2),
            _CUDA_LISTS: Expected("clr1 allow1 infer1 allow2 clr2", 2),
        },
        rtol=1e-2,
    ),
    Case(
        "PreserveIdentityAfterVariable",
        preserve_identity_after_variable,
        ("fetch1", "fetch2"),
        everywhere("allow1 clr2 allow2", 5),
        feeds={"var1:0": np.full((32, 32), 3.141593, np.float32)},
        rtol=5e-3,
    ),
    Case(
        "FusedBatchNorm",
        fused_batch_norm,
        ("fetch",),
        everywhere("allow1 fbn1.T bng1.T infer1 allow2", 3),
        new_ops={"fbn1": "FusedBatchNormV2", "bng1": "FusedBatchNormGradV2"},
        rtol=1e-2,
    ),
    Case(
        "RepeatedAndListTypeAttrs",
        repeated_and_list_type_attrs,
        ("fetch",),
        everywhere("allow1 clr1 infer1 allow2", 2),
        rtol=1e-2,
    ),
    Case("ExistingCast", existing_cast, ("fetch",), everywhere("cst1 allow1", 1)),
    Case("RecurrentEdgeColorMismatch", recurrent_edge_color_mismatch, ("fetch",), everywhere("allow1", 2)),
    Case("BatchMatMul", batch_matmul, ("fetch1",), everywhere("allow1", 2), rtol=3e-3),
    Case("CpuSimple", simple_on_cpu, ("fetch",), everywhere(_SIMPLE, 2) | {_CUDA: Expected("", 0)}),
    Case(
        "CpuMixedFanout", mixed_fanout, ("fetch",), {m: Expected("allow1 allow2", 4) for m in (_BFLOAT16, _CUDA_LISTS)}
    ),
    Case("SimulateGpuCpuScope", simple_on_cpu, ("fetch",), {_CUDA: Expected("", 0)}),
    Case("MklAlreadyBf16", lambda: already_f16(tf.bfloat16), ("fetch",), everywhere("", 0)),
    Case(
        "MklInferFollowUpStreamAllow",
        infer_follow_upstream_allow,
        ("fetch",),
        everywhere("allow infer clr", 4),
        rtol=1e-2,
    ),
    Case("MklInferFollowUpStreamDeny", infer_follow_upstream_deny, ("fetch",), everywhere("", 0)),
)


@dataclasses.dataclass(frozen=True)
class _Unary:
    """A row of the MatMul-X-MatMul cases: the op, the range of its input, and the tolerances."""

    op: str
    low: float
    high: float
    atol: float
    rtol: float


_UNARY = (
    _Unary("Elu", -5, 5, 1e-3, 1e-3),
    _Unary("Erf", -5, 5, 1e-3, 0),
    _Unary("Erfc", -5, 5, 1e-3, 0),
    _Unary("Inv", 0.01, 10, 0, 1e-3),
    _Unary("Log", 0.01, 10, 1e-3, 2e-3),
    _Unary("Log1p", -0.99, 9, 1e-3, 5e-3),
    _Unary("LogSoftmax", -8, 8, 0, 1e-2),
    _Unary("Reciprocal", 0.01, 10, 0, 1e-3),
    _Unary("Sigmoid", -5, 5, 1e-3, 0),
    _Unary("Softmax", -8, 8, 2e-3, 0),
    _Unary("Softplus", -5, 5, 2e-3, 2e-3),
    _Unary("Sqrt", 0, 10, 1e-3, 1e-3),
    _Unary("Tanh", -5, 5, 1e-3, 0),
)


def _unary_case(row: _Unary) -> Case:
    values = np.random.default_rng(0).uniform(row.low, row.high, (128, 128)).astype(np.float32)
    return Case(
        f"{row.op}Op",
        lambda: unary_between_matmuls(row.op),
        ("fetch1",),
        everywhere("allow1 infer1 allow2", 3),
        feeds={"input:0": values},
        atol=row.atol,
        rtol=row.rtol,
    )


CASES += tuple(_unary_case(row) for row in _UNARY)


# TensorLists: those that touch a matrix product become 16 bit as a whole; a list on its own, or one that passes
# through a function, stays float32.


def _shape(name: str) -> tf.Tensor:
    return tf.constant([32, 32], name=name)


def _read(handle: tf.Tensor, index: tf.Tensor, name: str) -> tf.Tensor:
    shape = _shape(f"{name}_shape")
    return raw.TensorListGetItem(input_handle=handle, index=index, element_shape=shape, element_dtype=F32, name=name)


def _write(handle: tf.Tensor, index: tf.Tensor, item: tf.Tensor, name: str) -> tf.Tensor:
    return raw.TensorListSetItem(input_handle=handle, index=index, item=item, name=name)


def _reserve(name: str) -> tf.Tensor:
    shape = _shape(f"{name}_shape")
    return raw.TensorListReserve(element_shape=shape, num_elements=8, element_dtype=F32, name=name)


def _empty(name: str) -> tf.Tensor:
    shape = _shape(f"{name}_shape")
    return raw.EmptyTensorList(element_shape=shape, max_num_elements=8, element_dtype=F32, name=name)


def _push(handle: tf.Tensor, item: tf.Tensor, name: str) -> tf.Tensor:
    return raw.TensorListPushBack(input_handle=handle, tensor=item, name=name)


def _pop(handle: tf.Tensor, name: str) -> tf.Tensor:
    shape = _shape(f"{name}_shape")
    return raw.TensorListPopBack(input_handle=handle, element_shape=shape, element_dtype=F32, name=name).tensor


def _square(x: tf.Tensor, name: str) -> tf.Tensor:
    return raw.Mul(x=x, y=x, name=name)


def _tanh(x: tf.Tensor, name: str) -> tf.Tensor:
    return raw.Tanh(x=x, name=name)


def set_get(infer) -> None:
    tl1, x = _reserve("tl1"), constant("input")
    idx1, idx2, idx3 = (tf.constant(i, name=f"idx{i}") for i in (1, 2, 3))
    _write(tl1, idx1, x, "tl1w1")
    tl1w2 = _write(tl1, idx2, matmul(x, "allow1"), "tl1w2")
    tl1rs = raw.TensorListResize(input_handle=tl1w2, size=6, name="tl1rs")
    infer1 = infer(_read(tl1rs, idx2, "tl1r1"), "infer1")
    tl1w3 = _write(tl1, idx3, matmul(infer1, "allow2"), "tl1w3")
    tl2w1 = _write(_reserve("tl2"), idx1, x, "tl2w1")
    tf.identity(_read(tl1w3, idx3, "tl1r2"), name="fetch1")
    tf.identity(_read(tl2w1, idx1, "tl2r1"), name="fetch2")


def push_pop() -> None:
    tl1, x = _empty("tl1"), constant("input")
    tl1w2 = _push(_push(tl1, x, "tl1w1"), matmul(x, "allow1"), "tl1w2")
    infer1 = _tanh(_pop(tl1w2, "tl1r1"), "infer1")
    tl1w3 = _push(tl1, matmul(infer1, "allow2"), "tl1w3")
    tl2w1 = _push(_empty("tl2"), x, "tl2w1")
    tf.identity(_pop(tl1w3, "tl1r2"), name="fetch1")
    tf.identity(_pop(tl2w1, "tl2r1"), name="fetch2")


def from_tensor() -> None:
    x, shape = constant("input"), tf.constant([32], name="shape")
    allow1 = matmul(x, "allow1")
    tl1 = raw.TensorListFromTensor(tensor=allow1, element_shape=shape, name="tl1")
    tl1r1 = raw.TensorListStack(input_handle=tl1, element_shape=shape, element_dtype=F32, name="tl1r1")
    tf.identity(matmul(_tanh(tl1r1, "infer1"), "allow2"), name="fetch1")
    # Nothing but the list itself connects tl2w1 to a 16-bit node; if it stayed float32, the graph would be broken.
    tl2 = raw.TensorListFromTensor(tensor=allow1, element_shape=shape, name="tl2")
    _push(tl2, x, "tl2w1")


def push_back_batch_and_concat_lists() -> None:
    tl1, tl2, x = _empty("tl1"), _empty("tl2"), constant("input")
    allow1 = matmul(x, "allow1")
    handles = raw.Pack(values=[tl1, tl2], name="tl1_tl2")
    items = raw.Pack(values=[allow1, allow1], name="allow1_allow1")
    tl12w1 = raw.TensorListPushBackBatch(input_handles=handles, tensor=items, name="tl12w1")
    halves = raw.Split(axis=0, value=tl12w1, num_split=2, name="tl12w1_outputs")
    scalar = tf.constant(0, tf.int32, [0], name="scalar_shape")
    first = raw.Reshape(tensor=halves[0], shape=scalar, name="tl12w1_output0")
    second = raw.Reshape(tensor=halves[1], shape=scalar, name="tl12w1_output1")
    tl3 = raw.TensorListConcatLists(input_a=first, input_b=second, element_dtype=F32, name="tl3")
    infer1 = _tanh(_pop(tl3, "tl3r1"), "infer1")
    tf.identity(matmul(infer1, "allow2"), name="fetch1")


def through_function() -> None:
    @function.Defun(tf.variant, F32, func_name="Func1", out_names=["ohandle", "y"])
    def func1(ihandle, x):
        popped = raw.TensorListPopBack(
            input_handle=_push(ihandle, x, "tl1w1_handle"),
            element_shape=tf.constant([32, 32], name="shape"),
            element_dtype=F32,
            name="tl1r1",
        )
        return popped.output_handle, popped.tensor

    infer1 = _tanh(matmul(constant("input"), "allow1"), "infer1")
    tl1w1 = _push(_empty("tl1"), infer1, "tl1w1")
    handle, _ = func1(tl1w1, infer1, name="Func1")
    tl1r1 = _pop(handle, "tl1r1")
    tl2r1 = _pop(_push(_empty("tl2"), infer1, "tl2w1"), "tl2r1")
    tf.identity(raw.MatMul(a=tl1r1, b=tl2r1, name="allow2"), name="fetch1")


_SET_GET = everywhere("tl1 tl1w1 allow1 tl1w2 tl1r1 infer1 allow2 tl1w3 tl1r2", 2)

LIST_CASES = (
    Case("TensorListSetGet", lambda: set_get(_tanh), ("fetch1", "fetch2"), _SET_GET),
    Case("MklTensorListSetGet", lambda: set_get(_square), ("fetch1", "fetch2"), _SET_GET, rtol=1e-2),
    Case(
        "TensorListPushPop",
        push_pop,
        ("fetch1", "fetch2"),
        everywhere("tl1 tl1w1 allow1 tl1w2 tl1r1 infer1 allow2 tl1w3 tl1r2", 2),
    ),
    Case("TensorListFromTensor", from_tensor, ("fetch1",), everywhere("allow1 tl1 tl1r1 infer1 allow2 tl2 tl2w1", 2)),
    Case(
        "TensorListPushBackBatchAndConcatLists",
        push_back_batch_and_concat_lists,
        ("fetch1",),
        everywhere("tl1 tl2 allow1 allow1_allow1 tl12w1 tl3 tl3r1 infer1 allow2", 2),
    ),
    Case(
        "TensorListThroughFunction",
        through_function,
        ("fetch1",),
        {mode: Expected("allow1 infer1 tl2 tl2w1 tl2r1 allow2", 4) for mode in Mode},
    ),
)
CASES += LIST_CASES
