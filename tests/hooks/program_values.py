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

    dtype = tf.float32  #: of what products and what stands around them are computed in
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
        return _OF_ONE_PRODUCT * math.sqrt(products)  # errors are independent of each other


class Convolutions(Values):
    """Images and filters, one of them depthwise; behind each convolution stands Keras'
    normalization in inference.
    """

    SIDE = 12
    CHANNELS = 8

    def __init__(self, seed: int) -> None:
        generator = np.random.default_rng(seed)
        c = self.CHANNELS

        def image_filter(*shape: int) -> np.ndarray:
            terms = np.prod(shape[:2]) * (c if shape[3] > 1 else 1)
            return (generator.uniform(-1, 1, shape) / np.sqrt(terms)).astype(np.float32)

        def vector(*shape: int) -> tf.Variable:
            return tf.Variable(generator.uniform(0.5, 1.2, shape).astype(np.float32))

        self.x = tf.constant(
            generator.uniform(-1, 1, (4, self.SIDE, self.SIDE, c)).astype(np.float32)
        )
        shapes = ((1, 1, c, c), (3, 3, c, c), (3, 3, c, 1))
        self.variables = [tf.Variable(image_filter(*shape)) for shape in shapes]
        self.constants = [tf.constant(image_filter(*shape)) for shape in shapes[1:]]
        self._scales = [vector(c), vector(1, 1, 1, c), vector(c)]
        self._biases = [vector(c), vector(c)]
        self._pixel = vector(1, 1, c, 1)

    def multiply(self, x, weight, style):
        dice = random.Random(style)
        odd = random.Random(~style)
        convolve = tf.nn.depthwise_conv2d if weight.shape[3] == 1 else tf.nn.conv2d
        y = result = convolve(x, weight, strides=[1] * 4, padding="SAME")
        scale = dice.choice(self._scales)
        bias = dice.choice(self._biases)
        if dice.random() < 0.5:
            scale = scale * tf.math.rsqrt(1.0 + tf.square(bias))
        kind = odd.random()
        if kind < 0.15:  # that differs in the rows of an image, too
            scale = tf.reshape(scale, (1, -1)) * tf.linspace(0.8, 1.2, self.SIDE)[:, None]
        elif kind < 0.3:  # that is a scaled product itself
            pixel = tf.nn.depthwise_conv2d(
                tf.reshape(scale, (1, 1, 1, -1)), self._pixel, [1] * 4, "SAME"
            )
            scale = pixel * self._scales[0]
        y = y * scale if dice.random() < 0.9 else scale * y
        if odd.random() < 0.2:  # the product has another reader
            y = y - result
        if dice.random() < 0.3:
            y = tf.add_n([y, x]) if odd.random() < 0.4 else y + x
        y = y + bias if odd.random() < 0.7 else bias + y
        if dice.random() < 0.6:
            y = tf.nn.relu(y)
        return y / (1.0 + tf.reduce_max(tf.abs(y)))

    def turned(self, weight):
        return tf.reverse(weight, [2])

    def tolerance(self, products):
        return _OF_ONE_PRODUCT  # each division by the largest value lessens the errors so far


class Twins(Convolutions):
    """A part with a bias that is called twice, as in siamese networks; what it gives is
    compared.
    """

    def multiply(self, x, weight, style):
        dice = random.Random(style)
        convolve = tf.nn.depthwise_conv2d if weight.shape[3] == 1 else tf.nn.conv2d
        bias = dice.choice(self._biases)
        scale = dice.choice((self._scales[0], self._scales[2]))
        if self.dtype != x.dtype:
            x, weight, bias, scale = (
                tf.cast(value, self.dtype) for value in (x, weight, bias, scale)
            )
        activation = dice.choice((tf.identity, tf.identity, tf.nn.relu, tf.nn.elu))
        ending = dice.choice((tf.identity, self._normalized, lambda y: y * scale))

        def part(y: tf.Tensor) -> tf.Tensor:
            return ending(
                activation(
                    tf.nn.bias_add(convolve(y, weight, strides=[1] * 4, padding="SAME"), bias)
                )
            )

        other = tf.reverse(x, [1]) if dice.random() < 0.7 else part(x)
        y = dice.choice((tf.subtract, tf.subtract, tf.maximum, tf.math.squared_difference))(
            part(x), part(other)
        )
        if dice.random() < 0.3:
            y = tf.math.log(1.0 + tf.abs(y))
        return tf.cast((y + 0.5 * x) / (1.0 + tf.reduce_max(tf.abs(y))), tf.float32)

    @staticmethod
    def _normalized(y: tf.Tensor) -> tf.Tensor:
        mean, variance = tf.nn.moments(y, [0, 1, 2], keepdims=True)
        return tf.nn.batch_normalization(y, mean, variance, None, None, 0.1)

    def tolerance(self, products):
        return (
            4 * _OF_ONE_PRODUCT
        )  # what is subtracted is nearly alike, or logarithms are taken of it
