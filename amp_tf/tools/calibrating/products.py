"""Names the products that are measured.

They are matrix products and convolutions with both of their gradients, large and small.

Sizes are those of small and large layers, in the caches and in memory, with odd and with very few
channels.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from amp_tf.oplists.cost_tables import (
    CHANNELS_FIRST,
    POINTWISE_FIRST,
    TRANSPOSED,
    VECTOR_TAPS,
    padding_factor,
)
from amp_tf.tools.calibrating.elements import Op, raw_op

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Product:
    """Describes one product.

    ``run`` takes tensors of these shapes. ``operations`` are those that the kernel computes, a
    multiplication and an addition counted as two
    (:func:`amp_tf.oplists.cost_tables.padding_factor`), and ``results`` the elements written.

    ``op`` is the name of its row in the table.
    """

    op: str
    shapes: tuple[Shape, ...]
    run: Op
    operations: float
    results: float

    @property
    def elements(self) -> float:
        """All elements read and written."""
        return sum(map(math.prod, self.shapes)) + self.results

    @property
    def runs(self) -> int:
        """How often to run it in one call, so that a call takes some milliseconds."""
        return max(2, min(40, int(4e8 / (self.operations + 50 * self.elements))))


@dataclasses.dataclass(frozen=True)
class Convolution:
    """Describes a convolution.

    It is depthwise if ``out``, the number of its output channels, is 0.
    """

    batch: int
    sides: Shape
    channels: int
    out: int
    taps: Shape
    stride: int = 1
    dilation: int = 1
    channels_first: bool = False

    @property
    def variant(self) -> str:
        """The suffix of its row's name after the op."""
        if not self.channels_first:
            return ""
        if math.prod(self.taps) > 1:
            return CHANNELS_FIRST
        return POINTWISE_FIRST

    def laid_out(self, sizes: Sequence[int]) -> list[int]:
        """Returns batch, sides and channels in the order of the layout."""
        batch, *sides, channels = sizes
        if self.channels_first:
            return [batch, channels, *sides]
        return [*sizes]


def _convolutions(text: str, *, channels_first: bool = False) -> tuple[Convolution, ...]:
    """Reads convolutions: batch, sides and channels → channels out / taps / stride / dilation."""
    found = []
    for row in text.split():
        image, rest = row.split("→")
        batch, *sides, channels = map(int, image.split("×"))
        out, taps, *steps = rest.split("/")
        kernel = tuple(map(int, taps.split("×")))
        stride, dilation, *_ = (*map(int, steps), 1, 1)
        sizes = (batch, tuple(sides), channels, int(out), kernel)
        found.append(Convolution(*sizes, stride, dilation, channels_first))
    return tuple(found)


CONVOLUTIONS = _convolutions(
    """8×56×56×64→64/3×3 8×28×28×128→128/3×3 8×14×14×256→256/3×3 8×7×7×512→512/3×3
    4×96×96×64→64/3×3 8×56×56×64→128/3×3/2 8×14×14×1024→256/1×1 8×56×56×64→256/1×1
    16×48×48×16→96/1×1 16×24×24×144→24/1×1 16×6×6×320→1280/1×1 8×96×96×3→32/3×3/2
    8×64×64×3→64/3×3 8×30×30×30→50/3×3 16×32×32×32→3/3×3 8×64×64×64→1/1×1 32×1×512×16→64/1×5
    16×1×512×64→64/1×2 8×32×32×64→64/3×3/1/4 2×16×16×16→16/3×3 4×8×8×32→32/1×1 8×1×1×96→24/1×1
    8×3×3×512→2048/1×1 8×3×3×512→512/3×3 8×6×6×1024→256/1×1"""
) + _convolutions(
    """8×56×56×64→64/3×3 8×28×28×128→128/3×3 8×14×14×1024→256/1×1 16×16×16×64→128/1×1
    8×28×28×128→128/1×1 8×64×64×3→64/3×3 16×32×32×32→64/3×3/2 16×8×8×64→64/3×3""",
    channels_first=True,
)
VOLUMES = _convolutions(
    """4×16×32×32×3→32/3×3×3 4×8×16×16×32→64/3×3×3 4×4×8×8×64→128/3×3×3 2×16×32×32×16→16/3×3×3
    2×8×16×16×64→64/1×1×1 4×8×14×14×32→32/1×3×3 4×8×14×14×32→32/3×1×1 2×8×32×32×16→32/3×3×3/2
    2×16×16×16×32→3/3×3×3"""
)
DEPTHWISE = _convolutions(
    """16×48×48×96→0/3×3 16×48×48×96→0/3×3/2 16×24×24×144→0/3×3 16×12×12×240→0/5×5
    16×24×24×144→0/5×5/2 8×6×6×576→0/5×5 8×16×16×192→0/7×7 8×112×112×32→0/3×3 2×30×30×30→0/3×3
    8×24×24×72→0/3×3 8×14×14×64→0/3×3"""
)


def _sizes(text: str) -> tuple[tuple[int, int, int, int], ...]:
    rows = (map(int, row.split("×")) for row in text.split())
    return tuple((a, b, c, d) for a, b, c, d in rows)


