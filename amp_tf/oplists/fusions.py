"""The products that TensorFlow's remapper fuses with what follows them, and what each of them computes.

A fused product names its steps in the attribute ``fused_ops``; their further inputs follow those of the product, in the
order of the steps. What the attributes may hold was read from the op definitions of TensorFlow 2.21 and from
the nodes that ``core/grappler/optimizers/remapper.cc`` makes, with oneDNN and without.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from amp_tf.oplists.table import Trait


@dataclasses.dataclass(frozen=True)
class Step:
    """One of the ops that a fused product computes.

    Attributes:
        op: the op.
        arguments: how many inputs it has beside the value that it is computed of, which is the first.
        attributes: its attributes, each with the attribute of the fused product that holds it.
        fixed: further attributes, each with its value as the argument of an ``AttrValue``.
        all_ones: attributes of which TensorFlow's own kernel, which computes the product where oneDNN has none, takes
            ones alone.
    """

    op: str
    arguments: int = 0
    attributes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    fixed: Mapping[str, Mapping[str, object]] = dataclasses.field(default_factory=dict)
    all_ones: tuple[str, ...] = ()


_OF_CONVOLUTIONS = {name: name for name in ("strides", "padding", "data_format", "dilations")}
_FLOAT = 1  # DT_FLOAT of types.proto

#: The product of each fused product.
SPLIT_PRODUCTS: Mapping[str, Step] = {
    "_FusedMatMul": Step("MatMul", 1, {name: name for name in ("transpose_a", "transpose_b")}),
    "_FusedConv2D": Step(
        "Conv2D", 1, {**_OF_CONVOLUTIONS, **{name: name for name in ("explicit_paddings", "use_cudnn_on_gpu")}}
    ),
    "_FusedConv3D": Step("Conv3D", 1, _OF_CONVOLUTIONS, all_ones=("dilations",)),
    "_FusedDepthwiseConv2dNative": Step("DepthwiseConv2dNative", 1, _OF_CONVOLUTIONS, all_ones=("dilations",)),
    "_MklFusedBatchMatMulV2": Step("BatchMatMulV2", 1, {name: name for name in ("adj_x", "adj_y")}),
}
SPLITTABLE = Trait(" ".join(SPLIT_PRODUCTS))
#: Chains of functions of one number, by their names in ``op_names``.
COMPOSITIONS = Trait("_UnaryOpsComposition")

#: What follows, channels last, by its name in ``fused_ops``. Gelus and swishes are several nodes and have no row.
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
