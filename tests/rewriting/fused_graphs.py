"""Products and what TensorFlow's remapper fuses with them, one small graph for each kind, and how
it is split again.

As a program, since oneDNN is chosen once for a process, it prints JSON: for each kind and precision
the fused node before, the products after, how far off the result is (of the largest value of
float32's), also after the remapper has run once more, and whether a second rewrite changes
anything.
"""

from __future__ import annotations

import json
import sys

import numpy as np
import tensorflow as tf

import amp_tf
from amp_tf.graph.attributes import ROUNDED_ATTR
from amp_tf.oplists.fusions import SPLIT_PRODUCTS
from amp_tf.oplists.hardware import Hardware
from tests import oracle
from tests.rewriting.rewritten import GraphShapes, feeds, run

DEVICE = "/job:localhost/replica:0/task:0/device:CPU:0"  # in full, as the remapper asks for it


def made(build):
    """The graph of what is built, read by ``fetch``."""
    with tf.Graph().as_default() as graph, tf.device(DEVICE):
        tf.identity(build(), name="fetch")
    return graph.as_graph_def(add_shapes=True)


def remapped(graph):
    """The graph after TensorFlow's remapper."""
    return oracle.optimized(graph, ("remap",), ["fetch"])


def dense(activation=tf.identity, *, name="dense", is_turned=False):
    """A matrix product with its bias and its activation."""
    a = _given(*((32, 8) if is_turned else (8, 32)))
    b = _given(*((64, 32) if is_turned else (32, 64)))
    product = tf.matmul(a, b, transpose_a=is_turned, transpose_b=is_turned, name=f"{name}/MatMul")
    return activation(tf.nn.bias_add(product, _given(64), name=f"{name}/BiasAdd"))


def _given(*shape):
    return tf.compat.v1.placeholder(tf.float32, shape)


def _normalized(value):
    variance = tf.square(_given(16)) + 0.5
    scale = _given(16)
    offset = _given(16)
    mean = _given(16)
    normalized, *_ = tf.compat.v1.nn.fused_batch_norm(
        value, scale, offset, mean, variance, epsilon=0.01, is_training=False
    )
    return normalized


def _biased(value):
    return tf.nn.bias_add(value, _given(16))


def _conv2d(strides=1, padding="SAME", dilations=1):
    images = _given(2, 8, 8, 16)
    filters = _given(3, 3, 16, 16)
    return tf.nn.conv2d(images, filters, strides, padding, dilations=dilations)


def _conv3d():
    images = _given(2, 4, 8, 8, 2)
    filters = _given(3, 3, 3, 2, 16)
    return tf.nn.conv3d(images, filters, [1, 2, 2, 2, 1], "SAME")


def _depthwise():
    images = _given(2, 8, 8, 16)
    filters = _given(3, 3, 16, 1)
    return tf.nn.depthwise_conv2d(images, filters, [1, 1, 1, 1], "VALID")


def _leaky(value):
    return tf.nn.leaky_relu(value, 0.3)


def _summed(value):
    return tf.nn.relu(value + _given(*value.shape))


_ACTIVATIONS = (tf.identity, tf.nn.relu, tf.nn.relu6, tf.nn.elu, _leaky)
_EXPLICIT = [[0, 0], [2, 1], [1, 2], [0, 0]]

#: A graph for each kind, by its name.
KINDS = {
    **{
        f"MatMul-{act.__name__}": lambda act=act: dense(act)
        for act in (*_ACTIVATIONS, tf.sigmoid, tf.tanh)
    },
    "MatMul-transposed": lambda: dense(tf.nn.relu, is_turned=True),
    **{f"Conv2D-{act.__name__}": lambda act=act: act(_biased(_conv2d())) for act in _ACTIVATIONS},
    **{
        f"Conv2D-norm-{act.__name__}": lambda act=act: act(_normalized(_conv2d()))
        for act in _ACTIVATIONS
    },
    "Conv2D-strides": lambda: tf.nn.relu(_biased(_conv2d(2, "VALID"))),
    "Conv2D-explicit": lambda: tf.nn.relu(_biased(_conv2d(1, _EXPLICIT))),
    "Conv2D-dilated": lambda: tf.nn.relu(_biased(_conv2d(1, "SAME", 2))),
    "Conv2D-sum": lambda: _summed(_biased(_conv2d())),
    **{f"Conv3D-{act.__name__}": lambda act=act: act(_biased(_conv3d())) for act in _ACTIVATIONS},
    "Conv3D-sum": lambda: _summed(_biased(_conv3d())),
    **{
        f"Depthwise-{act.__name__}": lambda act=act: act(_biased(_depthwise()))
        for act in _ACTIVATIONS
    },
    "BatchMatMul-scaled": lambda: (
        tf.matmul(_given(2, 4, 8, 32), _given(2, 4, 6, 32), transpose_b=True) * 0.25
        + _given(2, 1, 8, 6)
    ),
}

PLAIN_CPU = Hardware()  # neither bf16 nor avx512
NUMBERS = {"float16": 19, "bfloat16": 14}
PRODUCTS = {step.op for step in SPLIT_PRODUCTS.values()}


def judge(kind):
    """Returns what becomes of a kind in each precision, or nothing where this TensorFlow does not
    fuse it.
    """
    given = made(KINDS[kind])
    fused = remapped(given)
    whole = []
    for node in fused.node:
        if node.op in SPLIT_PRODUCTS:
            whole.append(node)
    if not whole:
        return None
    shapes = GraphShapes(given)  # the hooks know them too
    values = feeds(given)
    exact = run(given, values)
    largest = np.abs(exact).max()

    def off(result):
        return float(np.abs(result - exact).max() / largest)

    def judged_in(precision):
        config = amp_tf.AmpConfig(precision=precision)

        def rewritten(graph):
            return amp_tf.rewrite(
                graph, config, hardware=PLAIN_CPU, preserve=["fetch"], shapes=shapes
            )

        split = rewritten(fused).graph
        left = []
        types = []
        for node in split.node:
            if node.op in SPLIT_PRODUCTS:
                left.append(node.name)
            elif node.op in PRODUCTS:
                types.append(_is_16_bit(node, precision))
        found = run(split, values)
        iterated = run(remapped(split), values)
        first = whole[0]
        steps = [name.decode() for name in first.attr["fused_ops"].list.s]
        names = [node.name for node in split.node]
        unfused = run(rewritten(given).graph, values)
        return {
            "fused": [first.op, *steps],
            "left": left,
            "types": types,
            "kept": first.name in names,
            "again": rewritten(split).changed,
            "as unfused": bool((found == unfused).all()),
            "split": off(found),
            "iterated": off(iterated),
        }

    return {precision: judged_in(precision) for precision in NUMBERS}


def _is_16_bit(product, precision):
    """Tells whether a product has a float32 kernel between roundings to a type."""
    number = NUMBERS[precision]
    return ROUNDED_ATTR in product.attr and product.attr[ROUNDED_ATTR].type == number


if __name__ == "__main__":
    print(json.dumps({kind: judge(kind) for kind in KINDS}))
    sys.stdout.flush()
