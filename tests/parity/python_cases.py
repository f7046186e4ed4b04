"""The graphs of TensorFlow's Python auto_mixed_precision_test.py, built for version-1 control flow, as the original is.

Every graph has a node ``init`` that initialises its variables; weights come from a seeded generator, so that a graph
and its rewritten form compute from the same values.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import function
from tensorflow.python.ops import control_flow_util, while_loop

v1 = tf.compat.v1
GraphDef = v1.GraphDef


@dataclasses.dataclass(frozen=True)
class PythonCase:
    """One graph of the original's Python tests.

    Attributes:
        name: the name of the original test, without ``test_``.
        build: makes the graph and returns what is fetched.
        f16: nodes that the original demands in 16 bits.
        casts: the numbers of new casts to 16 bits and to float32 that the original demands, if it does.
        tolerance: for float16, relative to the largest value of a fetch; eight times as much for bfloat16.
        outliers: the share of elements that may be further away: where max pooling hands a gradient to the largest of
            several nearly equal inputs, rounding chooses another one.
    """

    name: str
    build: Callable[[], list[tf.Tensor]]
    f16: tuple[str, ...]
    casts: tuple[int, int] | None = None
    tolerance: float = 1e-3
    outliers: float = 0.0

    def graph_def(self) -> tuple[GraphDef, tuple[str, ...]]:
        """The graph and the names of its fetches."""
        with tf.Graph().as_default() as graph, version_1_control_flow():
            _weights.restart()
            outputs = self.build()
            fetch = tuple(tf.identity(x, name=f"fetched_{i}").op.name for i, x in enumerate(outputs))
            v1.group(v1.global_variables_initializer(), name="init")
        return graph.as_graph_def(), fetch


@contextlib.contextmanager
def version_1_control_flow() -> Iterator[None]:
    """Loops come as Enter, Merge, Switch …"""
    before = control_flow_util.ENABLE_CONTROL_FLOW_V2
    control_flow_util.ENABLE_CONTROL_FLOW_V2 = False
    try:
        yield
    finally:
        control_flow_util.ENABLE_CONTROL_FLOW_V2 = before


class _Weights:
    def restart(self) -> None:
        self._random = np.random.default_rng(0)

    def normal(self, shape: list[int]) -> np.ndarray:
        return np.clip(self._random.normal(size=shape), -2, 2).astype(np.float32)

    def glorot(self, shape: list[int]) -> np.ndarray:
        field = int(np.prod(shape[:-2])) if len(shape) > 1 else 1
        fan_in, fan_out = (field * shape[-2], field * shape[-1]) if len(shape) > 1 else (shape[0], shape[0])
        limit = (6 / (fan_in + fan_out)) ** 0.5
        return self._random.uniform(-limit, limit, shape).astype(np.float32)


_weights = _Weights()


def _input(shape: list[int]) -> tf.Tensor:
    return _variable(_weights.normal(shape))


def _weight(shape: list[int]) -> tf.Tensor:
    return _variable(_weights.glorot(shape))


def _variable(value: np.ndarray) -> tf.Tensor:
    with tf.control_dependencies(None):  # the initialiser belongs outside the loop in which the variable is made
        return v1.Variable(value, use_resource=True, dtype=tf.float32)


def _conv(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
    return tf.nn.convolution(x, w, padding="SAME") if x.shape.rank != 4 else tf.nn.conv2d(x, w, 1, "SAME")


def _batch_norm(x: tf.Tensor) -> tf.Tensor:
    y, _, _ = v1.nn.fused_batch_norm(x, _weight([6]), _weight([6]), is_training=True)
    return tf.identity(y)


def _conv_bn(x: tf.Tensor) -> tf.Tensor:
    return _batch_norm(_conv(tf.reshape(x, [-1, 8, 8, 1]), _weight([3, 3, 1, 6])))


def _conv3d_bn(x: tf.Tensor) -> tf.Tensor:
    x = _conv(tf.reshape(x, [-1, 8, 8, 8, 1]), _weight([3, 3, 3, 1, 6]))
    return _batch_norm(tf.reshape(x, [-1, 8, 8, 6]))


def _matmul_relu(x: tf.Tensor) -> tf.Tensor:
    return tf.nn.relu(tf.matmul(tf.reshape(x, [8, 8]), _weight([8, 8])))


def _conv_pool(x: tf.Tensor) -> tf.Tensor:
    x = tf.reshape(x, [-1, 8, 8, 1])
    for channels, name in (([1, 6], "1"), ([6, 4], "2")):
        bias = tf.constant(0.1, shape=channels[1:], name=f"bias{name}")
        x = tf.nn.max_pool2d(tf.nn.relu(tf.nn.bias_add(_conv(x, _weight([3, 3, *channels])), bias)), 2, 2, "SAME")
    return x


def _gradients(y: tf.Tensor, xs: list[tf.Tensor]) -> list[tf.Tensor]:
    return [g for g in v1.gradients(y, xs) if g is not None]


def _loop(x: tf.Tensor, body: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
    return while_loop.while_loop(lambda i, _: i < 4, lambda i, x: (i + 1, body(x)), [tf.constant(0), x])[1]


def conv_bn() -> list[tf.Tensor]:
    return [_conv_bn(_conv_bn(_input([2, 8, 8, 1])))]


def conv3d_bn() -> list[tf.Tensor]:
    return [_conv3d_bn(_conv3d_bn(_input([2, 8, 8, 8, 1])))]


def conv3d() -> list[tf.Tensor]:
    x, f = _input([2, 8, 8, 8, 1]), _weight([3, 3, 3, 1, 6])
    y = tf.identity(tf.nn.conv3d(x, f, [1] * 5, "SAME"))
    return [y, *_gradients(y, [x, f])]


def conv_bn_dropout() -> list[tf.Tensor]:
    x = _input([2, 8, 8, 1])
    y = tf.nn.dropout(_conv_bn(x), rate=0.5, seed=1)
    y = tf.identity(_conv_bn(tf.add(y, 1, name="addition")))
    return [y, *_gradients(y, [x])]


def conv_pool() -> list[tf.Tensor]:
    return [_conv_pool(_input([2, 8, 8, 1]))]


def depthwise_conv2d() -> list[tf.Tensor]:
    x, f = _input([2, 8, 8, 1]), _weight([3, 3, 1, 4])
    y = tf.identity(tf.nn.depthwise_conv2d(x, f, [1, 1, 1, 1], "SAME"))
    return [y, *_gradients(y, [x, f])]


def simple_loop() -> list[tf.Tensor]:
    x = _input([8, 8])
    y = _loop(x, _matmul_relu)
    return [y, *_gradients(y, [x])]


def loop_with_vars_intertwined() -> list[tf.Tensor]:
    x = _input([8, 8])
    start = [tf.constant(0), tf.constant(0), tf.ones(tf.shape(x)), tf.identity(x)]
    _, _, k, m = while_loop.while_loop(
        lambda i, j, x, y: j < 4, lambda i, j, x, y: (j + 1, i + 1, _matmul_relu(y), _matmul_relu(x)), start
    )
    return [k, m, *_gradients(k, [x])]


def multi_paths() -> list[tf.Tensor]:
    x = _input([2, 8, 8, 3])
    y = tf.identity(tf.concat([_conv_pool(part) for part in tf.split(x, 3, axis=3)], axis=3))
    return [y, *_gradients(y, [x])]


def multi_paths_2() -> list[tf.Tensor]:
    x = _input([8, 8])
    y = _matmul_relu(x) + _matmul_relu(x) + x
    return [y, *_gradients(y, [x])]


def recurrent_lstm() -> list[tf.Tensor]:
    c, h = _input([8, 4]), _input([8, 4])
    inputs = v1.TensorArray(tf.float32, 4)
    for i in range(4):
        inputs = inputs.write(i, tf.constant(0.1, shape=[8, 4]))

    def body(i, c, h, inputs):
        bias = tf.constant(0.1, shape=[4])
        gates = tf.split(tf.matmul(tf.concat([inputs.read(i), h], 1), _weight([8, 16])), 4, 1)
        update, forget, output = (tf.sigmoid(tf.nn.bias_add(gate, bias)) for gate in gates[:3])
        c = forget * c + update * tf.tanh(tf.nn.bias_add(gates[3], bias))
        return i + 1, c, output * tf.tanh(c), inputs

    start = [tf.constant(0), tf.identity(c), tf.identity(h), inputs]
    _, _, last, _ = while_loop.while_loop(lambda i, *_: i < 4, body, start)
    return [last, *_gradients(last, [c, h])]


def noninlined_funcdef() -> list[tf.Tensor]:
    shape = {"shape_func": lambda op: [op.inputs[0].shape], "noinline": True}

    @function.Defun(tf.float32, tf.float32, func_name="swish_grad", **shape)
    def swish_grad(x, grad):
        s = tf.sigmoid(x)
        return grad * (s * (1.0 + x * (1.0 - s)))

    @function.Defun(tf.float32, func_name="swish", grad_func=swish_grad, **shape)
    def swish(x):
        return x * tf.sigmoid(x)

    x = _input([8, 8])
    y = swish(_matmul_relu(x))
    return [y, *_gradients(y, [x])]


def ingraph_train_loop() -> list[tf.Tensor]:
    """Adam's update inside a loop, on reference variables: Enter passes the reference itself into the loop."""
    steps, batch, channels, classes = 10, 64, 32, 100
    random = np.random.default_rng(1234)
    data = tf.constant(random.normal(size=(steps, batch, channels)).astype(np.float32), name="data")
    labels = tf.constant(random.integers(classes, size=(steps, batch)), name="labels")

    def reference(name: str, value: np.ndarray) -> tf.Tensor:
        with tf.control_dependencies(None):
            return v1.Variable(value, use_resource=False, name=name)

    def body(_, i):
        kernel, bias = (
            reference("kernel", _weights.glorot([channels, classes])),
            reference("bias", np.zeros(classes, "f")),
        )
        logits = tf.nn.bias_add(tf.matmul(data[i], kernel, name="dense"), bias)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels[i], logits))
        with tf.control_dependencies([v1.train.AdamOptimizer().minimize(loss, var_list=[kernel, bias])]):
            return tf.identity(loss), i + 1

    loss, _ = while_loop.while_loop(lambda _, i: i < steps, body, [tf.constant(0.0), tf.constant(0)])
    return [loss]


