"""Kernel availability: the kernels that TensorFlow has for an op, types and a device type.

Source: TensorFlow's own kernel registry, matched as ``IsKernelRegisteredForNode`` does it: the
device type is equal (or the kernel serves every device), the kernel's label is the node's, and
every constrained attribute has only types that the kernel allows.

A TensorFlow build without any kernel for a device type (a GPU target on a CPU build) does not know
their availability, so it is assumed. Kernels are looked up when a graph needs them. As that takes
5 ms, those of an op are remembered; that it has none is not, because a program may load their
library after its first graph.

The registry knows types alone. On CPUs, oneDNN computes most of float32, and most of bfloat16 if
the CPU has AVX-512. TensorFlow's own kernels (Eigen's) compute the rest. When they run, they refuse
some values of other attributes, which :data:`REFUSALS` lists. tests/oplists/test_kernels.py runs
every kernel and compares.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from amp_tf.oplists.cost_tables import CHANNELS_FIRST_LAYOUTS
from amp_tf.oplists.table import ALLOW, CPU, FUSED_PRODUCTS, ROWS, Trait

Attributes = Mapping[str, Any]  #: of a node, as AttrValues

#: Ops that the remapper makes for oneDNN. Without it their kernels fail, most with "Missing 0-th
#: output".
PLACEHOLDERS = Trait("_FusedBatchNormEx _MklSwish", FUSED_PRODUCTS)

#: Ops that a CPU without kernels of the 16-bit type computes as tensor cores do: it rounds operands
#: and result to 16 bit, and the float32 kernel multiplies and adds. oneDNN has such kernels for
#: bfloat16 alone. TensorFlow's own add up in 16 bit (a filter's gradient is off by 2 % of its
#: largest value in bfloat16), and are slow: in float16 the gradients of convolutions take up to 100
#: times as long as in float32. On CPUs with avx512_fp16 oneDNN's fused products take 1,000 times.
ROUNDED = frozenset(row.op for row in ROWS if row.table == CPU and row.op_list == ALLOW)


class Refusal(NamedTuple):
    """Describes a property of nodes that 16-bit kernels of a CPU refuse.

    The kernels are registered nevertheless. float32's support the property.

    Attributes:
        what: the property, for people.
        ops: whose kernels refuse it.
        is_asked: tells whether a node has the property.
    """

    what: str
    ops: Trait
    is_asked: Callable[[Attributes], bool]


def has_channels_first(attributes: Attributes) -> bool:
    """Returns True if a node's data has its channels before its spatial dimensions."""
    return "data_format" in attributes and attributes["data_format"].s in CHANNELS_FIRST_LAYOUTS


def _is_inference_channels_first(attributes: Attributes) -> bool:
    if "is_training" not in attributes or attributes["is_training"].b:
        return False
    return has_channels_first(attributes)


def _transposes_first(attributes: Attributes) -> bool:
    return "transpose_a" in attributes and bool(attributes["transpose_a"].b)


_POOLS = Trait(
    """AvgPool AvgPool3D AvgPool3DGrad AvgPoolGrad MaxPool MaxPool3D MaxPool3DGrad MaxPoolGrad"""
)
#: Refusals of TensorFlow's own kernels, for a 16-bit type that oneDNN does not compute. Products
#: are not among them, because their float32 kernels run.
REFUSALS: tuple[Refusal, ...] = (
    Refusal("channels first", _POOLS, has_channels_first),
    Refusal(
        "channels first and fixed statistics",
        Trait("FusedBatchNormGradV2 FusedBatchNormGradV3"),
        _is_inference_channels_first,
    ),
)
#: Refusals of oneDNN. TensorFlow's kernel computes these nodes, and is a placeholder in older
#: versions (2.16, bfloat16).
ONEDNN_REFUSALS = (
    Refusal("its first matrix transposed", Trait("_FusedMatMul"), _transposes_first),
)
#: Gradients of maxima, each with its forward op and the input that reads its result. With channels
#: first only oneDNN computes them, from the state that its forward kernel left, so both must have
#: one type. (MaxPool3DGrad is float32 almost always.)
PAIRED = {"MaxPool3DGrad": ("MaxPool3D", 1), "MaxPoolGrad": ("MaxPool", 1)}
PAIRED_WHAT = "channels first and a gradient"


