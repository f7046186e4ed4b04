from __future__ import annotations

import pytest

from amp_tf.oplists.kernels import Kernel, has_kernel, is_known, kernels_of

FLOAT, HALF, BFLOAT16, STRING, INT32 = 1, 19, 14, 7, 3


@pytest.mark.parametrize("data_type", [FLOAT, HALF, BFLOAT16])
def test_a_matrix_product_has_a_cpu_kernel_in_each_precision(data_type):
    assert has_kernel("MatMul", "CPU", {"T": [data_type]})


@pytest.mark.parametrize(
    ("op", "types"),
    [
        ("MatMul", {"T": [STRING]}),
        ("AvgPool3D", {"T": [HALF]}),
        ("FusedBatchNorm", {"T": [HALF]}),
        ("NoSuchOp", {}),
    ],
)
def test_what_has_no_kernel_is_told(op, types):
    assert not has_kernel(op, "CPU", types)


def test_every_entry_of_a_list_of_types_must_be_allowed():
    assert has_kernel("SaveV2", "CPU", {"dtypes": [FLOAT, INT32]})
    kernel = Kernel((("T", frozenset({FLOAT, HALF})),))
    assert kernel.accepts({"T": [FLOAT, HALF]})
    assert not kernel.accepts({"T": [FLOAT, BFLOAT16]})


def test_a_constraint_on_another_attribute_counts_too():
    kernel = Kernel((("T", frozenset({HALF})), ("U", frozenset({FLOAT}))))
    assert kernel.accepts({"T": [HALF], "U": [FLOAT]})
    assert not kernel.accepts({"T": [HALF], "U": [HALF]})


def test_a_constraint_on_an_attribute_that_the_op_lacks_is_never_met():
    assert not Kernel((("T", frozenset({HALF})), ("U", frozenset({FLOAT})))).accepts({"T": [HALF]})
    assert not has_kernel("TopK", "CPU", {"T": [FLOAT]})  # its kernels constrain TopKV2's index_type


def test_kernels_without_constraints_take_every_type():
    assert has_kernel("Identity", "CPU", {"T": [BFLOAT16]})


def test_kernels_with_a_label_do_not_count():
    from tensorflow.python.framework import kernels

    for op in ("DataFormatDimMap", "_MklMatMul", "MatMul"):
        all_of_op = kernels.get_registered_kernels_for_op(op).kernel
        unlabelled = [kernel for kernel in all_of_op if not kernel.label and kernel.device_type in ("CPU", "DEFAULT")]
        assert len(kernels_of(op, "CPU")) == len(unlabelled)


def test_a_device_type_that_this_tensorflow_knows_nothing_about_is_not_judged():
    assert not is_known("ABACUS")
    assert has_kernel("AvgPool3D", "ABACUS", {"T": [HALF]})
    assert is_known("CPU")