def _paths(names: tuple[str, ...], count: int) -> tuple[str, ...]:
    return tuple(f"{name}{f'_{i}' if i else ''}" for i in range(count) for name in names)


_LSTM = ("concat", "MatMul", "split", "Sigmoid", "Sigmoid_1", "Sigmoid_2", "Tanh", "Tanh_1")

CASES = (
    PythonCase("conv_bn", conv_bn, ("Conv2D", "FusedBatchNormV3", "Conv2D_1"), casts=(3, 1), tolerance=2e-3),
    PythonCase(
        "conv3d_bn", conv3d_bn, ("convolution", "FusedBatchNormV3", "convolution_1"), casts=(3, 1), tolerance=1e-2
    ),
    PythonCase(
        "conv3d",
        conv3d,
        ("Conv3D", "gradients/Conv3D_grad/Conv3DBackpropInputV2", "gradients/Conv3D_grad/Conv3DBackpropFilterV2"),
        tolerance=4e-3,  # Eigen, which computes it where oneDNN does not, adds the 27 products in bfloat16
    ),
    PythonCase(
        "conv_bn_dropout",
        conv_bn_dropout,
        ("Conv2D", "FusedBatchNormV3", "addition", "Conv2D_1"),
        tolerance=1e-2,
    ),
    # The original's text says 4; TensorFlow 2.21 makes 5 of it: the input, two kernels, two biases.
    PythonCase("conv_pool", conv_pool, ("Conv2D", "Relu", "MaxPool2d", "Conv2D_1"), casts=(5, 1)),
    PythonCase(
        "depthwise_conv2d",
        depthwise_conv2d,
        (
            "depthwise",
            "gradients/depthwise_grad/DepthwiseConv2dNativeBackpropInput",
            "gradients/depthwise_grad/DepthwiseConv2dNativeBackpropFilter",
        ),
        tolerance=2e-3,
    ),
    PythonCase("simple_loop", simple_loop, ("while/MatMul", "while/Relu"), tolerance=1e-2),
    PythonCase(
        "loop_with_vars_intertwined",
        loop_with_vars_intertwined,
        ("while/MatMul", "while/Relu", "while/MatMul_1", "while/Relu_1"),
        tolerance=1e-2,
    ),
    PythonCase(
        "multi_paths",
        multi_paths,
        ("split", *_paths(("Conv2D", "Relu", "MaxPool2d"), 6), "concat"),
        tolerance=2e-3,
        outliers=0.05,
    ),
    PythonCase("multi_paths_2", multi_paths_2, ("MatMul", "Relu", "MatMul_1", "Relu_1"), tolerance=2e-3),
    PythonCase("recurrent_lstm", recurrent_lstm, tuple(f"while/{name}" for name in _LSTM), tolerance=4e-3),
    PythonCase("noninlined_funcdef", noninlined_funcdef, ("MatMul",), tolerance=2e-3),
    PythonCase(
        "ingraph_train_loop",
        ingraph_train_loop,
        ("while/dense", "while/gradients/while/dense_grad/MatMul_1"),
        tolerance=2e-3,
    ),
)


