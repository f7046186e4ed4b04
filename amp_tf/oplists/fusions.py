"""What TensorFlow computes together: the products that its remapper fuses with what follows them,
and other pairs.

The remapper runs before amp_tf and once more after it. What it fused before is split again where
that prevents 16 bit (:mod:`amp_tf.rewriting.splitting`); what it will fuse costs nothing of its own
and has the type of its product (:mod:`amp_tf.painting.remapper`).

A fused product names its steps in the attribute ``fused_ops``; their further inputs follow those of
the product, in the order of the steps. The attributes are those of the op definitions of TensorFlow
2.21, and of the nodes that ``core/grappler/optimizers/remapper.cc`` makes with oneDNN and without.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from amp_tf.oplists.table import BIAS_SUMS, Trait


@dataclasses.dataclass(frozen=True)
class Step:
    """One of the ops that a fused product computes.

    Attributes:
        arguments: how many inputs it has beside the value that it is computed of, which is the
            first.
        attributes: its attributes, each with the attribute of the fused product that holds it.
        fixed: further attributes, each with its value as the argument of an ``AttrValue``.
        all_ones: attributes of which TensorFlow's own kernel, which computes the product where
            oneDNN has none, takes ones alone.
    """

    op: str
    arguments: int = 0
    attributes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    fixed: Mapping[str, Mapping[str, object]] = dataclasses.field(default_factory=dict)
    all_ones: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Fusion:
    """A product and what TensorFlow computes with it.

    Attributes:
        fused: the op that the remapper makes of both.
        activations: what is computed with it behind a bias that is added to its result; of none, no
            bias is either.
        sums: what may stand between the two, and adds a value of the result's shape; behind
            depthwise convolutions and products of matrices the remapper then makes a Relu a node
            without an op.
        squeezed: whether the bias may come behind a Squeeze, as that of a convolution over
            sequences does.
    """

    fused: str
    product: Step
    activations: frozenset[str] = frozenset()
    sums: frozenset[str] = frozenset()
    squeezed: bool = False


def _same(*names: str) -> dict[str, str]:
    return {name: name for name in names}


_OF_CONVOLUTIONS = _same("strides", "padding", "data_format", "dilations")
_FLOAT = 1  # DT_FLOAT of types.proto

#: Activations that go with convolutions that are not depthwise, and with products of matrices.
CONVOLVED_ACTIVATIONS = Trait("Elu LeakyRelu Relu Relu6")
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

#: What follows, channels last, by its name in ``fused_ops``. Gelus and swishes are several nodes
#: and have no row.
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

#: A bias with more dimensions than one, which oneDNN takes from a sum: BiasAdd does not.
WIDE_BIAS = Step("AddV2", 1)

#: Attributes of which any value but zero or nothing says that more is fused into a product.
HOLDING_MORE = ("num_host_args", "padding_list")
#: The only layout of filters that the products know.
FILTER_LAYOUT = b"HWIO"

#: Chains of functions of one number, by their names in ``op_names``.
COMPOSITIONS = Trait("_UnaryOpsComposition")

#: Ops that oneDNN computes together with a product that reads the same tensor, if both have one
#: type: the op, the product, and the number of the product's input. Alone they would cost what the
#: table says.
FUSED_WITH: Mapping[str, tuple[str, int]] = {"BiasAddGrad": ("Conv2DBackpropFilter", 2)}

#: The Gelus that TensorFlow's remapper computes with a product and its bias, as they stand when
#: amp_tf sees them: the ops and constants, to three digits, that make them of the biased value, and
#: the op that gives that. The remapper has run once by then, and runs once more: an exact one that
#: it could take is taken, with its bias; one that approximates is taken only once the bias is.
GELUS: Mapping[str, str] = {
    # TensorFlow 2.16 writes an exact one with Erf
    "0.5 0.707 1 AddV2 Erf Mul Mul Mul": "BiasAdd",
    "0.5 1 1.41 AddV2 Erf Mul Mul RealDiv": "BiasAdd",
    "0.5 0.707 Erfc Mul Mul Mul Neg": "BiasAdd",
    "0.0447 0.5 0.798 1 AddV2 AddV2 Mul Mul Mul Mul Mul Square Tanh": "_FusedMatMul",
}
GELU_CORES = frozenset({"Erf", "Erfc", "Tanh"})  #: of which each has one
GELU_PARTS = GELU_CORES | {"AddV2", "Mul", "Neg", "RealDiv", "Square"}


#: A Sigmoid that nothing else reads, the op that multiplies it with its input, and what
#: TensorFlow's remapper, run after amp_tf, makes of both if they have one type. A Sigmoid alone is
#: slower in 16 bit; the op, which is a row of the tables, takes the same in both types.
SIGMOID, GATING, SWISH = "Sigmoid", "Mul", "_MklSwish"
