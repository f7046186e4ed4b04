"""The graphs about TensorLists of TensorFlow's auto_mixed_precision_test.cc, as data.

Lists that touch a matrix product become 16-bit as a whole; a list on its own, or one that passes through a function,
stays float32.
"""

from __future__ import annotations

import tensorflow as tf
from tensorflow.python.framework import function

from tests.oracle import Mode
from tests.parity.case import Case, Expected, everywhere
from tests.parity.cpp_cases import constant, matmul

raw = tf.raw_ops
F32 = tf.float32


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

CASES = (
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
