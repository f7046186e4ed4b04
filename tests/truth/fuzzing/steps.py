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


def _exp_of_bounded(x):
    bounded = tf.clip_by_value(x, -4.0, 4.0)
    return tf.exp(bounded)


def _log1p_of_absolute(x):
    size = tf.abs(x)
    return tf.math.log1p(size)


def _log(x):
    size = tf.abs(x)
    return tf.math.log(size + 1e-3)


def _sqrt(x):
    square = tf.square(x)
    return tf.sqrt(square + 1e-3)


def _rsqrt(x):
    square = tf.square(x)
    return tf.math.rsqrt(square + 1.0)


def _reciprocal(x):
    square = tf.square(x)
    return tf.math.reciprocal(1.0 + square)


def _one_minus(x):
    return 1.0 - x


def _clip(x):
    return tf.clip_by_value(x, -1.0, 1.0)


_OF_MATH = """abs negative square sin cos tanh sigmoid erf atan sign round softplus softsign
    expm1"""
_OF_NN = "relu relu6 elu selu silu gelu leaky_relu"
ELEMENTWISE = {
    **{name: getattr(tf.math, name) for name in _OF_MATH.split()},
    **{name: getattr(tf.nn, name) for name in _OF_NN.split()},
    "stop_gradient": tf.stop_gradient,
    "exp of a bounded value": _exp_of_bounded,
    "log1p of the absolute": _log1p_of_absolute,
    "log": _log,
    "sqrt": _sqrt,
    "rsqrt": _rsqrt,
    "reciprocal": _reciprocal,
    "one minus": _one_minus,
    "clip": _clip,
}


def _residual(x, y):
    step = 0.1 * y
    return x + step


def _gate(x, y):
    gate = tf.sigmoid(y)
    return x * gate


def _divide(x, y):
    divisor = 1.0 + tf.abs(y)
    return x / divisor


def _mix(x, y):
    return 0.9 * x + 0.1 * y


def _add_n(x, y):
    terms = [full(x), full(y), full(x)]
    return tf.add_n(terms)


def _select(x, y):
    is_larger = x > y
    return tf.where(is_larger, x, 0.5 * y)


