"""The ops around products that are measured, on tensors of 32 thousand to eight million elements.

One thread computes an op on the smallest. TensorFlow shares an op among threads where it expects 210,000 cycles or more
(``TensorCostModel.numThreads`` of Eigen), and takes a copied byte for one: of 61,440 elements ConcatV2, GatherV2 and
Pack are shared in float32 and not in 16 bit, and waking a thread takes longer than their copy; sums and products of two
tensors are shared from some 98,304 on. Two million elements just fit the caches, eight do not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import op_def_library, op_def_registry

from amp_tf.oplists.costs import SWISH

BATCH, CHANNELS = 8, 64
#: Of the largest tensor that an op reads or writes.
SHAPES = tuple(
    (BATCH, height, width, CHANNELS)
    for height, width in ((8, 8), (10, 12), (12, 16), (16, 16), (32, 32), (64, 64), (128, 128))
)
Op = Callable[..., Any]


def ops_on(data: Any) -> Mapping[str, tuple[Op, Sequence[Any]]]:
    """The ops that are measured, each with what it takes.

    Args:
        data: float32, of one of :data:`SHAPES`; its values lie between 0 and 1.
    """
    half = data[: BATCH // 2]
    raw = tf.raw_ops
    mask = data > 0.5
    values = np.linspace(0.1, 0.9, CHANNELS, dtype=np.float32)
    bias = tf.constant(values)
    shape = data.shape.as_list()
    pool: dict[str, Any] = {"ksize": [1, 2, 2, 1], "strides": [1, 2, 2, 1], "padding": "SAME"}
    table = tf.reshape(data[:, :, 0], [-1, CHANNELS])
    rows = tf.constant(np.random.default_rng(0).integers(0, len(table), np.prod(shape[:-1])))
    blocks, none = {"block_shape": [2, 2]}, [[0, 0], [0, 0]]
    unary: dict[str, Op] = {
        "Abs": tf.abs,
        "AvgPool": lambda x: raw.AvgPool(value=x, **pool),
        "BiasAdd": lambda x: tf.nn.bias_add(x, tf.constant(values, x.dtype)),
        "BatchToSpaceND": lambda x: raw.BatchToSpaceND(input=x, **blocks, crops=none),
        "BiasAddGrad": lambda x: raw.BiasAddGrad(out_backprop=x),
        "DepthToSpace": lambda x: tf.nn.depth_to_space(x, 2),
        "Elu": tf.nn.elu,
        "Erf": tf.math.erf,
        "Erfc": tf.math.erfc,
        "FusedBatchNormGradV3": lambda x: raw.FusedBatchNormGradV3(
            y_backprop=x, x=x, scale=bias, reserve_space_1=bias, reserve_space_2=bias, reserve_space_3=bias
        )[0],
        "FusedBatchNormV3": lambda x: raw.FusedBatchNormV3(
            x=x, scale=bias, offset=bias, mean=tf.zeros([0]), variance=tf.zeros([0]), is_training=True
        )[0],
        "LeakyRelu": tf.nn.leaky_relu,
        "Log": tf.math.log,
        "Log1p": tf.math.log1p,
        "MaxPool": lambda x: raw.MaxPool(input=x, **pool),
        "Max": lambda x: tf.reduce_max(x, [1, 2]),
        "Mean": lambda x: tf.reduce_mean(x, [1, 2]),
        "Neg": tf.negative,
        "Pad": lambda x: tf.pad(x, [[0, 0], [1, 1], [1, 1], [0, 0]]),
        "Reciprocal": tf.math.reciprocal,
        "Relu": tf.nn.relu,
        "Relu6": tf.nn.relu6,
        "Rsqrt": tf.math.rsqrt,
        "Selu": tf.nn.selu,
        "Sigmoid": tf.sigmoid,
        "Slice": lambda x: tf.slice(x, [0, 1, 0, 0], [shape[0], shape[1] - 1, *shape[2:]]),
        "Softmax": tf.nn.softmax,
        "Softplus": tf.nn.softplus,
        "Softsign": tf.nn.softsign,
        "SpaceToBatchND": lambda x: raw.SpaceToBatchND(input=x, **blocks, paddings=none),
        "Split": lambda x: tf.split(x, 2, -1)[0],
        "Sqrt": tf.sqrt,
        "Square": tf.square,
        "StridedSlice": lambda x: x[:, 1:],
        "Sum": lambda x: tf.reduce_sum(x, [1, 2]),
        "Tanh": tf.tanh,
        "Transpose": lambda x: tf.transpose(x, [0, 2, 1, 3]),
    }
    binary: dict[str, Op] = {
        "Add": lambda x, y: raw.Add(x=x, y=y),
        "AddN": lambda x, y: tf.add_n([x, y]),
        "AddV2": tf.add,
        "EluGrad": lambda x, y: raw.EluGrad(gradients=x, outputs=y),
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
    picking: dict[str, Op] = {"GatherV2": lambda x: tf.gather(x, rows)}
    if op_def_registry.get(SWISH.op) is not None:
        unary[SWISH.op] = lambda x: op_def_library.apply_op(SWISH.op, features=x, name="swish")
    groups = ((unary, [data]), (binary, [data, data]), (doubling, [half]), (picking, [table]))
    return {name: (op, inputs) for ops, inputs in groups for name, op in ops.items()}


#: Ops that run another one's kernel.
SAME_KERNEL = {"BiasAddV1": "BiasAdd", "Inv": "Reciprocal"}


def data_of(shape: Sequence[int]) -> Any:
    """What the ops are measured on."""
    return tf.constant(np.random.default_rng(0).uniform(0.1, 0.9, shape).astype(np.float32))
