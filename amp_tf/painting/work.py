"""How many floating-point operations a product takes, from the shapes of its tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence

from amp_tf.graph.sizes import NOMINAL_BATCH, Shape, element_count
from amp_tf.oplists.costs import BATCHED, CONVOLUTIONS, DEPTHWISE


def count_operations(
    op: str, inputs: Sequence[Shape | None], outputs: Sequence[Shape | None], equation: str = ""
) -> float | None:
    """The operations of a product, a multiplication and an addition counted as two.

    Args:
        op: the op.
        inputs, outputs: the shapes of its data inputs and outputs; -1 for an unknown dimension.
        equation: of an Einsum.

    Returns:
        ``None`` where the shapes that it takes are not known.
    """
    if op in CONVOLUTIONS:
        return _count_convolution(op, inputs, outputs)
    if equation and "." not in equation:
        return _count_einsum(equation, inputs)
    return _count_product(op, inputs, outputs)


def _count_einsum(equation: str, inputs: Sequence[Shape | None]) -> float | None:
    """Every choice of one index for each label is one multiplication."""
    terms = equation.replace(" ", "").partition("->")[0].split(",")
    size_of: dict[str, int] = {}
    for labels, shape in zip(terms, inputs, strict=False):
        if shape is None or len(shape) != len(labels):
            return None
        size_of.update({label: size for label, size in zip(labels, shape, strict=True) if size >= 0})
    if any(label not in size_of for term in terms for label in term[1:]):
        return None
    return 2.0 * math.prod(size_of.get(label, NOMINAL_BATCH) for label in {*"".join(terms)})


def _count_product(op: str, inputs: Sequence[Shape | None], outputs: Sequence[Shape | None]) -> float | None:
    """m·k, k·n and m·n elements make m·k·n multiplications: the root of the product of the three."""
    if len(inputs) < 2 or not outputs or outputs[0] is None:
        return None
    if op in BATCHED:
        return _count_batched(inputs[0], inputs[1], outputs[0])
    counts = [element_count(shape) for shape in (inputs[0], inputs[1], outputs[0])]
    if None in counts:
        return None
    return 2.0 * math.sqrt(math.prod(count or 0 for count in counts))


def _count_batched(first: Shape | None, second: Shape | None, result: Shape) -> float | None:
    """Each element of the result sums over the inner dimension, of which a matrix tells that has the others' size.

    Matrices may have fewer leading dimensions than the result: all examples share the weight of a Dense layer.
    """
    count = element_count(result)
    for shape, place in ((second, -1), (first, -2)):
        matrix = (*(shape or ())[-2:], *result[place:][:1])
        if count is not None and len(matrix) == 3 and min(matrix) > 0:
            return 2.0 * count * matrix[0] * matrix[1] / matrix[2]
    return None


def _count_convolution(op: str, inputs: Sequence[Shape | None], outputs: Sequence[Shape | None]) -> float | None:
    kernel, values = filter_shape(op, inputs, outputs), _at(CONVOLUTIONS[op][1], inputs, outputs)
    if kernel is None or values is None or len(kernel) < 3 or any(size < 0 for size in kernel):
        return None
    taps = math.prod(kernel[:-2] if op in DEPTHWISE else kernel[:-1])
    count = element_count(values)
    return None if count is None else 2.0 * count * taps


def filter_shape(op: str, inputs: Sequence[Shape | None], outputs: Sequence[Shape | None]) -> Shape | None:
    """The shape of a convolution's filter: taps, channels in, channels out (of a depthwise one: for each)."""
    return _at(CONVOLUTIONS[op][0], inputs, outputs)


def _at(place: tuple[bool, int], inputs: Sequence[Shape | None], outputs: Sequence[Shape | None]) -> Shape | None:
    is_input, number = place
    shapes = inputs if is_input else outputs
    return shapes[number] if number < len(shapes) else None
