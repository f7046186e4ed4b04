"""Values for random programs, whose size any number of products keeps: wrong weights show."""

from __future__ import annotations

import abc
import math
import random
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

WEIGHTS = 3
CONSTANTS = 2


class Values(abc.ABC):
    """The weights and the input of a program."""

    x: tf.Tensor  #: it has the shape of every result
    variables: Sequence[tf.Variable]
    constants: Sequence[tf.Tensor]

    @abc.abstractmethod
    def multiply(self, x: tf.Tensor, weight: tf.Variable | tf.Tensor, style: int) -> tf.Tensor:
        """The product, and what belongs to it; ``style`` is a seed for how it is written down."""

    @abc.abstractmethod
    def turned(self, weight: tf.Variable) -> tf.Tensor:
        """Another weight of the same shape, with the same numbers."""

    @abc.abstractmethod
    def tolerance(self, products: int) -> float:
        """Returns the largest error that rounding alone gives after so many products."""

    def weights(self) -> list[np.ndarray]:
        """The variables' values now."""
        return [variable.numpy() for variable in self.variables]

    def put_back(self, weights: Sequence[np.ndarray]) -> None:
        """Gives the variables the values of before."""
        for variable, value in zip(self.variables, weights, strict=True):
            variable.assign(value)


# The error of one product of bfloat16 numbers, for results of up to 1: at most 2**-8 comes from
# each operand, and the most that was seen in 80 programs is less than half of this. A wrong weight
# is off by 0.5 or so.
_OF_ONE_PRODUCT = 2.0**-6


class Matrices(Values):
    """Orthogonal matrices: products are orthogonal too, so that errors are neither enlarged nor
    lessened.
    """

    SIZE = 8

    def __init__(self, seed: int) -> None:
        generator = np.random.default_rng(seed)

        def orthogonal() -> np.ndarray:
            return np.linalg.qr(generator.normal(size=(self.SIZE, self.SIZE)))[0].astype(np.float32)

        self.x = tf.constant(orthogonal())
        self.variables = [tf.Variable(orthogonal()) for _ in range(WEIGHTS)]
        self.constants = [tf.constant(orthogonal()) for _ in range(CONSTANTS)]

    def multiply(self, x, weight, style):
        return tf.matmul(x, weight)

    def turned(self, weight):
        return tf.transpose(weight)

    def tolerance(self, products):
        # Errors of rounding are independent of each other; what is cut off adds up.
        return _OF_ONE_PRODUCT * math.sqrt(products) + self._cut_off() * products

    def _cut_off(self) -> float:
        """Returns the part of a product's size that this CPU's kernel loses.

        TensorFlow's own kernel, for CPUs without bfloat16, cuts digits off, where oneDNN rounds:
        each product is .0029 smaller.
        """
        left = tf.cast(self.x, tf.bfloat16)
        right = tf.cast(self.constants[0], tf.bfloat16)
        size = tf.norm(tf.cast(tf.matmul(left, right), tf.float32))
        exact = tf.norm(tf.matmul(tf.cast(left, tf.float32), tf.cast(right, tf.float32)))
        return max(0.0, float(1.0 - size / exact))


class Convolutions(Values):
    """Images and filters, one of them depthwise; behind each convolution stands Keras'
    normalization in inference.
    """

    SIDE = 12
    CHANNELS = 8

    def __init__(self, seed: int) -> None:
        self._generator = np.random.default_rng(seed)
        c = self.CHANNELS
        self.x = tf.constant(self._uniform(-1, 1, (4, self.SIDE, self.SIDE, c)))
        shapes = ((1, 1, c, c), (3, 3, c, c), (3, 3, c, 1))
        self.variables = [tf.Variable(self._filter(shape)) for shape in shapes]
        self.constants = [tf.constant(self._filter(shape)) for shape in shapes[1:]]
        self._scales = [self._vector(c), self._vector(1, 1, 1, c), self._vector(c)]
        self._biases = [self._vector(c), self._vector(c)]
        self._pixel = self._vector(1, 1, c, 1)

    def _uniform(self, low: float, high: float, shape: Sequence[int]) -> np.ndarray:
        return self._generator.uniform(low, high, shape).astype(np.float32)

    def _filter(self, shape: Sequence[int]) -> np.ndarray:
        height, width, channels, outputs = shape
        terms = height * width
        if outputs > 1:  # not depthwise
            terms *= channels
        return self._uniform(-1, 1, shape) / np.float32(np.sqrt(terms))

    def _vector(self, *shape: int) -> tf.Variable:
        return tf.Variable(self._uniform(0.5, 1.2, shape))

    def multiply(self, x, weight, style):
        dice = random.Random(style)
        convolve = tf.nn.depthwise_conv2d if weight.shape[3] == 1 else tf.nn.conv2d
        result = convolve(x, weight, strides=[1] * 4, padding="SAME")
        bias = dice.choice(self._biases)
        scale = self._scale(dice, bias)
        y = result * scale if dice.random() < 0.9 else scale * result
        if dice.random() < 0.2:  # the product has another reader
            y = y - result
        if dice.random() < 0.3:
            y = tf.add_n([y, x]) if dice.random() < 0.4 else y + x
        y = y + bias if dice.random() < 0.7 else bias + y
        if dice.random() < 0.6:
            y = tf.nn.relu(y)
        return y / (1.0 + tf.reduce_max(tf.abs(y)))

    def _scale(self, dice: random.Random, bias: tf.Variable) -> tf.Tensor:
        scale = dice.choice(self._scales)
        if dice.random() < 0.5:
            scale = scale * tf.math.rsqrt(1.0 + tf.square(bias))
        kind = dice.random()
        if kind < 0.15:  # that differs in the rows of an image, too
            return tf.reshape(scale, (1, -1)) * tf.linspace(0.8, 1.2, self.SIDE)[:, None]
        if kind < 0.3:  # that is a scaled product itself
            row = tf.reshape(scale, (1, 1, 1, -1))
            pixel = tf.nn.depthwise_conv2d(row, self._pixel, [1] * 4, "SAME")
            return pixel * self._scales[0]
        return scale

    def turned(self, weight):
        return tf.reverse(weight, [2])

    def tolerance(self, products):
        return _OF_ONE_PRODUCT  # each division by the largest value lessens the errors so far
