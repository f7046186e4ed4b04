"""Fusions: ops that TensorFlow's remapper computes together with a product or another op.

The remapper runs before amp_tf and once more after it. A fusion made before is split again if it
prevents 16 bit (:mod:`amp_tf.rewriting.splitting`). An op that will be fused costs nothing of its
own and has the type of its product (:mod:`amp_tf.painting.remapper`).

A fused product names its steps in the attribute ``fused_ops``. The further inputs of the steps
follow those of the product, in the order of the steps. The attributes are those of the op
definitions of TensorFlow 2.21, and of the nodes that ``core/grappler/optimizers/remapper.cc`` makes
with oneDNN and without.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from amp_tf.oplists.table import BIAS_SUMS, Trait


@dataclasses.dataclass(frozen=True)
class Step:
    """One of the ops that a fused product computes.

    Attributes:
        op: the op.
        arguments: the number of its inputs after the first, which is the result of the step before.
        attributes: its attributes, each with the attribute of the fused product that holds it.
        fixed: further attributes, each with its value as the argument of an ``AttrValue``.
        all_ones: attributes that must be ones where oneDNN has no kernel, because TensorFlow's own
            needs that.
    """

    op: str
    arguments: int = 0
    attributes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    fixed: Mapping[str, Mapping[str, object]] = dataclasses.field(default_factory=dict)
    all_ones: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Fusion:
    """A product and the ops that TensorFlow computes with it.

    Attributes:
        fused: the op that the remapper makes of them.
        product: the product.
        activations: the activations that are fused behind a bias; without any, no bias is fused.
        sums: the ops that may stand between bias and activation and add a value of the result's
            shape. Behind depthwise convolutions and products of matrices the remapper then makes a
            Relu a node without an op.
        squeezed: whether the bias may come behind a Squeeze, as in a convolution over sequences.
    """

    fused: str
    product: Step
    activations: frozenset[str] = frozenset()
    sums: frozenset[str] = frozenset()
    squeezed: bool = False


def _same(*names: str) -> dict[str, str]:
    return dict(zip(names, names, strict=True))


_OF_CONVOLUTIONS = _same("strides", "padding", "data_format", "dilations")
_FLOAT = 1  # DT_FLOAT of types.proto

#: Activations that are fused with convolutions that are not depthwise.
CONVOLVED_ACTIVATIONS = Trait("Elu LeakyRelu Relu Relu6")
#: Activations that are fused with products of matrices.
MATRIX_ACTIVATIONS = Trait("Sigmoid Tanh", CONVOLVED_ACTIVATIONS)

FUSIONS: tuple[Fusion, ...] = (
    Fusion(
        "_FusedDepthwiseConv2dNative",
        Step("DepthwiseConv2dNative", 1, _OF_CONVOLUTIONS, all_ones=("dilations",)),
        Trait("Elu Relu Relu6"),
    ),
    Fusion(
        "_FusedConv2D",
        Step("Conv2D", 1, _OF_CONVOLUTIONS | _same("explicit_paddings", "use_cudnn_on_gpu")),
        CONVOLVED_ACTIVATIONS,
        BIAS_SUMS,
        squeezed=True,
    ),
    Fusion(
        "_FusedConv3D",
        Step("Conv3D", 1, _OF_CONVOLUTIONS, all_ones=("dilations",)),
        CONVOLVED_ACTIVATIONS,
        BIAS_SUMS,
    ),
    Fusion(
        "_FusedMatMul", Step("MatMul", 1, _same("transpose_a", "transpose_b")), MATRIX_ACTIVATIONS
    ),
    Fusion("_MklFusedBatchMatMulV2", Step("BatchMatMulV2", 1, _same("adj_x", "adj_y"))),
)
#: The product of each fused product.
SPLIT_PRODUCTS: Mapping[str, Step] = {fusion.fused: fusion.product for fusion in FUSIONS}

#: The steps behind a product, channels last, by their names in ``fused_ops``. Gelus and swishes are
#: several nodes and have no row.
SPLIT_STEPS: Mapping[str, Step] = {
    "BiasAdd": Step("BiasAdd", 1),
    "FusedBatchNorm": Step(
        "FusedBatchNormV3",
        4,
        {"epsilon": "epsilon"},
        {"U": {"type": _FLOAT}, "is_training": {"b": False}},
    ),
    "Add": Step("AddV2", 1),
    "Mul": Step("Mul", 1),
    "LeakyRelu": Step("LeakyRelu", 0, {"alpha": "leakyrelu_alpha"}),
    **{op: Step(op) for op in ("Elu", "Relu", "Relu6", "Sigmoid", "Tanh")},
}

#: Ops that TensorFlow may compute together with the product before them, under the last one's name.
FUSED_BEHIND = frozenset(step.op for step in SPLIT_STEPS.values()) | {"Squeeze"}

#: The sum of a bias with more than one dimension, which oneDNN fuses; BiasAdd takes none.
WIDE_BIAS = Step("AddV2", 1)

#: Attributes that are neither zero nor empty if more is fused into a product.
HOLDING_MORE = ("num_host_args", "padding_list")
#: The only layout of filters that the products know.
FILTER_LAYOUT = b"HWIO"

#: Chains of functions of one number, by their names in ``op_names``.
COMPOSITIONS = Trait("_UnaryOpsComposition")

#: Ops that oneDNN computes together with a product that reads the same tensor, if both have one
#: type, each with the product and the number of its input. Alone they cost what the table says.
FUSED_WITH: Mapping[str, tuple[str, int]] = {"BiasAddGrad": ("Conv2DBackpropFilter", 2)}

#: The Gelus that TensorFlow's remapper fuses with a product and its bias, as amp_tf sees them:
#: their ops and constants, to three digits, and the op that gives the biased value. The remapper
#: has run once by then, and runs once more. It fuses an exact Gelu together with the bias, and one
#: that approximates only after the bias.
GELUS: Mapping[str, str] = {
    # TensorFlow 2.16 writes an exact Gelu with Erf.
    "0.5 0.707 1 AddV2 Erf Mul Mul Mul": "BiasAdd",
    "0.5 1 1.41 AddV2 Erf Mul Mul RealDiv": "BiasAdd",
    "0.5 0.707 Erfc Mul Mul Mul Neg": "BiasAdd",
    "0.0447 0.5 0.798 1 AddV2 AddV2 Mul Mul Mul Mul Mul Square Tanh": "_FusedMatMul",
}
GELU_CORES = frozenset({"Erf", "Erfc", "Tanh"})  #: each Gelu has one
GELU_PARTS = GELU_CORES | {"AddV2", "Mul", "Neg", "RealDiv", "Square"}


# A Sigmoid with one reader, which multiplies it by its input, becomes one op if both have one type:
# TensorFlow's remapper fuses them when it runs after amp_tf. A Sigmoid alone is slower in 16 bit;
# the fused op, which is a row of the tables, takes the same time in both types.
SIGMOID = "Sigmoid"
GATING = "Mul"  #: the reader
SWISH = "_MklSwish"  #: the fused op
