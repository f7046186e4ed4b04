"""Which kernels of a CPU depend on each other, cost nothing, or are slow in 16 bit.

What ops take is measured, and stands in tables of its own: :mod:`amp_tf.oplists.cost_tables`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from amp_tf.oplists.table import Trait

#: Gradient ops that oneDNN computes from what their forward op left behind: the op, and the number of the input by
#: which it reads its forward op. If the two differ in type, TensorFlow falls back to a kernel that is many times slower
#: (MaxPoolGrad: 5.5 ns for each element).
KERNEL_PAIRS: Mapping[str, tuple[str, int]] = {
    "FusedBatchNormGradV3": ("FusedBatchNormV3", 5),
    "MaxPool3DGrad": ("MaxPool3D", 1),
    "MaxPoolGrad": ("MaxPool", 1),
}

#: Ops that move no data: they cost nothing in either type. Those of TensorLists and loops hand tensors on.
FREE = Trait(
    """EnsureShape Enter Exit ExpandDims Identity IdentityN Merge NextIteration PreventGradient Rank Reshape Shape
    ShapeN Snapshot Squeeze StatelessWhile StopGradient Switch TensorListGetItem TensorListPopBack
    TensorListPushBack TensorListPushBackBatch TensorListSetItem While"""
)
JOINED_AWAY = "Identity"  #: what the inner of two joined ops (:data:`amp_tf.oplists.fusions.SWISH`) costs as

#: Convolutions: op to where its filter is, as (is an input, number), and where the values of its output side are.
CONVOLUTIONS: dict[str, tuple[tuple[bool, int], tuple[bool, int]]] = {
    **dict.fromkeys(
        ("Conv2D", "Conv3D", "DepthwiseConv2dNative", "_FusedConv2D", "_FusedConv3D", "_FusedDepthwiseConv2dNative"),
        ((True, 1), (False, 0)),
    ),
    **dict.fromkeys(
        ("Conv2DBackpropInput", "Conv3DBackpropInputV2", "DepthwiseConv2dNativeBackpropInput"),
        ((True, 1), (True, 2)),
    ),
    **dict.fromkeys(
        ("Conv2DBackpropFilter", "Conv3DBackpropFilterV2", "DepthwiseConv2dNativeBackpropFilter"),
        ((False, 0), (True, 2)),
    ),
}
#: The attributes by which products of matrices read their second one transposed, and the layouts with channels first.
TRANSPOSING = ("adj_y", "transpose_b")
CHANNELS_FIRST_LAYOUTS = (b"NCHW", b"NCDHW")
#: Products of many matrices at once.
BATCHED = ("BatchMatMul", "BatchMatMulV2")
#: Convolutions of which each output channel reads one input channel alone.
DEPTHWISE = frozenset(op for op in CONVOLUTIONS if "Depthwise" in op)

#: Gradients of a convolution's input, whose result has the channels that its filter reads.
INPUT_GRADIENTS = frozenset(op for op in CONVOLUTIONS if "BackpropInput" in op)
#: float32 values in a vector of AVX-512: oneDNN computes so many channels of a convolution's result at a time.
LANES = 16

#: Other products, each with the one whose kernel it runs.
COSTS_AS = {
    "BatchMatMul": "BatchMatMulV2",
    "Einsum": "BatchMatMulV2",
    "_FusedConv2D": "Conv2D",
    "_FusedConv3D": "Conv3D",
    "_FusedDepthwiseConv2dNative": "DepthwiseConv2dNative",
}


def padding_factor(op: str, kernel: Sequence[int] | None, variant: str = "") -> float:
    """By how much the operations of a product grow because its kernel pads what it computes.

    The channels of a convolution's result fill whole vectors. An input gradient of 3 channels counts 84 operations in a
    ns, where others reach 500, because it computes 16. With channels first, in depthwise ones and in products of
    matrices it is not so.

    Args:
        op: a product.
        kernel: the shape of a convolution's filter: taps, channels in, channels out.
        variant: what stands after its op in the name of its row.
    """
    if kernel is None or variant or op not in CONVOLUTIONS or op in DEPTHWISE:
        return 1.0
    channels = kernel[-2] if op in INPUT_GRADIENTS else kernel[-1]
    return math.ceil(channels / LANES) * LANES / channels if channels > 0 else 1.0


@dataclasses.dataclass(frozen=True)
class SlowKernel:
    """An op whose 16-bit kernel is so slow that it never pays.

    Attributes:
        op: the op.
        applies: whether a node is concerned, by its NodeDef and the shape of its filter, ``None`` if nobody knows it.
        why: for people.
    """

    op: str
    applies: Callable[[Any, Sequence[int] | None], bool]
    why: str


def _has_strides(node: Any, kernel: Sequence[int] | None) -> bool:
    return any(stride > 1 for stride in node.attr["strides"].list.i)


def _has_many_taps(node: Any, kernel: Sequence[int] | None) -> bool:
    return kernel is not None and math.prod(kernel[:2]) > VECTOR_TAPS


VECTOR_TAPS = 9  #: of a depthwise filter whose gradient has a fast 16-bit kernel

SLOW_KERNELS: tuple[SlowKernel, ...] = (
    SlowKernel(
        "DepthwiseConv2dNativeBackpropFilter",
        _has_many_taps,
        "its bfloat16 kernel for filters larger than 3 × 3 is up to five times slower than the float32 one",
    ),
    SlowKernel(
        "DepthwiseConv2dNativeBackpropInput",
        _has_strides,
        "its bfloat16 kernel for strides above 1 is 25 times slower than the float32 one (oneDNN's reference kernel)",
    ),
)