#: Stacked matrices, their rows, inner size and columns.
MATRICES = _sizes(
    """1×256×2048×2048 1×256×512×2048 1×1024×256×1024 1×1024×1024×256 1×1024×256×256
    1×1024×128×2000 1×512×192×192 1×4096×256×128 1×1×1024×1024 1×8×1024×1024 1×64×128×768
    1×64×768×768 1×32×256×768 1×32×128×512 1×32×256×1024 1×64×512×2048 1×512×128×64 1×512×64×1
    1×1024×32×1024     1×8×1024×10 1×128×54×256 1×50×99×77"""
)
BATCHED = _sizes(
    """64×64×64×64 64×64×32×64 32×64×64×32 16×256×16×256 16×256×256×16 256×16×32×16 256×7×32×7
    32×24×256×96 1024×16×24×16 512×32×32×32 64×128×64×128 32×256×64×256 32×256×256×64"""
)
#: Attention as Keras writes it: examples, positions, heads, size of a head.
ATTENTION = _sizes("""8×64×4×32 16×128×4×32 8×256×4×64 64×16×4×24 8×32×4×16""")
#: Dense layers over several dimensions as Keras writes them, and their weights: inputs, heads, size
#: of a head.
PROJECTIONS = (
    ((8, 128, 256), (256, 4, 64)),
    ((16, 64, 128), (128, 4, 32)),
    ((8, 256, 512), (512, 8, 64)),
)
# The forward op, and the gradients of its input and of its filter.
_CONVOLUTION_OPS = {
    2: ("Conv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter"),
    3: ("Conv3D", "Conv3DBackpropInputV2", "Conv3DBackpropFilterV2"),
}
_DEPTHWISE_OPS = (
    "DepthwiseConv2dNative",
    "DepthwiseConv2dNativeBackpropInput",
    "DepthwiseConv2dNativeBackpropFilter",
)


def _of_convolution(case: Convolution) -> Iterator[Product]:
    """Yields a convolution and its gradients, except depthwise ones with slow 16-bit kernels."""
    names = _DEPTHWISE_OPS
    if case.out:
        names = _CONVOLUTION_OPS[len(case.sides)]
    forward, of_input, of_filter = names
    # A side of one has no stride and no dilation.
    strides = [1]
    dilations = [1]
    small = []
    for side in case.sides:
        strides.append(min(case.stride, side))
        dilations.append(min(case.dilation, side))
        small.append(-(-side // strides[-1]))
    options: dict[str, Any] = {
        "strides": case.laid_out([*strides, 1]),
        "padding": "SAME",
        "dilations": case.laid_out([*dilations, 1]),
    }
    if case.channels_first:
        options["data_format"] = "NCHW"
    inputs = 1  # of each result
    if case.out:
        inputs = case.channels
    kernel = (*case.taps, case.channels, case.out or 1)
    image = tuple(case.laid_out([case.batch, *case.sides, case.channels]))
    result = tuple(case.laid_out([case.batch, *small, case.out or case.channels]))
    operations = 2.0 * math.prod(result) * math.prod(case.taps) * inputs

    def product(op: str, *shapes: Shape, writes: Shape, **given: Any) -> Product:
        computed = operations * padding_factor(op, kernel, case.variant)
        run = raw_op(op, **options, **given)
        return Product(op + case.variant, shapes, run, computed, float(math.prod(writes)))

    yield product(forward, image, kernel, writes=result)
    if case.out or case.stride == 1:
        yield product(of_input, kernel, result, writes=image, input_sizes=image)
    if case.out or math.prod(case.taps) <= VECTOR_TAPS:
        yield product(of_filter, image, result, writes=kernel, filter_sizes=kernel)


def _of_matrices(count: int, rows: int, inner: int, columns: int) -> Iterator[Product]:
    """Yields a product of matrices and its two gradients, in which one matrix is transposed."""
    op = "MatMul"
    stack: Shape = ()
    if count > 1:
        op = "BatchMatMulV2"
        stack = (count,)
    left = (*stack, rows, inner)
    right = (*stack, inner, columns)
    sizes = (2.0 * count * rows * inner * columns, float(count * rows * columns))
    yield Product(op, (left, right), tf.matmul, *sizes)
    turned = (*stack, columns, inner)
    run = functools.partial(tf.matmul, transpose_b=True)
    yield Product(op + TRANSPOSED, (left, turned), run, *sizes)
    turned = (*stack, inner, rows)
    run = functools.partial(tf.matmul, transpose_a=True)
    yield Product(op, (turned, right), run, *sizes)


def _of_equation(equation: str, *shapes: Shape) -> Product:
    given, result = equation.split("->")
    size_of = dict(zip(given.replace(",", ""), itertools.chain(*shapes), strict=True))
    results = float(math.prod(size_of[letter] for letter in result))
    run = functools.partial(tf.einsum, equation)
    return Product("Einsum", shapes, run, 2.0 * math.prod(size_of.values()), results)


def all_products() -> Iterator[Product]:
    """Yields all products to measure."""
    for case in (*CONVOLUTIONS, *VOLUMES, *DEPTHWISE):
        yield from _of_convolution(case)
    for sizes in (*MATRICES, *BATCHED):
        yield from _of_matrices(*sizes)
    for count, positions, heads, size in ATTENTION:
        values = (count, positions, heads, size)
        weights = (count, heads, positions, positions)
        yield _of_equation("bmhk,bnhk->bhmn", values, values)
        yield _of_equation("bhmn,bnhk->bmhk", weights, values)
    for image, kernel in PROJECTIONS:
        yield _of_equation("bmc,chk->bmhk", image, kernel)
