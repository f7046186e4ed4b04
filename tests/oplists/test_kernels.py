from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest
from tensorflow.core.framework import node_def_pb2
from tensorflow.python.framework import op_def_registry
from tensorflow.python.util import _pywrap_kernel_registry

from amp_tf.oplists.kernels import Kernel, has_kernel, is_known, kernels_of
from amp_tf.oplists.table import ROWS

FLOAT, DOUBLE, HALF, BFLOAT16, STRING, INT32 = 1, 2, 19, 14, 7, 3
Types = Mapping[str, tuple[int, ...]]


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


def test_a_constraint_on_an_attribute_that_the_op_lacks_is_never_met():
    assert not Kernel((("T", frozenset({HALF})), ("U", frozenset({FLOAT})))).accepts({"T": [HALF]})
    assert not has_kernel("TopK", "CPU", {"T": [FLOAT]})  # its kernels constrain TopKV2's index_type


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


def test_what_is_found_is_what_tensorflow_finds(capfd):
    differing = [
        (op, device_type, types)
        for op in sorted({row.op for row in ROWS})
        for device_type in ("CPU", "GPU")
        for types in mixtures(op)
        if found(op, device_type, types) != any(kernel.accepts(types) for kernel in kernels_of(op, device_type))
    ]
    capfd.readouterr()  # TensorFlow's words about the many that do not exist
    assert differing == []


def found(op: str, device_type: str, types: Types) -> bool:
    node = node_def_pb2.NodeDef(name="asked", op=op, device=f"/device:{device_type}:0")
    for attr, numbers in types.items():
        node.attr[attr].list.type.extend(numbers)
    return bool(_pywrap_kernel_registry.TryFindKernelClass(node.SerializeToString()))


def mixtures(op: str) -> Iterator[Types]:
    """Each type attribute as float, half, bfloat16 and double, one by one and all at once, the others as they start.

    None for ops that call functions.
    """
    definition = op_def_registry.get(op)
    if definition is None or any("func" in attr.type for attr in definition.attr):
        return
    typed = [attr for attr in definition.attr if attr.type in ("type", "list(type)")]
    domains = {attr.name: tuple(attr.allowed_values.list.type) or (FLOAT,) for attr in typed}
    first = {attr: FLOAT if FLOAT in allowed else allowed[0] for attr, allowed in domains.items()}
    for number in (FLOAT, HALF, BFLOAT16, DOUBLE):
        for attrs in [[attr] for attr in domains] + [list(domains)]:
            yield {attr: (number if attr in attrs else first[attr],) for attr in domains}
