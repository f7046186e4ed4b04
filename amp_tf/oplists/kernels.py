"""Kernel availability: whether TensorFlow has a kernel for a node with given types on a device
type.

Source: TensorFlow's own kernel registry, matched the way ``IsKernelRegisteredForNode`` does: the
device type is equal (or the kernel serves every device), the kernel's label is the node's, and
every constrained attribute has only types that the kernel allows.

Where a TensorFlow build has no kernels for a device type at all (a GPU target on a CPU build),
availability is not known, and is assumed. Kernels are asked for when a graph needs them.

The registry knows types alone. On CPUs, oneDNN computes most of float32, and of bfloat16 where the
CPU has AVX-512. What it does not compute, TensorFlow's own kernels do (Eigen's). They refuse some
of what other attributes ask for, once they run: :data:`REFUSALS` says what.
tests/oplists/test_kernels.py runs every kernel and compares.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from amp_tf.oplists.cost_tables import CHANNELS_FIRST_LAYOUTS
from amp_tf.oplists.table import ALLOW, CPU, FUSED_PRODUCTS, ROWS, Trait

Attributes = Mapping[str, Any]  #: of a node, as AttrValues
Channels = Callable[
    [], tuple[int, int]
]  #: how many a convolution's image has and its filter reads, -1 for unknown

#: Ops that the remapper makes for oneDNN. Without it their kernels fail, most with "Missing 0-th
#: output".
PLACEHOLDERS = Trait("_FusedBatchNormEx _MklSwish", FUSED_PRODUCTS)

#: Ops of whose float16 a CPU computes the values as tensor cores do: operands and result are
#: rounded to float16, and the float32 kernel multiplies and adds. TensorFlow's own float16 kernels
#: add in float16, and are slow besides: the gradients of convolutions take up to 100 times as long
#: as in float32, and what oneDNN fuses on CPUs with avx512_fp16 a thousand times.
ROUNDED = frozenset(row.op for row in ROWS if row.table == CPU and row.op_list == ALLOW)


class Refusal(NamedTuple):
    """What registered 16-bit kernels of a CPU do not compute where a node asks for it, although
    those of float32 do.
    """

    what: str
    ops: Trait
    is_asked: Callable[[Attributes, Channels], bool]


def has_channels_first(attributes: Attributes) -> bool:
    """Whether a node's data has its channels before its places."""
    return "data_format" in attributes and attributes["data_format"].s in CHANNELS_FIRST_LAYOUTS


def _is_dilated(attributes: Attributes, _: Channels) -> bool:
    return "dilations" in attributes and any(rate != 1 for rate in attributes["dilations"].list.i)


def _is_grouped(_: Attributes, channels: Channels) -> bool:
    of_image, of_filter = channels()
    return of_image != of_filter and min(of_image, of_filter) > 0


_GRADIENTS_2D = Trait("Conv2DBackpropFilter Conv2DBackpropInput")
_GRADIENTS = Trait("Conv3DBackpropFilterV2 Conv3DBackpropInputV2", _GRADIENTS_2D)
_CHANNELS_LAST_ALONE = Trait(
    """AvgPool AvgPool3D AvgPool3DGrad AvgPoolGrad Conv2D Conv3D DepthwiseConv2dNative
    DepthwiseConv2dNativeBackpropFilter DepthwiseConv2dNativeBackpropInput MaxPool MaxPool3D
    MaxPool3DGrad MaxPoolGrad""",
    _GRADIENTS,
)
#: Where oneDNN does not compute the 16-bit type.
REFUSALS: tuple[Refusal, ...] = (
    Refusal("channels first", _CHANNELS_LAST_ALONE, lambda given, _: has_channels_first(given)),
    Refusal("dilations", Trait("Conv3D DepthwiseConv2dNative", _GRADIENTS), _is_dilated),
    Refusal("groups", _GRADIENTS_2D, _is_grouped),
    Refusal(
        "channels first and fixed statistics",
        Trait("FusedBatchNormGradV2 FusedBatchNormGradV3"),
        lambda given, _: (
            "is_training" in given and not given["is_training"].b and has_channels_first(given)
        ),
    ),
)
#: Where it does: this it leaves to TensorFlow's kernel, which is a placeholder in older ones (2.16,
#: bfloat16).
ONEDNN_REFUSALS = (
    Refusal(
        "its first matrix transposed",
        Trait("_FusedMatMul"),
        lambda given, _: "transpose_a" in given and given["transpose_a"].b,
    ),
)
#: Gradients of maxima, each with its forward op and the input that reads this: channels first,
#: oneDNN alone computes them, from what its own forward kernel left, and so in one type.
#: (MaxPool3DGrad is float32 almost always.)
PAIRED = {"MaxPool3DGrad": ("MaxPool3D", 1), "MaxPoolGrad": ("MaxPool", 1)}
PAIRED_WHAT = "channels first and a gradient"


@functools.cache
def refusals(data_type: int, *, runs_eigen: bool) -> tuple[Refusal, ...]:
    """What the kernels of this CPU refuse of a 16-bit type, which TensorFlow's own (Eigen's)
    compute, or oneDNN's.
    """
    if runs_eigen:
        return REFUSALS
    return tuple(
        row for row in ONEDNN_REFUSALS if not all(_is_real(op, data_type) for op in row.ops)
    )


def _is_real(op: str, data_type: int) -> bool:
    """Whether the CPU kernel of an op is more than a placeholder, by TensorFlow's private look-up
    of its class.
    """
    from tensorflow.core.framework import node_def_pb2

    node = node_def_pb2.NodeDef(name="amp_tf_asks_for_a_kernel", op=op, device="/device:CPU:0")
    node.attr["T"].type = data_type
    try:
        from tensorflow.python.util import _pywrap_kernel_registry

        return not _pywrap_kernel_registry.TryFindKernelClass(node.SerializeToString()).startswith(
            b"RaiseError"
        )
    except Exception:  # whatever goes wrong with what is private, the kernel is not relied on
        return False


@functools.lru_cache(maxsize=8192)
def kernels_of(op: str, device_type: str) -> tuple[Mapping[str, frozenset[int]], ...]:
    """The kernels of an op for a device type: the types that each allows, for each attribute that
    it constrains.

    Kernels with a label are left out, because nodes choose these by name.
    """
    from tensorflow.python.framework import kernels

    return tuple(
        {
            limit.name: frozenset(types)
            for limit in kernel.constraint
            if (types := limit.allowed_values.list.type)
        }
        for kernel in kernels.get_registered_kernels_for_op(op).kernel
        if not kernel.label
        and kernel.device_type in (device_type, "DEFAULT")  # the last is for every device
    )


def is_known(device_type: str) -> bool:
    """Whether this TensorFlow has kernels for the device type at all; if not, availability is not
    known.
    """
    return device_type == "CPU" or bool(kernels_of("MatMul", device_type))


def has_kernel(op: str, device_type: str, types: Mapping[str, Sequence[int]]) -> bool:
    """Whether some kernel of the op accepts these types; true where the device type is unknown to
    this TensorFlow.

    Args:
        types: all of the node's type attributes, each with its ``DataType`` numbers; as in
            TensorFlow, a kernel that constrains one that the op does not have (TopK's) serves no
            node. Fixed types, under an empty name, do not matter.
    """
    return not is_known(device_type) or any(
        all(attr in types and allowed.issuperset(types[attr]) for attr, allowed in kernel.items())
        for kernel in kernels_of(op, device_type)
    )
