"""Random graphs of convolutions with scales, biases, residual sums and activations around them, some of them in loops.

They run, and in float32 their results are the same before and after folding, whatever was folded: that is all that is
asked of them. What the folding may do wrong depends on who else reads a tensor, on shapes that broadcast, on scales
that are results themselves, on the order of the nodes and on loops' frames, so all of these vary. All values are
positive, so that nothing cancels, and filters average, so that values stay near one.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from tests.strategies import lowered_control_flow

CHANNELS = 4
TURNS = 2  # of each loop
STEPS = ("block",) * 5 + ("loop", "convolve", "scale", "sum", "activate", "identity", "vector")


@dataclasses.dataclass(frozen=True)
class NormalizedGraph:
    """A graph that runs.

    Attributes:
        graph: where it was made; it knows the static shapes, loops' included.
        graph_def: its nodes, some of them in another order.
        fetch: names of the nodes whose results are compared.
        preserve: names of the nodes that the folding must leave alone, those of ``fetch`` included.
        feeds: for each placeholder's tensor its value.
    """

    graph: tf.Graph
    graph_def: tf.compat.v1.GraphDef
    fetch: tuple[str, ...]
    preserve: frozenset[str]
    feeds: Mapping[str, np.ndarray]


def normalized_graph(seed: int, most_steps: int = 14) -> NormalizedGraph:
    """The graph of a seed; with less than all its steps it is the same graph, ended earlier."""
    dice = random.Random(seed)
    with tf.Graph().as_default() as graph, lowered_control_flow():
        builder = _Builder(dice)
        for _ in range(min(dice.randrange(4, 14), most_steps)):
            builder.add_step()
        fetch = builder.fetch_what_nobody_reads(graph)
    graph_def = graph.as_graph_def()
    preserve = {*fetch}
    if dice.random() < 0.3:
        preserve.add(dice.choice(graph_def.node).name)
    if dice.random() < 0.5:
        _shuffle(graph_def, dice)
    return NormalizedGraph(graph, graph_def, fetch, frozenset(preserve), builder.feeds)


def _shuffle(graph_def: tf.compat.v1.GraphDef, dice: random.Random) -> None:
    nodes = [type(node).FromString(node.SerializeToString()) for node in graph_def.node]
    dice.shuffle(nodes)
    del graph_def.node[:]
    graph_def.node.extend(nodes)


class _Builder:
    """Adds steps; each reads what earlier steps made.

    Attributes:
        feeds: see :class:`NormalizedGraph`.
    """

    def __init__(self, dice: random.Random) -> None:
        self.feeds: dict[str, np.ndarray] = {}
        self._dice = dice
        self._values = np.random.default_rng(dice.randrange(1 << 30))
        self._is_batch_known = dice.random() < 0.6
        self._is_in_loop = False
        batch, size, c = dice.choice((1, 1, 2)), dice.choice((1, 6)), CHANNELS
        image = (batch, size, size, c)
        self._images = [self._placeholder(image, has_batch=True) for _ in range(2)]
        self._gray = self._placeholder((batch, size, size, 1), has_batch=True)
        # One pixel is an image, and one value for each channel besides: a scale that a convolution may have made.
        self._pixels = [self._placeholder((1, 1, 1, c)) for _ in range(2)]
        self._filters = [self._filter(shape) for shape in ((1, 1, c, c), (2, 2, c, c), (2, 2, c // 2, c))]
        self._depthwise_filters = [self._filter(shape) for shape in ((2, 2, c, 1), (1, 1, c, 1))]
        self._gray_filter = self._filter((1, 1, 1, c))
        self._biases = [self._placeholder((c,)) for _ in range(3)]
        self._vectors = [
            *self._biases,
            *(self._placeholder(shape) for shape in ((1, c), (1, 1, 1, c), (), (1,), (size, c))),
            self._placeholder((batch, 1, 1, c), has_batch=True),
            self._placeholder((c,), is_size_known=False),
        ]

    def add_step(self) -> None:
        """One more step on an image or on a pixel."""
        kind = self._dice.choice(STEPS)
        if kind == "vector":
            self._vectors.append(self._vectors[0] * self._dice.choice(self._biases))
            return
        pool = self._dice.choice((self._images, self._images, self._pixels))
        x = self._dice.choice(pool[-4:])
        result = getattr(self, f"_{kind}")(x, pool)
        if result.shape.rank != 4 or result.shape[-1] != CHANNELS:
            return  # of no use to the steps that follow; it is fetched or read by nobody, as it happens
        if pool is not self._pixels:
            self._images.append(result)
        elif result.shape.as_list() == [1, 1, 1, CHANNELS]:
            self._pixels.append(result)

    def fetch_what_nobody_reads(self, graph: tf.Graph) -> tuple[str, ...]:
        """An Identity of each such image and pixel."""
        read = {tensor.name for op in graph.get_operations() for tensor in op.inputs}
        unread = [tensor for tensor in (*self._images, *self._pixels) if tensor.name not in read]
        return tuple(tf.identity(tensor, name=f"fetch{i}").op.name for i, tensor in enumerate(unread))

    # Steps: of an image and the images, or of a pixel and the pixels

    def _block(self, x: tf.Tensor, pool: Sequence[tf.Tensor]) -> tf.Tensor:
        """What Keras makes of a convolution with normalization, perhaps with a residual sum and an activation."""
        y = self._scale(self._convolve(x, pool), pool)
        kind = self._dice.choice(("plain", "plain", "bias", "bias", "residual"))
        if kind == "residual":
            y = self._add(y, self._dice.choice(pool[-5:]))
        if kind != "plain":
            y = self._add(y, self._dice.choice(self._biases))
        return tf.nn.relu(y) if self._dice.random() < 0.5 else y

    def _convolve(self, x: tf.Tensor, pool: Sequence[tf.Tensor]) -> tf.Tensor:
        kind = self._dice.choice(("full",) * 5 + ("depthwise",) * 4 + ("of gray",))
        op = tf.raw_ops.Conv2D if kind == "full" else tf.raw_ops.DepthwiseConv2dNative
        if kind == "of gray":
            x, kernel = self._gray, self._gray_filter
        elif kind == "depthwise" and pool is self._pixels:
            kernel = self._depthwise_filters[-1]  # no larger than a pixel, so that folding pays
        else:
            kernel = self._dice.choice(self._filters if kind == "full" else self._depthwise_filters)
        if self._is_in_loop and self._dice.random() < 0.8:
            kernel = tf.identity(kernel)  # as for a variable; else it comes from an Enter, which nothing is folded into
        return op(input=x, filter=kernel, strides=[1] * 4, padding="SAME")

    def _scale(self, x: tf.Tensor, pool: Sequence[tf.Tensor]) -> tf.Tensor:
        vector = self._dice.choice((*self._vectors, *[self._vectors[0]] * 4, *self._pixels[-3:] * 3))
        return tf.raw_ops.Mul(x=x, y=vector) if self._dice.random() < 0.5 else tf.raw_ops.Mul(x=vector, y=x)

    def _sum(self, x: tf.Tensor, pool: Sequence[tf.Tensor]) -> tf.Tensor:
        return self._add(x, self._dice.choice((*pool, *self._vectors)))

    def _activate(self, x: tf.Tensor, pool: Sequence[tf.Tensor]) -> tf.Tensor:
        return tf.nn.relu(x)

    def _identity(self, x: tf.Tensor, pool: Sequence[tf.Tensor]) -> tf.Tensor:
        return tf.identity(x)

    def _loop(self, x: tf.Tensor, pool: Sequence[tf.Tensor]) -> tf.Tensor:
        """A few blocks in the frame of a loop, which reads images, pixels and vectors from outside."""
        if self._is_in_loop:
            return self._block(x, pool)
        shape = x.shape

        def body(turn: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            for _ in range(self._dice.randrange(1, 4)):
                z = self._block(y, pool)
                y = z if z.shape.as_list() == shape.as_list() else y
            return turn + 1, y / 2.0

        self._is_in_loop = True
        _, result = tf.while_loop(lambda turn, _: turn < TURNS, body, [0, x])
        self._is_in_loop = False
        return result

    def _add(self, a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
        if self._dice.random() < 0.5:
            a, b = b, a
        is_same_shape = a.shape.rank == b.shape.rank and a.shape.as_list() == b.shape.as_list()
        if is_same_shape and self._dice.random() < 0.4:
            return tf.raw_ops.AddN(inputs=[a, b])
        return self._dice.choice((tf.raw_ops.Add, tf.raw_ops.AddV2))(x=a, y=b)

    # Sources

    def _filter(self, shape: tuple[int, ...]) -> tf.Tensor:
        """A filter whose results are of the size of what it reads."""
        height, width, channels, multiplier = shape
        terms = height * width * (1 if multiplier == 1 else channels)
        return self._placeholder(shape, scale=1.0 / terms)

    def _placeholder(
        self, shape: tuple[int, ...], *, has_batch: bool = False, is_size_known: bool = True, scale: float = 1.0
    ) -> tf.Tensor:
        is_known = is_size_known and (self._is_batch_known or not has_batch)
        tensor = tf.compat.v1.placeholder(tf.float32, shape if is_known else (None, *shape[1:]))
        self.feeds[tensor.name] = (scale * self._values.uniform(0.5, 1.5, shape)).astype(np.float32)
        return tensor
