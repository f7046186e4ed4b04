"""What ops cost on a CPU in float32 and in bfloat16: measured, as data.

Matrix products and convolutions gain by oneDNN's bfloat16 kernels. Most element-wise ops lose: TensorFlow converts each
value to float32 and back, so that a bfloat16 Sigmoid takes three times as long as a float32 one. Where many of them
follow each other, it pays to cast once, compute in float32, and cast back.

Source: ``python benchmarks/cpu_op_costs.py`` on 2 cores of an AMD EPYC (Zen 5) with avx512_bf16, TensorFlow 2.21 with
oneDNN, tensors of 8 × 64 × 64 × 64 and of 8 × 128 × 128 × 64. Only the ratios between the figures matter.

The table was chosen by whole training steps: figures from chains of ops in cache and from tensors in memory each lost
on some model, so both are kept, by size.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

#: Nanoseconds for each element, as (float32, bfloat16): for tensors in the caches, and for tensors in memory.
ELEMENT_COSTS: Mapping[str, tuple[tuple[float, float], tuple[float, float]]] = {
    "Add": ((0.08, 0.17), (0.19, 0.17)),
    "AddN": ((0.10, 0.20), (0.20, 0.17)),
    "AddV2": ((0.08, 0.17), (0.19, 0.17)),
    "AvgPool": ((0.11, 0.09), (0.16, 0.07)),
    "BiasAdd": ((0.20, 0.28), (0.25, 0.21)),
    "BiasAddGrad": ((0.05, 0.16), (0.07, 0.16)),
    "BiasAddV1": ((0.20, 0.28), (0.25, 0.21)),
    "ConcatV2": ((0.16, 0.10), (0.33, 0.13)),
    "Elu": ((0.33, 0.84), (0.32, 0.83)),
    "EluGrad": ((0.08, 0.41), (0.19, 0.40)),
    "Erf": ((0.24, 0.49), (0.26, 0.47)),
    "Erfc": ((0.22, 1.45), (0.21, 1.47)),
    "FusedBatchNormGradV3": ((0.34, 0.33), (0.34, 0.32)),
    "FusedBatchNormV3": ((0.27, 0.17), (0.31, 0.23)),
    "Inv": ((0.08, 0.23), (0.18, 0.22)),
    "LeakyRelu": ((0.07, 0.17), (0.18, 0.17)),
    "LeakyReluGrad": ((0.08, 0.24), (0.18, 0.22)),
    "Log": ((0.46, 0.68), (0.55, 0.71)),
    "Log1p": ((0.53, 0.79), (0.51, 0.77)),
    "MaxPool": ((0.09, 0.10), (0.13, 0.06)),
    "Maximum": ((0.09, 0.43), (0.19, 0.22)),
    "Mean": ((0.08, 0.08), (0.21, 0.09)),
    "Minimum": ((0.07, 0.23), (0.19, 0.22)),
    "Mul": ((0.08, 0.17), (0.19, 0.16)),
    "Neg": ((0.07, 0.04), (0.19, 0.07)),
    "Pad": ((0.08, 0.05), (0.18, 0.08)),
    "RealDiv": ((0.08, 0.18), (0.19, 0.17)),
    "Reciprocal": ((0.08, 0.23), (0.18, 0.22)),
    "Relu": ((0.08, 0.20), (0.18, 0.18)),
    "Relu6": ((0.07, 0.40), (0.18, 0.38)),
    "Relu6Grad": ((0.08, 0.29), (0.19, 0.27)),
    "ReluGrad": ((0.09, 0.23), (0.20, 0.22)),
    "Rsqrt": ((0.09, 0.26), (0.18, 0.25)),
    "SelectV2": ((0.28, 0.23), (0.47, 0.36)),
    "Selu": ((0.36, 1.42), (0.34, 1.41)),
    "SeluGrad": ((0.09, 0.50), (0.18, 0.50)),
    "Sigmoid": ((0.32, 1.15), (0.31, 1.14)),
    "SigmoidGrad": ((0.09, 0.53), (0.19, 0.52)),
    "Slice": ((0.07, 0.04), (0.18, 0.07)),
    "Softmax": ((0.32, 0.34), (0.31, 0.33)),
    "Softplus": ((1.56, 2.22), (1.54, 2.32)),
    "SoftplusGrad": ((0.36, 1.10), (0.34, 1.10)),
    "Softsign": ((0.10, 0.36), (0.18, 0.33)),
    "SoftsignGrad": ((0.10, 0.57), (0.19, 0.56)),
    "Split": ((0.16, 0.11), (0.32, 0.19)),
    "Sqrt": ((0.11, 0.19), (0.18, 0.18)),
    "Square": ((0.08, 0.15), (0.18, 0.14)),
    "SquaredDifference": ((0.09, 0.35), (0.19, 0.33)),
    "Sub": ((0.07, 0.18), (0.18, 0.16)),
    "Sum": ((0.07, 0.06), (0.20, 0.08)),
    "Tanh": ((0.18, 0.41), (0.19, 0.39)),
    "TanhGrad": ((0.09, 0.52), (0.19, 0.51)),
    "Tile": ((0.20, 0.11), (0.40, 0.15)),
    "Transpose": ((0.12, 0.11), (0.30, 0.30)),
}

#: Gradient ops that oneDNN computes from what their forward op left behind: the op, and the number of the input by
#: which it reads its forward op. If the two differ in type, TensorFlow falls back to a kernel that is many times slower
#: (MaxPoolGrad: 5.5 ns for each element).
KERNEL_PAIRS: Mapping[str, tuple[str, int]] = {
    "FusedBatchNormGradV3": ("FusedBatchNormV3", 5),
    "MaxPool3DGrad": ("MaxPool3D", 1),
    "MaxPoolGrad": ("MaxPool", 1),
}

#: Ops that oneDNN computes together with a product that reads the same tensor, if both have one type: the op, the
#: product, and the number of the product's input. Alone they would cost what ELEMENT_COSTS says.
FUSED_WITH: Mapping[str, tuple[str, int]] = {"BiasAddGrad": ("Conv2DBackpropFilter", 2)}

#: Ops that move no data: they cost nothing in either type.
FREE = frozenset({"EnsureShape", "ExpandDims", "Identity", "IdentityN", "Reshape", "Squeeze", "StopGradient"})

#: Any other op, by the bytes that it moves.
OTHER_COST = ((0.10, 0.10), (0.20, 0.10))

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
#: Products of many matrices at once.
BATCHED = ("BatchMatMul", "BatchMatMulV2")
#: Convolutions of which each output channel reads one input channel alone.
DEPTHWISE = frozenset(op for op in CONVOLUTIONS if "Depthwise" in op)

CAST_TO_F16 = (0.10, 0.12)  #: ns for each element: in the caches, in memory
CAST_TO_FLOAT32 = (0.05, 0.11)  #: likewise

CACHED_ELEMENTS = 4_000_000  #: a larger float32 tensor does not stay in the caches until it is read again
DISPATCH = 3_000.0  #: ns for each op that TensorFlow starts, whatever its size


@dataclasses.dataclass(frozen=True)
class ProductCost:
    """What a product takes in one type: ``operations / rate + elements * ns + start``.

    Attributes:
        rate: floating-point operations in a ns, two to a multiplication and addition.
        ns: for each element that it reads or writes.
        start: ns of its own.
    """

    rate: float
    ns: float
    start: float

    def of(self, operations: float, elements: float) -> float:
        """The time in ns."""
        return operations / self.rate + elements * self.ns + self.start


#: Products, in float32 and in bfloat16, fitted by ``python benchmarks/cpu_product_costs.py --repeats 60`` on a machine
#: of the same kind with nothing else to do, and scaled so that a large float32 matrix product does 215 operations in a
#: ns.
#: Convolutions of few channels or few taps, and depthwise ones, are bound by their tensors and not by their operations.
PRODUCT_COSTS: Mapping[str, tuple[ProductCost, ProductCost]] = {
    "BatchMatMulV2": (ProductCost(267, 0.08, 24_000), ProductCost(470, 0.07, 26_000)),
    "Conv2D": (ProductCost(296, 0.09, 24_000), ProductCost(566, 0.06, 34_000)),
    "Conv2DBackpropFilter": (ProductCost(268, 0.12, 81_000), ProductCost(419, 0.10, 100_000)),
    "Conv2DBackpropInput": (ProductCost(298, 0.11, 26_000), ProductCost(571, 0.08, 38_000)),
    "Conv3D": (ProductCost(306, 0.21, 17_000), ProductCost(572, 0.16, 25_000)),
    "Conv3DBackpropFilterV2": (ProductCost(314, 0.21, 127_000), ProductCost(428, 0.06, 179_000)),
    "Conv3DBackpropInputV2": (ProductCost(315, 0.24, 0), ProductCost(559, 0.20, 0)),
    "DepthwiseConv2dNative": (ProductCost(210, 0.13, 8_000), ProductCost(192, 0.07, 15_000)),
    "DepthwiseConv2dNativeBackpropFilter": (ProductCost(173, 0.16, 50_000), ProductCost(642, 0.16, 49_000)),
    "DepthwiseConv2dNativeBackpropInput": (ProductCost(74, 0.06, 16_000), ProductCost(96, 0.02, 24_000)),
    "MatMul": (ProductCost(215, 0.05, 4_000), ProductCost(446, 0.08, 6_000)),
}
#: Other products, each with the one whose kernel it runs.
COSTS_AS = {
    "BatchMatMul": "BatchMatMulV2",
    "Einsum": "BatchMatMulV2",
    "_FusedConv2D": "Conv2D",
    "_FusedConv3D": "Conv3D",
    "_FusedDepthwiseConv2dNative": "DepthwiseConv2dNative",
}


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
    return kernel is not None and math.prod(kernel[:2]) > _VECTOR_TAPS


_VECTOR_TAPS = 9

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


def element_costs(op: str, elements: float) -> tuple[float, float]:
    """What an op of this many elements costs in float32 and in 16 bit, in ns."""
    if op in FREE:
        return 0.0, 0.0
    in_float32, in_f16 = ELEMENT_COSTS.get(op, OTHER_COST)[elements > CACHED_ELEMENTS]
    return in_float32 * elements, in_f16 * elements


def product_costs(op: str, operations: float, elements: float) -> tuple[float, float]:
    """What a product costs in float32 and in 16 bit, in ns.

    Args:
        op: the op.
        operations: floating-point operations, two to a multiplication and addition.
        elements: of what it reads and writes.
    """
    in_float32, in_f16 = PRODUCT_COSTS.get(COSTS_AS.get(op, op), PRODUCT_COSTS["MatMul"])
    return in_float32.of(operations, elements), in_f16.of(operations, elements)


def cast_to_f16(elements: float) -> float:
    """What a cast to 16 bit costs, in ns."""
    return DISPATCH + CAST_TO_F16[elements > CACHED_ELEMENTS] * elements


def cast_to_float32(elements: float) -> float:
    """What a cast to float32 costs, in ns."""
    return DISPATCH + CAST_TO_FLOAT32[elements > CACHED_ELEMENTS] * elements
