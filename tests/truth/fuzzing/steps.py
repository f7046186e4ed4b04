"""The steps of random programs: data whose repr can be run again.

All values are of [ROWS, WIDTH], or 1 in place of either, which broadcasts. So any step may read any
value, and a step may be cut out of a program and what it read put in its place.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping
from typing import ClassVar

import tensorflow as tf

ROWS = 8
WIDTH = 16
IMAGES = (2, 4, 4, 4)  # the same values as images with channels
GROUPS = (4, 2, 16)  # and as groups of rows
Block = tuple["Step", ...]

ELEMENTWISE = {
    **{
        name: getattr(tf.math, name)
        for name in ("abs", "negative", "square", "sin", "cos", "tanh", "sigmoid", "erf")
    },
    **{
        name: getattr(tf.math, name)
        for name in ("atan", "sign", "round", "softplus", "softsign", "expm1")
    },
    **{
        name: getattr(tf.nn, name)
        for name in ("relu", "relu6", "elu", "selu", "silu", "gelu", "leaky_relu")
    },
    "stop_gradient": tf.stop_gradient,
    "exp of a bounded value": lambda x: tf.exp(tf.clip_by_value(x, -4.0, 4.0)),
    "log1p of the absolute": lambda x: tf.math.log1p(tf.abs(x)),
    "log": lambda x: tf.math.log(tf.abs(x) + 1e-3),
    "sqrt": lambda x: tf.sqrt(tf.square(x) + 1e-3),
    "rsqrt": lambda x: tf.math.rsqrt(tf.square(x) + 1.0),
    "reciprocal": lambda x: tf.math.reciprocal(1.0 + tf.square(x)),
    "one minus": lambda x: 1.0 - x,
    "clip": lambda x: tf.clip_by_value(x, -1.0, 1.0),
}
BINARY = {
    "add": tf.add,
    "residual": lambda x, y: x + 0.1 * y,
    "subtract": tf.subtract,
    "multiply": tf.multiply,
    "gate": lambda x, y: x * tf.sigmoid(y),
    "divide": lambda x, y: x / (1.0 + tf.abs(y)),
    "maximum": tf.maximum,
    "minimum": tf.minimum,
    "squared_difference": tf.math.squared_difference,
    "mix": lambda x, y: 0.9 * x + 0.1 * y,
    "add_n": lambda x, y: tf.add_n([full(x), full(y), full(x)]),
    "select": lambda x, y: tf.where(x > y, x, 0.5 * y),
    "interleave": lambda x, y: tf.reshape(tf.stack([full(x), full(y)], 1), (2 * ROWS, WIDTH))[
        ROWS // 2 : -ROWS // 2
    ],
    "join": lambda x, y: tf.concat([full(x)[:, ::2], full(y)[:, 1::2]], axis=1),
}
REDUCTIONS = {
    "mean": tf.reduce_mean,
    "sum": tf.reduce_sum,
    "max": tf.reduce_max,
    "min": tf.reduce_min,
    "logsumexp": tf.reduce_logsumexp,
    "std": lambda x, axis, keepdims: tf.sqrt(tf.math.reduce_variance(x, axis, keepdims) + 1e-3),
    "norm": lambda x, axis, keepdims: tf.sqrt(tf.reduce_sum(tf.square(x), axis, keepdims) + 1e-3),
}
MOVES = {
    "turn": lambda x: tf.reshape(
        tf.transpose(tf.reshape(x, (ROWS, 4, 4)), (0, 2, 1)), (ROWS, WIDTH)
    ),
    "flip": lambda x: tf.reverse(x, [0]),
    "shift": lambda x: tf.pad(x[:, 1:], [[0, 0], [0, 1]]),
    "gather": lambda x: tf.gather(x, [3, 3, 0, 1, 7, 2, 5, 4]),
    "split": lambda x: tf.concat(tf.split(x, 2, axis=1)[::-1], axis=1),
    "pool": lambda x: flat(tf.nn.avg_pool2d(images(x), 3, 1, "SAME")),
    "max pool": lambda x: flat(tf.nn.max_pool2d(images(x), 2, 1, "SAME")),
}


def _layer_norm(x):
    mean, variance = tf.nn.moments(x, axes=[1], keepdims=True)
    return tf.nn.batch_normalization(x, mean, variance, 0.1, 1.5, 1e-3)


def _batch_norm(x):
    return flat(tf.compat.v1.nn.fused_batch_norm(images(x), [1.5] * 4, [0.1] * 4, epsilon=1e-3)[0])


NORMALIZATIONS = {
    "softmax": tf.nn.softmax,
    "log_softmax": tf.nn.log_softmax,
    "l2_normalize": lambda x: tf.math.l2_normalize(x, axis=1, epsilon=1e-6),
    "layer norm": _layer_norm,
    "batch norm": _batch_norm,
    "rms norm": lambda x: (
        x * tf.math.rsqrt(tf.reduce_mean(tf.square(x), axis=1, keepdims=True) + 1e-3)
    ),
    "center": lambda x: x - tf.reduce_mean(x, axis=1, keepdims=True),
}
PRODUCTS = {
    "rows": lambda x, y: tf.concat([tf.matmul(x, y, transpose_b=True)] * 2, axis=1),
    "batch": lambda x, y: tf.reshape(
        tf.matmul(tf.reshape(x, (ROWS, 4, 4)), tf.reshape(y, (ROWS, 4, 4))), (ROWS, WIDTH)
    ),
    "einsum": lambda x, y: tf.reshape(
        tf.einsum("bij,bkj->bik", tf.reshape(x, (ROWS, 4, 4)), tf.reshape(y, (ROWS, 4, 4))),
        (ROWS, WIDTH),
    ),
    "attention": lambda x, y: tf.matmul(tf.nn.softmax(0.25 * tf.matmul(x, y, transpose_b=True)), y),
}
WEIGHTED = {  # what a weight is multiplied with, and the weight's shape
    "dense": (lambda x, w: tf.matmul(x, w), (WIDTH, WIDTH)),
    "transposed": (lambda x, w: tf.matmul(x, w, transpose_b=True), (WIDTH, WIDTH)),
    "einsum": (
        lambda x, w: tf.reshape(tf.einsum("abc,cd->abd", tf.reshape(x, GROUPS), w), (ROWS, WIDTH)),
        (WIDTH, WIDTH),
    ),
    "convolution": (lambda x, w: flat(tf.nn.conv2d(images(x), w, 1, "SAME")), (3, 3, 4, 4)),
    "depthwise": (
        lambda x, w: flat(tf.nn.depthwise_conv2d(images(x), w, (1, 1, 1, 1), "SAME")),
        (3, 3, 4, 1),
    ),
}


def full(x):
    """A value of the whole shape."""
    return x if x.shape == (ROWS, WIDTH) else tf.broadcast_to(x, (ROWS, WIDTH))


def images(x):
    return tf.reshape(full(x), IMAGES)


def flat(x):
    return tf.reshape(x, (ROWS, WIDTH))


@dataclasses.dataclass(frozen=True)
class Place:
    """The surroundings of a step besides the values that it reads.

    Attributes:
        path: names the step among all steps of all programs of a graph.
        weights: the variables of the whole graph, by the paths of their steps.
        notes: what becomes an output of the program, by name.
    """

    path: str
    weights: Mapping[str, tf.Variable]
    notes: dict[str, tf.Tensor]


@dataclasses.dataclass(frozen=True)
class Step(abc.ABC):
    """One step; ``of`` numbers the values that it reads: the program's inputs, or a block's, and
    then one a step.
    """

    of: tuple[int, ...]

    @abc.abstractmethod
    def run(self, args, place):
        """The value that it adds."""

    def shapes(self):
        """The shapes of its variables."""
        return ()


def run_block(block, values, place):
    """Runs the steps on the values given; the last step's value, of the whole shape."""
    values = list(values)
    for index, step in enumerate(block):
        inner = dataclasses.replace(place, path=f"{place.path}/{index}")
        values.append(step.run([values[number] for number in step.of], inner))
    return full(values[-1])


