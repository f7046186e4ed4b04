"""The ops other than products that are measured, on tensors of 32 thousand to eight million
elements.

One thread computes an op on the smallest. TensorFlow shares an op among threads where it expects
210,000 cycles or more (``TensorCostModel.numThreads`` of Eigen), and takes a copied byte for one:
of 61,440 elements ConcatV2, GatherV2 and Pack are shared in float32 and not in 16 bit, and waking a
thread takes longer than their copy; sums and products of two tensors are shared from some 98,304
on. Two million elements just fit the caches, eight do not.

An op reads the same first tensor in each run, as if it was computed just before, and other ones for
the rest, as what a gradient reads of the forward pass (:func:`amp_tf.tools.calibrating.run_many`).
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

BATCH = 8
CHANNELS = 64
#: Elements of the largest tensor that an op reads or writes.
SHAPES = tuple(
    (BATCH, height, width, CHANNELS)
    for height, width in ((8, 8), (10, 12), (12, 16), (16, 16), (32, 32), (64, 64), (128, 128))
)
Op = Callable[..., Any]
#: Ops that take tensors of the data's shape, and nothing else that matters.
UNARY = Trait(
    """Abs BiasAddGrad Elu Erf Erfc Floor IsFinite LeakyRelu Log Log1p LogSoftmax Neg Reciprocal
    Relu Relu6 Rsqrt Selu Sigmoid Sign Softmax Softplus Softsign Sqrt Square Tanh ZerosLike"""
)
BINARY = Trait(
    """Add AddV2 EluGrad FloorDiv Greater LeakyReluGrad Maximum Minimum Mul RealDiv Relu6Grad
    ReluGrad SeluGrad SoftplusGrad SoftsignGrad SquaredDifference Sub"""
)


def _by_name(name: str, **more: Any) -> Op:
    inputs = [each.name for each in op_def_registry.get(name).input_arg]
    return lambda *tensors: getattr(tf.raw_ops, name)(
        **dict(zip(inputs, tensors, strict=False)), **more
    )


def ops_on(data: Any) -> Mapping[str, tuple[Op, Sequence[Any]]]:
    """Returns the ops to measure, each with its arguments.

    Args:
        data: float32, of one of :data:`SHAPES`; its values are between 0 and 1.
    """
    half = data[: BATCH // 2]
    quarter = data[:, ::2, ::2]
    volume = tf.reshape(data, [BATCH // 2, 2, *data.shape[1:]])
    eighth = volume[:, ::2, ::2, ::2]
    raw = tf.raw_ops
    values = np.linspace(0.1, 0.9, CHANNELS, dtype=np.float32)
    bias = tf.constant(values)
    shape = data.shape.as_list()
    pool: dict[str, Any] = {"ksize": [1, 2, 2, 1], "strides": [1, 2, 2, 1], "padding": "SAME"}
    cube: dict[str, Any] = {"ksize": [1, 2, 2, 2, 1], "strides": [1, 2, 2, 2, 1], "padding": "SAME"}
    border = [[0, 0], [1, 1], [1, 1], [0, 0]]
    sides = shape[1:3]
    table = tf.reshape(data[:, :, 0], [-1, CHANNELS])
    flat = tf.reshape(data, [-1, CHANNELS])
    rows = tf.constant(np.random.default_rng(0).integers(0, len(table), np.prod(shape[:-1])))
    index = rows[:, None]
    parts = tf.cast(rows % 2, tf.int32)
    order = tf.range(len(rows))
    blocks = {"block_shape": [2, 2]}
    none = [[0, 0], [0, 0]]
    mask = data > 0.5
    of_one: dict[str, Op] = {name: _by_name(name) for name in UNARY}
    of_one |= {name: _by_name(name, axis=[1, 2]) for name in ("Max", "Mean", "Min", "Prod", "Sum")}
    of_one |= {name: _by_name(name, **pool) for name in ("AvgPool", "MaxPool")}
    of_one |= {name: _by_name(name, block_size=2) for name in ("DepthToSpace", "SpaceToDepth")}
    if op_def_registry.get(SWISH) is not None:
        of_one[SWISH] = lambda x: op_def_library.apply_op(SWISH, features=x, name="swish")
    of_one |= {
        f"AddV2{BROADCAST}": lambda x: x + tf.constant(values, x.dtype),
        "ArgMax": lambda x: tf.argmax(x, -1),
        "BiasAdd": lambda x: tf.nn.bias_add(x, tf.constant(values, x.dtype)),
        "BatchToSpaceND": lambda x: raw.BatchToSpaceND(input=x, **blocks, crops=none),
        "CheckNumerics": lambda x: tf.debugging.check_numerics(x, "not finite"),
        "ClipByValue": lambda x: raw.ClipByValue(
            t=x, clip_value_min=tf.constant(0.2, x.dtype), clip_value_max=tf.constant(0.8, x.dtype)
        ),
        "FusedBatchNormV3": lambda x: raw.FusedBatchNormV3(
            x=x,
            scale=bias,
            offset=bias,
            mean=tf.zeros([0]),
            variance=tf.zeros([0]),
            is_training=True,
        )[0],
        "MirrorPad": lambda x: tf.pad(x, border, "REFLECT"),
        "MirrorPadGrad": lambda x: raw.MirrorPadGrad(input=x, paddings=border, mode="REFLECT"),
        f"Mul{BROADCAST}": lambda x: x * tf.constant(values, x.dtype),
        "Pad": lambda x: tf.pad(x, border),
        "ResizeNearestNeighborGrad": lambda x: raw.ResizeNearestNeighborGrad(
            grads=x, size=[side // 2 for side in sides]
        ),
        "ReverseSequence": lambda x: tf.reverse_sequence(x, [sides[0] - 1] * BATCH, 1, 0),
        "ReverseV2": lambda x: tf.reverse(x, [1]),
        "Slice": lambda x: tf.slice(x, [0, 1, 0, 0], [shape[0], shape[1] - 1, *shape[2:]]),
        "SpaceToBatchND": lambda x: raw.SpaceToBatchND(input=x, **blocks, paddings=none),
        "Split": lambda x: tf.split(x, 2, -1)[0],
        "StridedSlice": lambda x: x[:, 1:],
        f"Sub{BROADCAST}": lambda x: x - tf.constant(values, x.dtype),
        "TopKV2": lambda x: tf.math.top_k(x, 4)[0],
        "Transpose": lambda x: tf.transpose(x, [0, 2, 1, 3]),
        "Unpack": lambda x: tf.identity_n(tf.unstack(x, axis=1))[
            0
        ],  # it writes only outputs that are read
    }
    of_two: dict[str, Op] = {name: _by_name(name) for name in BINARY}
    of_two |= {
        "AddN": lambda x, y: tf.add_n([x, y]),
        "FusedBatchNormGradV3": lambda x, y: raw.FusedBatchNormGradV3(
            y_backprop=x,
            x=y,
            scale=bias,
            reserve_space_1=bias,
            reserve_space_2=bias,
            reserve_space_3=bias,
        )[0],
        "SelectV2": lambda x, y: tf.where(mask, x, y),
        "SigmoidGrad": lambda x, y: raw.SigmoidGrad(y=y, dy=x),
        "TanhGrad": lambda x, y: raw.TanhGrad(y=y, dy=x),
    }
    cut = {
        "shape": shape,
        "begin": [0, 1, 0, 0],
        "end": [0] * 4,
        "strides": [1] * 4,
        "begin_mask": 13,
        "end_mask": 15,
    }

    def of_pool(g: Any, x: Any) -> Any:
        return raw.MaxPoolGrad(
            orig_input=x, orig_output=raw.MaxPool(input=x, **pool), grad=g, **pool
        )

    def of_pool_3d(g: Any, x: Any) -> Any:
        return raw.MaxPool3DGrad(
            orig_input=x, orig_output=raw.MaxPool3D(input=x, **cube), grad=g, **cube
        )

    return {
        **{name: (op, [data]) for name, op in of_one.items()},
        **{name: (op, [data, data]) for name, op in of_two.items()},
        **{name: (_by_name(name, **cube), [volume]) for name in ("AvgPool3D", "MaxPool3D")},
        **{
            name: (_by_name(name, size=sides, half_pixel_centers=True), [quarter])
            for name in ("ResizeBilinear", "ResizeNearestNeighbor")
        },
        "AvgPool3DGrad": (
            lambda x: raw.AvgPool3DGrad(orig_input_shape=volume.shape, grad=x, **cube),
            [eighth],
        ),
        "AvgPoolGrad": (
            lambda x: raw.AvgPoolGrad(orig_input_shape=shape, grad=x, **pool),
            [quarter],
        ),
        "BroadcastTo": (lambda x: tf.broadcast_to(x, shape), [data[:, :1, :1]]),
        "ConcatV2": (lambda x: tf.concat([x, x], -1), [half]),
        "DynamicPartition": (lambda x: tf.dynamic_partition(x, parts, 2)[0], [flat]),
        "DynamicStitch": (lambda x: tf.dynamic_stitch([order], [x]), [flat]),
        "GatherNd": (lambda x: tf.gather_nd(x, index), [table]),
        "GatherV2": (lambda x: tf.gather(x, rows), [table]),
        "MaxPool3DGrad": (of_pool_3d, [eighth, volume]),
        "MaxPoolGrad": (of_pool, [quarter, data]),
        "Pack": (lambda x: tf.stack([x, x], 1), [half]),
        "ScatterNd": (lambda x: tf.scatter_nd(index, x, table.shape), [flat]),
        "StridedSliceGrad": (lambda x: raw.StridedSliceGrad(dy=x, **cut), [data[:, 1:]]),
        "Tile": (lambda x: tf.tile(x, [2, 1, 1, 1]), [half]),
    }


#: Gradients that are measured together with the op from which oneDNN computes them.
MEASURED_WITH = {op: forward for op, (forward, _) in PAIRED.items()}


def _kernels(text: str) -> dict[str, str]:
    return dict(pair.split("=") for pair in text.split())


#: Ops that run another one's kernel, or one that does the same with another comparison or value.
SAME_KERNEL = {f"Add{BROADCAST}": f"AddV2{BROADCAST}"} | _kernels(
    """ArgMin=ArgMax BatchToSpace=BatchToSpaceND BiasAddV1=BiasAdd Ceil=Floor Concat=ConcatV2
    Equal=Greater GreaterEqual=Greater Less=Greater LessEqual=Greater NotEqual=Greater
    Fill=ZerosLike FusedBatchNormGradV2=FusedBatchNormGradV3 FusedBatchNormV2=FusedBatchNormV3
    Gather=GatherV2 Inv=Reciprocal IsInf=IsFinite IsNan=IsFinite MaxPoolGradV2=MaxPoolGrad
    MaxPoolV2=MaxPool OnesLike=ZerosLike PadV2=Pad Reverse=ReverseV2 Round=Floor Select=SelectV2
    SpaceToBatch=SpaceToBatchND SplitV=Split TensorListConcat=ConcatV2
    TensorListConcatV2=ConcatV2 TensorListFromTensor=Unpack TensorListStack=Pack TopK=TopKV2"""
)


def data_of(shape: Sequence[int]) -> Any:
    """Makes the tensors that the ops are measured on."""
    return tf.constant(np.random.default_rng(0).uniform(0.1, 0.9, shape).astype(np.float32))