@dataclasses.dataclass(frozen=True)
class LoopCase:
    """Input, body and output of a loop as letters: w allow, g infer, c clear, b deny; a capital becomes 16-bit."""

    before: str
    body: str
    after: str

    def build(self) -> list[tf.Tensor]:
        x = _chain(self.before, "input", _input([8, 8]))
        x = _loop(x, lambda x: _chain(self.body, "body", x))
        return [_chain(self.after, "output", x)]

    def letters(self, is_f16: Callable[[str], bool]) -> LoopCase:
        """The same case with the capitals that ``is_f16``, asked by node name, says."""
        return LoopCase(
            *(
                "".join(c.upper() if is_f16(f"{section}_{i}") else c.lower() for i, c in enumerate(colors))
                for section, colors in (("input", self.before), ("while/body", self.body), ("output", self.after))
            )
        )


def _chain(colors: str, section: str, x: tf.Tensor) -> tf.Tensor:
    for i, color in enumerate(colors.lower()):
        name = f"{section}_{i}"
        x = {
            "w": lambda x=x, name=name: tf.matmul(x, _weight([8, 8]), name=name),
            "g": lambda x=x, name=name: tf.add(x, 0.1, name=name),
            "c": lambda x=x, name=name: tf.nn.relu(x, name=name),
            "b": lambda x=x, name=name: tf.sqrt(tf.pow(x, 2.0), name=name),
        }[color]()
    return x


LOOPS = (
    LoopCase("W", "C", "C"),
    LoopCase("C", "C", "W"),
    LoopCase("W", "G", "W"),
    LoopCase("W", "gbg", "W"),
    LoopCase("b", "gWC", "c"),
    LoopCase("b", "CWCG", "C"),
    LoopCase("C", "GWCG", "C"),
    LoopCase("C", "CgbgWC", "g"),
)