def _interleave(x, y):
    pairs = tf.stack([full(x), full(y)], 1)
    rows = tf.reshape(pairs, (2 * ROWS, WIDTH))
    return rows[ROWS // 2 : -ROWS // 2]


def _join(x, y):
    even = full(x)[:, ::2]
    odd = full(y)[:, 1::2]
    return tf.concat([even, odd], axis=1)


BINARY = {
    "add": tf.add,
    "residual": _residual,
    "subtract": tf.subtract,
    "multiply": tf.multiply,
    "gate": _gate,
    "divide": _divide,
    "maximum": tf.maximum,
    "minimum": tf.minimum,
    "squared_difference": tf.math.squared_difference,
    "mix": _mix,
    "add_n": _add_n,
    "select": _select,
    "interleave": _interleave,
    "join": _join,
}


def _deviation(x, axis, keepdims):
    variance = tf.math.reduce_variance(x, axis, keepdims)
    return tf.sqrt(variance + 1e-3)


def _norm(x, axis, keepdims):
    squares = tf.square(x)
    total = tf.reduce_sum(squares, axis, keepdims)
    return tf.sqrt(total + 1e-3)


REDUCTIONS = {
    "mean": tf.reduce_mean,
    "sum": tf.reduce_sum,
    "max": tf.reduce_max,
    "min": tf.reduce_min,
    "logsumexp": tf.reduce_logsumexp,
    "std": _deviation,
    "norm": _norm,
}


def _turn(x):
    turned = tf.transpose(matrices(x), (0, 2, 1))
    return flat(turned)


def _flip(x):
    return tf.reverse(x, [0])


def _shift(x):
    rest = x[:, 1:]
    return tf.pad(rest, [[0, 0], [0, 1]])


def _gather(x):
    return tf.gather(x, [3, 3, 0, 1, 7, 2, 5, 4])


def _split(x):
    halves = tf.split(x, 2, axis=1)
    return tf.concat(halves[::-1], axis=1)


def _pool(x):
    pooled = tf.nn.avg_pool2d(images(x), 3, 1, "SAME")
    return flat(pooled)


def _max_pool(x):
    pooled = tf.nn.max_pool2d(images(x), 2, 1, "SAME")
    return flat(pooled)


MOVES = {
    "turn": _turn,
    "flip": _flip,
    "shift": _shift,
    "gather": _gather,
    "split": _split,
    "pool": _pool,
    "max pool": _max_pool,
}


def _layer_norm(x):
    mean, variance = tf.nn.moments(x, axes=[1], keepdims=True)
    return tf.nn.batch_normalization(x, mean, variance, 0.1, 1.5, 1e-3)


def _batch_norm(x):
    scale = [1.5] * 4
    offset = [0.1] * 4
    normed, *_ = tf.compat.v1.nn.fused_batch_norm(images(x), scale, offset, epsilon=1e-3)
    return flat(normed)


def _l2_normalize(x):
    return tf.math.l2_normalize(x, axis=1, epsilon=1e-6)


def _rms_norm(x):
    mean_square = tf.reduce_mean(tf.square(x), axis=1, keepdims=True)
    return x * tf.math.rsqrt(mean_square + 1e-3)


def _center(x):
    mean = tf.reduce_mean(x, axis=1, keepdims=True)
    return x - mean


NORMALIZATIONS = {
    "softmax": tf.nn.softmax,
    "log_softmax": tf.nn.log_softmax,
    "l2_normalize": _l2_normalize,
    "layer norm": _layer_norm,
    "batch norm": _batch_norm,
    "rms norm": _rms_norm,
    "center": _center,
}


def _product_of_rows(x, y):
    product = tf.matmul(x, y, transpose_b=True)
    return tf.concat([product] * 2, axis=1)


def _product_of_batches(x, y):
    product = tf.matmul(matrices(x), matrices(y))
    return flat(product)


def _product_by_einsum(x, y):
    product = tf.einsum("bij,bkj->bik", matrices(x), matrices(y))
    return flat(product)


def _attention(x, y):
    scores = 0.25 * tf.matmul(x, y, transpose_b=True)
    weights = tf.nn.softmax(scores)
    return tf.matmul(weights, y)


PRODUCTS = {
    "rows": _product_of_rows,
    "batch": _product_of_batches,
    "einsum": _product_by_einsum,
    "attention": _attention,
}


def _dense(x, w):
    return tf.matmul(x, w)


def _transposed(x, w):
    return tf.matmul(x, w, transpose_b=True)


def _dense_by_einsum(x, w):
    groups = tf.reshape(x, GROUPS)
    product = tf.einsum("abc,cd->abd", groups, w)
    return flat(product)


def _convolution(x, w):
    filtered = tf.nn.conv2d(images(x), w, 1, "SAME")
    return flat(filtered)


def _depthwise(x, w):
    filtered = tf.nn.depthwise_conv2d(images(x), w, (1, 1, 1, 1), "SAME")
    return flat(filtered)


WEIGHTED = {  # what a weight is multiplied with, and the weight's shape
    "dense": (_dense, (WIDTH, WIDTH)),
    "transposed": (_transposed, (WIDTH, WIDTH)),
    "einsum": (_dense_by_einsum, (WIDTH, WIDTH)),
    "convolution": (_convolution, (3, 3, 4, 4)),
    "depthwise": (_depthwise, (3, 3, 4, 1)),
}


def full(x):
    """A value of the whole shape."""
    if x.shape == (ROWS, WIDTH):
        return x
    return tf.broadcast_to(x, (ROWS, WIDTH))


def images(x):
    return tf.reshape(full(x), IMAGES)


def matrices(x):
    return tf.reshape(x, (ROWS, 4, 4))


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
        args = [values[number] for number in step.of]
        values.append(step.run(args, inner))
    return full(values[-1])


@dataclasses.dataclass(frozen=True)
class Weighted(Step):
    """A product with a variable; a bias may be added."""

    kind: str
    has_bias: bool = False

    def run(self, args, place):
        multiply, _ = WEIGHTED[self.kind]
        result = multiply(full(args[0]), place.weights[f"{place.path}/0"])
        if not self.has_bias:
            return result
        bias = place.weights[f"{place.path}/1"]
        return tf.nn.bias_add(result, bias)

    def shapes(self):
        _, shape = WEIGHTED[self.kind]
        if self.has_bias:
            return (shape, (WIDTH,))
        return (shape,)


@dataclasses.dataclass(frozen=True)
class _OfTable(Step):
    """A function of a table, of values of the whole shape but where it broadcasts."""

    kind: str
    table: ClassVar[Mapping[str, Callable[..., tf.Tensor]]]
    broadcasts: ClassVar[bool] = False

    def run(self, args, place):
        function = self.table[self.kind]
        if self.broadcasts:
            return function(*args)
        return function(*map(full, args))


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
        if not self.term:
            return scaled
        return scaled + self.term


@dataclasses.dataclass(frozen=True)
class Reduce(Step):
    kind: str
    axis: int

    def run(self, args, place):
        reduction = REDUCTIONS[self.kind]
        return reduction(full(args[0]), axis=self.axis, keepdims=True)


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
            following = turn + 1
            if not self.rate:
                return following, new
            return following, state + self.rate * new

        start = full(args[0])
        _, state = tf.while_loop(lambda turn, _: turn < self.turns, body, (0, start))
        return state


@dataclasses.dataclass(frozen=True)
class Branch(Step):
    """Which block runs depends on a value; both read the same one (0)."""

    bound: float
    first: Block
    second: Block

    def run(self, args, place):
        def branch(name, block):
            inner = dataclasses.replace(place, path=f"{place.path}/{name}")
            return lambda: run_block(block, args, inner)

        mean = tf.reduce_mean(tf.stop_gradient(args[0]))
        is_above = mean > self.bound
        first = branch("first", self.first)
        second = branch("second", self.second)
        return tf.cond(is_above, first, second)


@dataclasses.dataclass(frozen=True)
class Store(Step):
    """Puts a mean over rows into a variable, which is a result of the program, and reads it
    again.
    """

    how: str

    def run(self, args, place):
        variable = place.weights[f"{place.path}/0"]
        mean = tf.reduce_mean(full(args[0]), axis=0)
        if self.how == "assign":
            update = variable.assign(mean)
        elif self.how == "add":
            update = variable.assign_add(0.01 * mean)
        else:
            average = 0.99 * variable + 0.01 * mean
            update = variable.assign(average)
        with tf.control_dependencies([update]):
            state = variable.read_value()
        place.notes[f"state {place.path}"] = state
        return args[0] + state

    def shapes(self):
        return ((WIDTH,),)