@dataclasses.dataclass(frozen=True)
class Weighted(Step):
    """A product with a variable; a bias may be added."""

    kind: str
    has_bias: bool = False

    def run(self, args, place):
        multiply, _ = WEIGHTED[self.kind]
        result = multiply(full(args[0]), place.weights[f"{place.path}/0"])
        return tf.nn.bias_add(result, place.weights[f"{place.path}/1"]) if self.has_bias else result

    def shapes(self):
        shape = WEIGHTED[self.kind][1]
        return (shape, (WIDTH,)) if self.has_bias else (shape,)


@dataclasses.dataclass(frozen=True)
class _OfTable(Step):
    """A function of a table, of values of the whole shape but where it broadcasts."""

    kind: str
    table: ClassVar[Mapping[str, Callable[..., tf.Tensor]]]
    broadcasts: ClassVar[bool] = False

    def run(self, args, place):
        return self.table[self.kind](*(args if self.broadcasts else map(full, args)))


class Product(_OfTable):
    """A product of two values."""

    table = PRODUCTS


class Elementwise(_OfTable):
    table = ELEMENTWISE
    broadcasts = True


class Binary(_OfTable):
    table = BINARY
    broadcasts = True


class Normalize(_OfTable):
    table = NORMALIZATIONS


class Move(_OfTable):
    table = MOVES


