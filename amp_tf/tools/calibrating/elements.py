"""Names the ops other than products that are measured, and their inputs.

The tensors have 32 thousand to eight million elements.

One thread computes an op on the smallest tensors. TensorFlow shares an op among threads if it
expects 210,000 cycles or more (``TensorCostModel.numThreads`` of Eigen), a copied byte counted as
one. So ConcatV2, GatherV2 and Pack of 61,440 elements are shared in float32 and not in 16 bit,
although waking a thread takes longer than the copy. Sums and products of two tensors are shared
from some 98,304 elements on. Two million elements just fit the caches, eight million do not.

The first input of an op is the same tensor in each run, as if it was computed just before. The
others change, like values of the forward pass that a gradient reads
(:func:`amp_tf.tools.calibrating.run_many`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import op_def_library, op_def_registry

from amp_tf.oplists.cost_tables import BROADCAST
from amp_tf.oplists.fusions import SWISH
from amp_tf.oplists.kernels import PAIRED

BATCH = 8
CHANNELS = 64
#: Elements of the largest tensor that an op reads or writes.
SHAPES = tuple(
    (BATCH, height, width, CHANNELS)
    for height, width in ((8, 8), (10, 12), (12, 16), (16, 16), (32, 32), (64, 64), (128, 128))
)
Tensors = Sequence[Any]
Op = Callable[..., Any]
_OF_ONE = """Abs BiasAddGrad Elu Erf Erfc Floor IsFinite LeakyRelu Log Log1p LogSoftmax Neg
    Reciprocal Relu Relu6 Rsqrt Selu Sigmoid Sign Softmax Softplus Softsign Sqrt Square Tanh
    ZerosLike"""
_OF_TWO = """Add AddV2 EluGrad FloorDiv Greater LeakyReluGrad Maximum Minimum Mul RealDiv Relu6Grad
    ReluGrad SeluGrad SigmoidGrad SoftplusGrad SoftsignGrad SquaredDifference Sub TanhGrad"""


def raw_op(op: str, **fixed: Any) -> Op:
    """Returns an op as a function of its inputs.

    The function does not take the inputs that ``fixed`` holds beside attributes.
    """
    definition = op_def_registry.get(op)
    inputs = [each.name for each in definition.input_arg if each.name not in fixed]

    def run(*tensors: Any) -> Any:
        results = getattr(tf.raw_ops, op)(**dict(zip(inputs, tensors, strict=False)), **fixed)
        if len(definition.output_arg) > 1 or isinstance(results, list):
            return results[0]
        return results

    return run


def ops_on(data: Any) -> Mapping[str, tuple[Op, Tensors]]:
    """Returns the ops to measure, each with its arguments.

    Args:
        data: float32, of one of :data:`SHAPES`; its values are between 0 and 1.
    """
    half = data[: BATCH // 2]
    quarter = data[:, ::2, ::2]
    volume = tf.reshape(data, [BATCH // 2, 2, *data.shape[1:]])
    eighth = volume[:, ::2, ::2, ::2]
    values = np.linspace(0.1, 0.9, CHANNELS, dtype=np.float32)
    shape = data.shape.as_list()
    sides = shape[1:3]
    half_sides = [side // 2 for side in sides]
    flat = tf.reshape(data, [-1, CHANNELS])
    table = tf.reshape(data[:, :, 0], [-1, CHANNELS])
    rows = tf.constant(np.random.default_rng(0).integers(0, len(table), np.prod(shape[:-1])))
    # The attributes and fixed inputs of ops.
    pool = {"ksize": [1, 2, 2, 1], "strides": [1, 2, 2, 1], "padding": "SAME"}
    cube = {"ksize": [1, 2, 2, 2, 1], "strides": [1, 2, 2, 2, 1], "padding": "SAME"}
    border = {"paddings": [[0, 0], [1, 1], [1, 1], [0, 0]]}
    resized = {"size": sides, "half_pixel_centers": True}
    blocks = {"block_shape": [2, 2]}
    none = [[0, 0], [0, 0]]
    saved = {f"reserve_space_{number}": values for number in (1, 2, 3)}
    empty = np.zeros(0, np.float32)
    normalized = {"scale": values, "offset": values, "mean": empty, "variance": empty}
    cut = {"begin": [0, 1, 0, 0], "end": [0] * 4, "strides": [1] * 4}
    masks = {"begin_mask": 13, "end_mask": 15}
    parts = {"partitions": tf.cast(rows % 2, tf.int32), "num_partitions": 2}

    def of_pool(name: str, options: Mapping[str, Any]) -> Op:
        def gradient(of_result: Any, x: Any) -> Any:
            result = raw_op(name, **options)(x)
            return raw_op(f"{name}Grad", **options)(x, result, of_result)

        return gradient

    ops: dict[str, tuple[Op, Tensors]] = {
        "AddN": (lambda x, y: tf.add_n([x, y]), [data, data]),
        "ConcatV2": (lambda x: tf.concat([x, x], -1), [half]),
        "DynamicStitch": (lambda x: tf.dynamic_stitch([tf.range(len(rows))], [x]), [flat]),
        "MaxPool3DGrad": (of_pool("MaxPool3D", cube), [eighth, volume]),
        "MaxPoolGrad": (of_pool("MaxPool", pool), [quarter, data]),
        "Pack": (lambda x: tf.stack([x, x], 1), [half]),
        "Split": (lambda x: tf.split(x, 2, -1)[0], [data]),
        "StridedSlice": (lambda x: x[:, 1:], [data]),
        # It writes only outputs that are read.
        "Unpack": (lambda x: tf.identity_n(tf.unstack(x, axis=1))[0], [data]),
    }
    if op_def_registry.get(SWISH) is not None:
        swish = functools.partial(op_def_library.apply_op, SWISH, name="swish")
        ops[SWISH] = (lambda x: swish(features=x), [data])
    kinds: list[tuple[str, Tensors, dict[str, Any]]] = [
        (_OF_ONE, [data], {}),
        (_OF_TWO, [data, data], {}),
        ("ArgMax", [data], {"dimension": -1}),
        ("AvgPool MaxPool", [data], pool),
        ("AvgPoolGrad", [quarter], {"orig_input_shape": shape, **pool}),
        ("AvgPool3D MaxPool3D", [volume], cube),
        ("AvgPool3DGrad", [eighth], {"orig_input_shape": volume.shape.as_list(), **cube}),
        ("BatchToSpaceND", [data], {**blocks, "crops": none}),
        ("BiasAdd", [data], {"bias": values}),
        ("BroadcastTo", [data[:, :1, :1]], {"shape": shape}),
        ("CheckNumerics", [data], {"message": "not finite"}),
        ("ClipByValue", [data], {"clip_value_min": 0.2, "clip_value_max": 0.8}),
        ("DepthToSpace SpaceToDepth", [data], {"block_size": 2}),
        ("DynamicPartition", [flat], parts),
        ("FusedBatchNormV3", [data], {**normalized, "is_training": True}),
        ("FusedBatchNormGradV3", [data, data], {"scale": values, **saved}),
        ("GatherNd", [table], {"indices": rows[:, None]}),
        ("GatherV2", [table], {"indices": rows, "axis": 0}),
        ("Max Mean Min Prod Sum", [data], {"axis": [1, 2]}),
        ("MirrorPad MirrorPadGrad", [data], {**border, "mode": "REFLECT"}),
        ("Pad", [data], border),
        ("ResizeBilinear ResizeNearestNeighbor", [quarter], resized),
        ("ResizeNearestNeighborGrad", [data], {"size": half_sides}),
        ("ReverseSequence", [data], {"seq_lengths": [sides[0] - 1] * BATCH, "seq_dim": 1}),
        ("ReverseV2", [data], {"axis": [1]}),
        ("ScatterNd", [flat], {"indices": rows[:, None], "shape": table.shape.as_list()}),
        ("SelectV2", [data, data], {"condition": data > 0.5}),
        ("Slice", [data], {"begin": [0, 1, 0, 0], "size": [shape[0], sides[0] - 1, *shape[2:]]}),
        ("SpaceToBatchND", [data], {**blocks, "paddings": none}),
        ("StridedSliceGrad", [data[:, 1:]], {"shape": shape, **cut, **masks}),
        ("Tile", [half], {"multiples": [2, 1, 1, 1]}),
        ("TopKV2", [data], {"k": 4}),
        ("Transpose", [data], {"perm": [0, 2, 1, 3]}),
    ]
    for names, tensors, attributes in kinds:
        for name in names.split():
            ops[name] = (raw_op(name, **attributes), tensors)
    for name in ("AddV2", "Mul", "Sub"):
        ops[f"{name}{BROADCAST}"] = (raw_op(name, y=values), [data])
    return ops


#: Gradients that are measured together with the op from which oneDNN computes them.
MEASURED_WITH = {op: forward for op, (forward, _) in PAIRED.items()}


_KERNELS = """ArgMin=ArgMax BatchToSpace=BatchToSpaceND BiasAddV1=BiasAdd Ceil=Floor Concat=ConcatV2
    Equal=Greater GreaterEqual=Greater Less=Greater LessEqual=Greater NotEqual=Greater
    Fill=ZerosLike FusedBatchNormGradV2=FusedBatchNormGradV3 FusedBatchNormV2=FusedBatchNormV3
    Gather=GatherV2 Inv=Reciprocal IsInf=IsFinite IsNan=IsFinite MaxPoolGradV2=MaxPoolGrad
    MaxPoolV2=MaxPool OnesLike=ZerosLike PadV2=Pad Reverse=ReverseV2 Round=Floor Select=SelectV2
    SpaceToBatch=SpaceToBatchND SplitV=Split TensorListConcat=ConcatV2
    TensorListConcatV2=ConcatV2 TensorListFromTensor=Unpack TensorListStack=Pack TopK=TopKV2"""
#: Ops that run the kernel of another op, or one that differs only in its comparison or value.
SAME_KERNEL = {
    **dict(pair.split("=") for pair in _KERNELS.split()),
    f"Add{BROADCAST}": f"AddV2{BROADCAST}",
}


def data_of(shape: Sequence[int]) -> Any:
    """Makes the tensors that the ops are measured on."""
    return tf.constant(np.random.default_rng(0).uniform(0.1, 0.9, shape).astype(np.float32))