@functools.cache
def refusals(data_type: int, *, runs_eigen: bool) -> tuple[Refusal, ...]:
    """The refusals of this CPU's kernels for a 16-bit type.

    Args:
        data_type: the type, as a ``DataType`` number.
        runs_eigen: whether TensorFlow's own kernels (Eigen's) compute it; else oneDNN's do.
    """
    if runs_eigen:
        return REFUSALS
    placeholders = []
    for row in ONEDNN_REFUSALS:
        if not all(_is_real(op, data_type) for op in row.ops):
            placeholders.append(row)
    return tuple(placeholders)


def _is_real(op: str, data_type: int) -> bool:
    """Returns True if the CPU kernel of an op is no placeholder.

    TensorFlow's look-up of the kernel's class is private. If it fails, the kernel counts as a
    placeholder.
    """
    from tensorflow.core.framework import node_def_pb2

    node = node_def_pb2.NodeDef(name="amp_tf_asks_for_a_kernel", op=op, device="/device:CPU:0")
    node.attr["T"].type = data_type
    try:
        from tensorflow.python.util import _pywrap_kernel_registry

        kernel_class = _pywrap_kernel_registry.TryFindKernelClass(node.SerializeToString())
        return not kernel_class.startswith(b"RaiseError")
    except Exception:
        return False


def kernels_of(op: str, device_type: str) -> tuple[Mapping[str, frozenset[int]], ...]:
    """Looks up the kernels of an op for a device type.

    Returns:
        For each kernel, the types that it allows for each attribute that it constrains. Kernels
        with a label are left out, because nodes choose these by name.
    """
    try:
        return _look_up(op, device_type)
    except LookupError:
        return ()


@functools.lru_cache(maxsize=8192)
def _look_up(op: str, device_type: str) -> tuple[Mapping[str, frozenset[int]], ...]:
    """Returns the kernels of an op; a LookupError, which no cache remembers, if it has none."""
    from tensorflow.python.framework import kernels

    found = []
    for kernel in kernels.get_registered_kernels_for_op(op).kernel:
        # DEFAULT is for every device.
        if kernel.label or kernel.device_type not in (device_type, "DEFAULT"):
            continue
        allowed = {}
        for limit in kernel.constraint:
            if limit.allowed_values.list.type:
                allowed[limit.name] = frozenset(limit.allowed_values.list.type)
        found.append(allowed)
    if not found:
        raise LookupError(op)
    return tuple(found)


@functools.cache
def is_known(device_type: str) -> bool:
    """Returns True if this TensorFlow has any kernels for the device type."""
    return device_type == "CPU" or bool(kernels_of("MatMul", device_type))


def has_any(op: str, device_type: str) -> bool:
    """Returns True if the op has any kernel by now, or the device type is not known."""
    return not is_known(device_type) or bool(kernels_of(op, device_type))


def has_kernel(op: str, device_type: str, types: Mapping[str, Sequence[int]]) -> bool:
    """Returns True if some kernel of the op accepts these types, or the device type is not known.

    Args:
        op: the op.
        device_type: such as ``"CPU"``.
        types: all of the node's type attributes, each with its ``DataType`` numbers. As in
            TensorFlow, a kernel that constrains an attribute which the op does not have (TopK's)
            serves no node. Fixed types, under an empty name, do not matter.
    """
    if not is_known(device_type):
        return True
    return any(_accepts(kernel, types) for kernel in kernels_of(op, device_type))


def _accepts(kernel: Mapping[str, frozenset[int]], types: Mapping[str, Sequence[int]]) -> bool:
    for attribute, allowed in kernel.items():
        if attribute not in types or not allowed.issuperset(types[attribute]):
            return False
    return True
