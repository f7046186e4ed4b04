"""Products and what TensorFlow's remapper fuses with them, one small graph for each kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from tests import oracle

DEVICE = "/job:localhost/replica:0/task:0/device:CPU:0"  # in full, as the remapper asks for it


def made(build: Callable[[], tf.Tensor]) -> graph_pb2.GraphDef:
    """The graph of what is built, read by ``fetch``."""
    with tf.Graph().as_default() as graph, tf.device(DEVICE):
        tf.identity(build(), name="fetch")
    return graph.as_graph_def(add_shapes=True)


def remapped(graph: graph_pb2.GraphDef) -> graph_pb2.GraphDef:
    """The graph after TensorFlow's remapper."""
    return oracle.optimized(graph, ("remap",), ["fetch"])


def dense(
    activation: Callable[[tf.Tensor], tf.Tensor] = tf.identity, *, name: str = "dense", transposed: bool = False
) -> tf.Tensor:
    """A matrix product with its bias and its activation."""
    matrices = _given(*((32, 8) if transposed else (8, 32))), _given(*((64, 32) if transposed else (32, 64)))
    product = tf.matmul(*matrices, transpose_a=transposed, transpose_b=transposed, name=f"{name}/MatMul")
    return activation(tf.nn.bias_add(product, _given(64), name=f"{name}/BiasAdd"))


def _given(*shape: int) -> tf.Tensor:
    return tf.compat.v1.placeholder(tf.float32, shape)


def _normalized(value: tf.Tensor) -> tf.Tensor:
    variance = tf.square(_given(16)) + 0.5
    return tf.compat.v1.nn.fused_batch_norm(
        value, _given(16), _given(16), _given(16), variance, epsilon=0.01, is_training=False
    )[0]


def _biased(value: tf.Tensor) -> tf.Tensor:
    return tf.nn.bias_add(value, _given(16))


def _conv2d(strides: int = 1, padding: object = "SAME", dilations: int = 1) -> tf.Tensor:
    return tf.nn.conv2d(_given(2, 8, 8, 16), _given(3, 3, 16, 16), strides, padding, dilations=dilations)


def _conv3d() -> tf.Tensor:
    return tf.nn.conv3d(_given(2, 4, 8, 8, 2), _given(3, 3, 3, 2, 16), [1, 2, 2, 2, 1], "SAME")


def _depthwise() -> tf.Tensor:
    return tf.nn.depthwise_conv2d(_given(2, 8, 8, 16), _given(3, 3, 16, 1), [1, 1, 1, 1], "VALID")


def _leaky(value: tf.Tensor) -> tf.Tensor:
    return tf.nn.leaky_relu(value, 0.3)


def _summed(value: tf.Tensor) -> tf.Tensor:
    return tf.nn.relu(value + _given(*value.shape))


_ACTIVATIONS = (tf.identity, tf.nn.relu, tf.nn.relu6, tf.nn.elu, _leaky)
_EXPLICIT = [[0, 0], [2, 1], [1, 2], [0, 0]]

#: A graph for each kind, by its name.
KINDS: Mapping[str, Callable[[], tf.Tensor]] = {
    **{f"MatMul-{act.__name__}": lambda act=act: dense(act) for act in (*_ACTIVATIONS, tf.sigmoid, tf.tanh)},
    "MatMul-transposed": lambda: dense(tf.nn.relu, transposed=True),
    **{f"Conv2D-{act.__name__}": lambda act=act: act(_biased(_conv2d())) for act in _ACTIVATIONS},
    **{f"Conv2D-norm-{act.__name__}": lambda act=act: act(_normalized(_conv2d())) for act in _ACTIVATIONS},
    "Conv2D-strides": lambda: tf.nn.relu(_biased(_conv2d(2, "VALID"))),
    "Conv2D-explicit": lambda: tf.nn.relu(_biased(_conv2d(1, _EXPLICIT))),
    "Conv2D-dilated": lambda: tf.nn.relu(_biased(_conv2d(1, "SAME", 2))),
    "Conv2D-sum": lambda: _summed(_biased(_conv2d())),
    **{f"Conv3D-{act.__name__}": lambda act=act: act(_biased(_conv3d())) for act in _ACTIVATIONS},
    "Conv3D-sum": lambda: _summed(_biased(_conv3d())),
    **{f"Depthwise-{act.__name__}": lambda act=act: act(_biased(_depthwise())) for act in _ACTIVATIONS},
    "BatchMatMul-scaled": lambda: (
        tf.matmul(_given(2, 4, 8, 32), _given(2, 4, 6, 32), transpose_b=True) * 0.25 + _given(2, 1, 8, 6)
    ),
}