@dataclasses.dataclass(frozen=True)
class Affine(Step):
    factor: float
    term: float = 0.0

    def run(self, args, place):
        scaled = args[0] * self.factor
        return scaled + self.term if self.term else scaled


@dataclasses.dataclass(frozen=True)
class Reduce(Step):
    kind: str
    axis: int

    def run(self, args, place):
        return REDUCTIONS[self.kind](full(args[0]), axis=self.axis, keepdims=True)


@dataclasses.dataclass(frozen=True)
class Loop(Step):
    """A state that starts as one value; the body reads it (0) and another value (1).

    A rate adds to the old state.
    """

    turns: int
    rate: float
    body: Block

    def run(self, args, place):
        def body(turn, state):
            new = run_block(self.body, (state, args[-1]), place)
            return turn + 1, state + self.rate * new if self.rate else new

        return tf.while_loop(lambda turn, _: turn < self.turns, body, (0, full(args[0])))[1]


@dataclasses.dataclass(frozen=True)
class Branch(Step):
    """Which block runs depends on a value; both read the same one (0)."""

    bound: float
    first: Block
    second: Block

    def run(self, args, place):
        def branch(name, block):
            return lambda: run_block(
                block, args, dataclasses.replace(place, path=f"{place.path}/{name}")
            )

        is_above = tf.reduce_mean(tf.stop_gradient(args[0])) > self.bound
        return tf.cond(is_above, branch("first", self.first), branch("second", self.second))


@dataclasses.dataclass(frozen=True)
class Store(Step):
    """Puts a mean over rows into a variable, which is a result of the program, and reads it
    again.
    """

    how: str

    def run(self, args, place):
        variable = place.weights[f"{place.path}/0"]
        mean = tf.reduce_mean(full(args[0]), axis=0)
        update = {
            "assign": lambda: variable.assign(mean),
            "add": lambda: variable.assign_add(0.01 * mean),
            "average": lambda: variable.assign(0.99 * variable + 0.01 * mean),
        }[self.how]()
        with tf.control_dependencies([update]):
            place.notes[f"state {place.path}"] = variable.read_value()
        return args[0] + place.notes[f"state {place.path}"]

    def shapes(self):
        return ((WIDTH,),)
