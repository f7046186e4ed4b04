"""What ops cost on a CPU in float32 and in bfloat16: measured, as data.

Matrix products and convolutions gain by oneDNN's bfloat16 kernels. Most element-wise ops lose: TensorFlow converts each
value to float32 and back, so that a bfloat16 Sigmoid takes five times as long as a float32 one. Where many of them
follow each other, it pays to cast once, compute in float32, and cast back.

Source: ``python benchmarks/cpu_op_costs.py`` on 2 cores of an AMD EPYC (Zen 5) with avx512_bf16, TensorFlow 2.21 with
oneDNN, tensors of 8 × 64 × 64 × 64. Only the ratios between the figures matter.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

#: Nanoseconds for each element: (float32, bfloat16).
ELEMENT_COSTS: Mapping[str, tuple[float, float]] = {
    "AddN": (0.30, 0.91),
    "AddV2": (0.33, 0.44),
    "AvgPool": (0.25, 0.24),
    "BiasAdd": (0.33, 0.44),
    "BiasAddGrad": (0.21, 0.40),
    "ConcatV2": (0.48, 0.32),
    "Elu": (0.83, 3.74),
    "EluGrad": (0.30, 1.10),
    "Erf": (1.14, 2.12),
    "Erfc": (1.14, 2.12),
    "FusedBatchNormGradV3": (0.79, 0.80),
    "FusedBatchNormV3": (0.76, 0.49),
    "LeakyRelu": (0.48, 0.86),
    "LeakyReluGrad": (0.27, 0.55),
    "Log": (1.00, 1.70),
    "Log1p": (1.21, 1.72),
    "MaxPool": (0.44, 0.31),
    "Maximum": (0.27, 0.55),
    "Mean": (0.30, 0.25),
    "Minimum": (0.27, 0.55),
    "Mul": (0.33, 0.77),
    "Neg": (0.27, 0.50),
    "Pad": (0.71, 0.23),
    "RealDiv": (0.51, 0.91),
    "Reciprocal": (0.40, 0.90),
    "Relu": (0.30, 0.60),
    "Relu6": (0.45, 1.65),
    "Relu6Grad": (0.30, 0.67),
    "ReluGrad": (0.27, 0.55),
    "Rsqrt": (0.29, 1.03),
    "SelectV2": (0.92, 0.79),
    "Sigmoid": (0.78, 4.36),
    "SigmoidGrad": (0.24, 1.13),
    "Slice": (0.29, 0.31),
    "Softmax": (1.39, 1.47),
    "Softplus": (6.04, 7.72),
    "Split": (0.72, 0.64),
    "Sqrt": (0.29, 1.03),
    "Square": (0.27, 0.37),
    "SquaredDifference": (0.24, 0.76),
    "Sub": (0.33, 0.77),
    "Sum": (0.26, 0.25),
    "Tanh": (0.49, 0.93),
    "TanhGrad": (0.24, 1.13),
    "Tile": (0.64, 0.38),
    "Transpose": (0.72, 0.63),
}

#: Ops that move no data: they cost nothing in either type.
FREE = frozenset({"EnsureShape", "ExpandDims", "Identity", "IdentityN", "Reshape", "Squeeze", "StopGradient"})

#: Any other op, by the bytes that it moves.
OTHER_COST = (0.40, 0.40)

CAST_TO_F16 = 0.28  #: ns for each element
CAST_TO_FLOAT32 = 0.22  #: ns for each element
DISPATCH = 4_000.0  #: ns for each op that TensorFlow starts, whatever its size

PRODUCT_FLOAT32 = 1 / 55.0  #: ns for each floating-point operation of a product, two to a multiplication and addition
PRODUCT_F16 = 1 / 115.0  #: likewise in bfloat16


@dataclasses.dataclass(frozen=True)
class SlowKernel:
    """An op whose 16-bit kernel is so slow that it never pays.

    Attributes:
        op: the op.
        applies: whether a NodeDef of it is concerned.
        why: for people.
    """

    op: str
    applies: Callable[[Any], bool]
    why: str


def _has_strides(node: Any) -> bool:
    return any(stride > 1 for stride in node.attr["strides"].list.i)


SLOW_KERNELS: tuple[SlowKernel, ...] = (
    SlowKernel(
        "DepthwiseConv2dNativeBackpropInput",
        _has_strides,
        "its bfloat16 kernel for strides above 1 is 25 times slower than the float32 one (oneDNN's reference kernel)",
    ),
)
