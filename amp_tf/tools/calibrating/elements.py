"""The ops other than products that are measured, on tensors of 32 thousand to eight million elements.

One thread computes an op on the smallest. TensorFlow shares an op among threads where it expects 210,000 cycles or more
(``TensorCostModel.numThreads`` of Eigen), and takes a copied byte for one: of 61,440 elements ConcatV2, GatherV2 and
Pack are shared in float32 and not in 16 bit, and waking a thread takes longer than their copy; sums and products of two
tensors are shared from some 98,304 on. Two million elements just fit the caches, eight do not.

An op reads the same first tensor in each run, as if it was computed just before, and other ones for the rest, as what
a gradient reads of the forward pass (:func:`amp_tf.tools.calibrating.run_many`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import op_def_library, op_def_registry

from amp_tf.oplists.cost_tables import BROADCAST
from amp_tf.oplists.fusions import SWISH
from amp_tf.oplists.kernels import PAIRED
from amp_tf.oplists.table import Trait

BATCH, CHANNELS = 8, 64
#: Elements of the largest tensor that an op reads or writes.
SHAPES = tuple(
    (BATCH, height, width, CHANNELS)
    for height, width in ((8, 8), (10, 12), (12, 16), (16, 16), (32, 32), (64, 64), (128, 128))
)
Op = Callable[..., Any]


def ops_on(data: Any) -> Mapping[str, tuple[Op, Sequence[Any]]]:
    """The ops to measure, each with its arguments.

    Args:
        data: float32, of one of :data:`SHAPES`; its values are between 0 and 1.
    """
    half, quarter = data[: BATCH // 2], data[:, ::2, ::2]
    volume = tf.reshape(data, [BATCH // 2, 2, *data.shape[1:]])
    eighth = volume[:, ::2, ::2, ::2]
    raw = tf.raw_ops
    mask = data > 0.5
    values = np.linspace(0.1, 0.9, CHANNELS, dtype=np.float32)
    bias = tf.constant(values)
    shape = data.shape.as_list()
    pool: dict[str, Any] = {"ksize": [1, 2, 2, 1], "strides": [1, 2, 2, 1], "padding": "SAME"}
    cube: dict[str, Any] = {"ksize": [1, 2, 2, 2, 1], "strides": [1, 2, 2, 2, 1], "padding": "SAME"}
    border = [[0, 0], [1, 1], [1, 1], [0, 0]]
    sides = shape[1:3]
    table = tf.reshape(data[:, :, 0], [-1, CHANNELS])
    rows = tf.constant(np.random.default_rng(0).integers(0, len(table), np.prod(shape[:-1])))
    index, parts, order = rows[:, None], tf.cast(rows % 2, tf.int32), tf.range(len(rows))
    blocks, none = {"block_shape": [2, 2]}, [[0, 0], [0, 0]]
    unary: dict[str, Op] = {
        "Abs": tf.abs,
        f"AddV2{BROADCAST}": lambda x: x + tf.constant(values, x.dtype),
        "ArgMax": lambda x: tf.argmax(x, -1),
        "AvgPool": lambda x: raw.AvgPool(value=x, **pool),
        "BiasAdd": lambda x: tf.nn.bias_add(x, tf.constant(values, x.dtype)),
        "BatchToSpaceND": lambda x: raw.BatchToSpaceND(input=x, **blocks, crops=none),
        "BiasAddGrad": lambda x: raw.BiasAddGrad(out_backprop=x),
        "CheckNumerics": lambda x: tf.debugging.check_numerics(x, "not finite"),
        "ClipByValue": lambda x: raw.ClipByValue(
            t=x, clip_value_min=tf.constant(0.2, x.dtype), clip_value_max=tf.constant(0.8, x.dtype)
        ),
        "DepthToSpace": lambda x: tf.nn.depth_to_space(x, 2),
        "Elu": tf.nn.elu,
        "Erf": tf.math.erf,
        "Erfc": tf.math.erfc,
        "Floor": tf.floor,
        "FusedBatchNormV3": lambda x: raw.FusedBatchNormV3(
            x=x, scale=bias, offset=bias, mean=tf.zeros([0]), variance=tf.zeros([0]), is_training=True
        )[0],
        "IsFinite": tf.math.is_finite,
        "LeakyRelu": tf.nn.leaky_relu,
        "Log": tf.math.log,
        "Log1p": tf.math.log1p,
        "LogSoftmax": tf.nn.log_softmax,
        "MaxPool": lambda x: raw.MaxPool(input=x, **pool),
        "Max": lambda x: tf.reduce_max(x, [1, 2]),
        "Mean": lambda x: tf.reduce_mean(x, [1, 2]),
        "Min": lambda x: tf.reduce_min(x, [1, 2]),
        "MirrorPad": lambda x: tf.pad(x, border, "REFLECT"),
        "MirrorPadGrad": lambda x: raw.MirrorPadGrad(input=x, paddings=border, mode="REFLECT"),
        f"Mul{BROADCAST}": lambda x: x * tf.constant(values, x.dtype),
        "Neg": tf.negative,
        "Pad": lambda x: tf.pad(x, border),
        "Prod": lambda x: tf.reduce_prod(x, [1, 2]),
        "Reciprocal": tf.math.reciprocal,
        "Relu": tf.nn.relu,
        "Relu6": tf.nn.relu6,
        "ResizeNearestNeighborGrad": lambda x: raw.ResizeNearestNeighborGrad(
            grads=x, size=[side // 2 for side in sides]
        ),
        "ReverseSequence": lambda x: tf.reverse_sequence(x, [sides[0] - 1] * BATCH, 1, 0),
        "ReverseV2": lambda x: tf.reverse(x, [1]),
        "Rsqrt": tf.math.rsqrt,
        "Selu": tf.nn.selu,
        "Sigmoid": tf.sigmoid,
        "Sign": tf.sign,
        "Slice": lambda x: tf.slice(x, [0, 1, 0, 0], [shape[0], shape[1] - 1, *shape[2:]]),
        "Softmax": tf.nn.softmax,
        "Softplus": tf.nn.softplus,
        "Softsign": tf.nn.softsign,
        "SpaceToBatchND": lambda x: raw.SpaceToBatchND(input=x, **blocks, paddings=none),
        "SpaceToDepth": lambda x: tf.nn.space_to_depth(x, 2),
        "Split": lambda x: tf.split(x, 2, -1)[0],
        "Sqrt": tf.sqrt,
        "Square": tf.square,
        "StridedSlice": lambda x: x[:, 1:],
        f"Sub{BROADCAST}": lambda x: x - tf.constant(values, x.dtype),
        "Sum": lambda x: tf.reduce_sum(x, [1, 2]),
        "Tanh": tf.tanh,
        "TopKV2": lambda x: tf.math.top_k(x, 4)[0],
        "Transpose": lambda x: tf.transpose(x, [0, 2, 1, 3]),
        "Unpack": lambda x: tf.identity_n(tf.unstack(x, axis=1))[0],  # it writes only outputs that are read
        "ZerosLike": lambda x: raw.ZerosLike(x=x),
    }
    binary: dict[str, Op] = {
        "Add": lambda x, y: raw.Add(x=x, y=y),
        "AddN": lambda x, y: tf.add_n([x, y]),
        "AddV2": tf.add,
        "EluGrad": lambda x, y: raw.EluGrad(gradients=x, outputs=y),
        "FloorDiv": tf.math.floordiv,
        "FusedBatchNormGradV3": lambda x, y: raw.FusedBatchNormGradV3(
            y_backprop=x, x=y, scale=bias, reserve_space_1=bias, reserve_space_2=bias, reserve_space_3=bias
        )[0],
        "Greater": tf.greater,
        "LeakyReluGrad": lambda x, y: raw.LeakyReluGrad(gradients=x, features=y),
        "Maximum": tf.maximum,
        "Minimum": tf.minimum,
        "Mul": tf.multiply,
        "RealDiv": lambda x, y: raw.RealDiv(x=x, y=y),
        "Relu6Grad": lambda x, y: raw.Relu6Grad(gradients=x, features=y),
        "ReluGrad": lambda x, y: raw.ReluGrad(gradients=x, features=y),
        "SelectV2": lambda x, y: tf.where(mask, x, y),
        "SeluGrad": lambda x, y: raw.SeluGrad(gradients=x, outputs=y),
        "SigmoidGrad": lambda x, y: raw.SigmoidGrad(y=y, dy=x),
        "SoftplusGrad": lambda x, y: raw.SoftplusGrad(gradients=x, features=y),
        "SoftsignGrad": lambda x, y: raw.SoftsignGrad(gradients=x, features=y),
        "SquaredDifference": tf.math.squared_difference,
        "Sub": tf.subtract,
        "TanhGrad": lambda x, y: raw.TanhGrad(y=y, dy=x),
    }
    doubling: dict[str, Op] = {
        "ConcatV2": lambda x: tf.concat([x, x], -1),
        "Pack": lambda x: tf.stack([x, x], 1),
        "Tile": lambda x: tf.tile(x, [2, 1, 1, 1]),
    }
    picking: dict[str, Op] = {
        "GatherNd": lambda x: tf.gather_nd(x, index),
        "GatherV2": lambda x: tf.gather(x, rows),
    }
    parting: dict[str, Op] = {
        "DynamicPartition": lambda x: tf.dynamic_partition(x, parts, 2)[0],
        "DynamicStitch": lambda x: tf.dynamic_stitch([order], [x]),
        "ScatterNd": lambda x: tf.scatter_nd(index, x, table.shape),
    }
    spreading: dict[str, Op] = {
        "AvgPoolGrad": lambda x: raw.AvgPoolGrad(orig_input_shape=shape, grad=x, **pool),
        "ResizeBilinear": lambda x: raw.ResizeBilinear(images=x, size=sides, half_pixel_centers=True),
        "ResizeNearestNeighbor": lambda x: raw.ResizeNearestNeighbor(images=x, size=sides, half_pixel_centers=True),
    }
    pooled: dict[str, Op] = {
        "MaxPoolGrad": lambda g, x: raw.MaxPoolGrad(
            orig_input=x, orig_output=raw.MaxPool(input=x, **pool), grad=g, **pool
        )
    }
    in_volumes: dict[str, Op] = {
        "AvgPool3D": lambda x: raw.AvgPool3D(input=x, **cube),
        "MaxPool3D": lambda x: raw.MaxPool3D(input=x, **cube),
    }
    spreading_in_volumes: dict[str, Op] = {
        "AvgPool3DGrad": lambda x: raw.AvgPool3DGrad(orig_input_shape=volume.shape, grad=x, **cube)
    }
    pooled_in_volumes: dict[str, Op] = {
        "MaxPool3DGrad": lambda g, x: raw.MaxPool3DGrad(
            orig_input=x, orig_output=raw.MaxPool3D(input=x, **cube), grad=g, **cube
        )
    }
    broadcast: dict[str, Op] = {"BroadcastTo": lambda x: tf.broadcast_to(x, shape)}
    cut: dict[str, Op] = {
        "StridedSliceGrad": lambda x: raw.StridedSliceGrad(
            shape=shape, begin=[0, 1, 0, 0], end=[0] * 4, strides=[1] * 4, dy=x, begin_mask=13, end_mask=15
        )
    }
    if op_def_registry.get(SWISH) is not None:
        unary[SWISH] = lambda x: op_def_library.apply_op(SWISH, features=x, name="swish")
    groups = (
        (unary, [data]),
        (binary, [data, data]),
        (doubling, [half]),
        (picking, [table]),
        (parting, [tf.reshape(data, [-1, CHANNELS])]),
        (spreading, [quarter]),
        (pooled, [quarter, data]),
        (in_volumes, [volume]),
        (spreading_in_volumes, [eighth]),
        (pooled_in_volumes, [eighth, volume]),
        (broadcast, [data[:, :1, :1]]),
        (cut, [data[:, 1:]]),
    )
    return {name: (op, inputs) for ops, inputs in groups for name, op in ops.items()}


#: Ops that are measured at every other size; other sizes are interpolated.
SELDOM = Trait(
    """ArgMax AvgPool3D AvgPool3DGrad BroadcastTo CheckNumerics DynamicPartition DynamicStitch Floor FloorDiv GatherNd
    IsFinite MaxPool3D MaxPool3DGrad Min MirrorPad MirrorPadGrad Prod ResizeBilinear ResizeNearestNeighbor
    ResizeNearestNeighborGrad ReverseSequence ReverseV2 ScatterNd Sign SpaceToDepth StridedSliceGrad TopKV2"""
)
#: Gradients that are measured together with the op from which oneDNN computes them.
MEASURED_WITH = {op: forward for op, (forward, _) in PAIRED.items()}
#: Ops that run another one's kernel, or one that does the same with another comparison or value.
SAME_KERNEL = {
    f"Add{BROADCAST}": f"AddV2{BROADCAST}",
    "ArgMin": "ArgMax",
    "BatchToSpace": "BatchToSpaceND",
    "BiasAddV1": "BiasAdd",
    "Ceil": "Floor",
    "Concat": "ConcatV2",
    **dict.fromkeys(("Equal", "GreaterEqual", "Less", "LessEqual", "NotEqual"), "Greater"),
    "Fill": "ZerosLike",
    "FusedBatchNormGradV2": "FusedBatchNormGradV3",
    "FusedBatchNormV2": "FusedBatchNormV3",
    "Gather": "GatherV2",
    "Inv": "Reciprocal",
    "IsInf": "IsFinite",
    "IsNan": "IsFinite",
    "MaxPoolGradV2": "MaxPoolGrad",
    "MaxPoolV2": "MaxPool",
    "OnesLike": "ZerosLike",
    "PadV2": "Pad",
    "Reverse": "ReverseV2",
    "Round": "Floor",
    "Select": "SelectV2",
    "SpaceToBatch": "SpaceToBatchND",
    "SplitV": "Split",
    "TensorListConcat": "ConcatV2",
    "TensorListConcatV2": "ConcatV2",
    "TensorListFromTensor": "Unpack",
    "TensorListStack": "Pack",
    "TopK": "TopKV2",
}


def data_of(shape: Sequence[int]) -> Any:
    """The tensors that the ops are measured on."""
    return tf.constant(np.random.default_rng(0).uniform(0.1, 0.9, shape).astype(np.float32))
