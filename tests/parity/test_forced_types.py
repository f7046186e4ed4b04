"""Ops with several types, or a result of fixed type, where a setting converts them: all that can be, and it runs."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from tests.oracle import Knobs, Mode, OriginalFailedError, run_original
from tests.parity.case import run
from tests.parity.comparison import differences, run_ours
from tests.parity.cpp_cases import constant, relu

raw = tf.raw_ops
FP16, BF16 = Mode.CUDA_LISTS, Mode.BFLOAT16
RTOL = {FP16: 4e-3, BF16: 4e-2}
"""A few roundings to 11 or 8 significant bits on the way to the fetch."""


def pooling_gradient() -> None:
    """MaxPool3DGrad has two types, T and TInput, and no kernel for two that differ."""
    x = tf.constant(np.arange(256, dtype="float32").reshape(1, 4, 8, 8, 1) / 64, name="input")
    window = {"ksize": [1, 2, 2, 2, 1], "strides": [1, 2, 2, 2, 1], "padding": "SAME"}
    y = raw.MaxPool3D(input=x, name="pool", **window)
    x = raw.MaxPool3DGrad(orig_input=x, orig_output=y, grad=relu(y, "clr1"), name="grad", **window)
    tf.identity(x, name="fetch")


def resized() -> None:
    x = relu(constant("input", 0.3, (1, 4, 4, 2)), "clr1")
    x = raw.ResizeBilinear(images=x, size=[6, 6], name="resize")
    tf.identity(relu(x, "clr2"), name="fetch")


def sparse_product() -> None:
    x = raw.SparseMatMul(a=relu(constant("input", 0.3), "clr1"), b=constant("other", 0.7), name="sparse")
    tf.identity(relu(x, "clr2"), name="fetch")


def graph_of(build) -> graph_pb2.GraphDef:
    with tf.Graph().as_default() as graph:
        build()
    return graph.as_graph_def()


def moved_to_allow(op: str) -> Knobs:
    return Knobs(allow_add=(op,), infer_remove=(op,), deny_remove=(op,), clear_remove=(op,))


def assert_runs_close_to_float32(ours: graph_pb2.GraphDef, float32: graph_pb2.GraphDef, mode: Mode) -> None:
    (value,), (expected,) = run(ours, ("fetch",), {}), run(float32, ("fetch",), {})
    np.testing.assert_allclose(value, expected, rtol=RTOL[mode], atol=0)


@pytest.mark.usefixtures("local_rules")  # clr2 reads float32 and gives float32
@pytest.mark.parametrize(
    ("build", "op", "mode", "f16"),
    [
        (resized, "ResizeBilinear", FP16, {"clr1.T", "resize.T", "clr2.T"}),
        (resized, "ResizeBilinear", BF16, {"clr1.T", "resize.T", "clr2.T"}),
        (sparse_product, "SparseMatMul", BF16, {"clr1.T", "sparse.Ta", "sparse.Tb", "clr2.T"}),
        (pooling_gradient, "MaxPool3DGrad", BF16, {"pool.T", "clr1.T", "grad.T", "grad.TInput"}),
    ],
)
def test_op_that_joins_the_allow_list_converts_as_in_tensorflow_and_runs(build, op, mode, f16) -> None:
    graph_def, knobs = graph_of(build), moved_to_allow(op)
    original, ours = (judge(graph_def, mode, ("fetch",), knobs) for judge in (run_original, run_ours))
    assert {f"{node}.{attr}" for (node, attr), types in ours.types.items() if mode.f16 in types} == f16
    assert differences(ours, original) == []
    assert_runs_close_to_float32(ours.graph, graph_def, mode)


@pytest.mark.parametrize(
    ("build", "op", "mode"),
    [(sparse_product, "SparseMatMul", FP16), (pooling_gradient, "MaxPool3DGrad", FP16)],
)
def test_op_that_joins_the_allow_list_and_has_no_kernel_stays_float32_and_runs(build, op, mode) -> None:
    graph_def = graph_of(build)
    ours = run_ours(graph_def, mode, ("fetch",), moved_to_allow(op))
    assert ours.graph == graph_def
    assert_runs_close_to_float32(ours.graph, graph_def, mode)


@pytest.mark.parametrize("build", [pooling_gradient, resized, sparse_product])
def test_force_all_converts_types_that_are_linked_and_types_beside_a_fixed_one_and_runs(build) -> None:
    graph_def, force = graph_of(build), Knobs(level="UNSAFE_FORCE_ALL")
    with pytest.raises(OriginalFailedError):
        run_original(graph_def, BF16, ("fetch",), force)
    ours = run_ours(graph_def, BF16, ("fetch",), force)
    float32 = {
        name
        for name, types in ours.types.items()
        if types == (tf.float32.as_datatype_enum,) and ours.ops[name[0]] not in ("Const", "Cast")
    }
    assert float32 == {("fetch", "T")}
    assert_runs_close_to_float32(ours.graph, graph_def, BF16)
