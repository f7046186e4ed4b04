"""Range: what 16 bit cannot hold, forwards from where it first appears.

*Constants.* -1e9 stands for "never" in masks, Keras' own among them, and is below float16's least number; so is
``tf.float32.min``, also below bfloat16's. A row of a mask that allows nothing, such as that of a padded position, has a
softmax in float32; of infinities it is NaN, and so is each gradient then. 1e-8 guards logarithms and quotients from
zero; float16 has no such number, and the guard is gone. So is that of a probability which is clipped to 0.9999999, and
the logarithm of what is left to 1 is minus infinity. A few ops make such values themselves, and some on no list pass
them on. The constant need not be cast itself: Keras multiplies it in float32, and the product was cast. Clamping each
such cast would keep softmax in 16 bit, but hide the infinities by which loss scaling knows an overflow. NVIDIA's users
were told to write -1e4 where Keras writes -1e9.

*Squares and quotients*, in float16: 300 is an ordinary activation, and its square is infinite; 1e-4 is one, too, and so
is the quotient of 10 by it, also where it is written as a multiplication by a reciprocal (``tf.math.l2_normalize``).
The gradient of a root is such a quotient, too, and so it is once it was moved and multiplied by constants, as in the
gradient of RMSNorm. What is multiplied by gamma / sqrt(variance) is one, where the variance is of the batch: of equal
rows it is zero. Quotients by a constant and products of two different values are what the lists say.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from amp_tf.graph.attributes import floats
from amp_tf.graph.datatypes import Mask
from amp_tf.oplists import table
from amp_tf.painting.canvas import Canvas
from amp_tf.painting.flow import Flow
from amp_tf.painting.reasons import Rule
from amp_tf.precision import Precision


def keep_in_range(canvas: Canvas) -> None:
    """What reads a constant that 16 bit cannot hold stays in float32, and what uses its values, up to the next product.

    That product does, too, if nothing but moves and multiplications lies between: ``matmul(ones * -1e9, pad)``. In
    float16 squares and quotients do, as powers and exponentials on its deny list.

    Difference "range": TensorFlow's pass looks at no values, and has Pow on the deny list, but not x * x and 1 / x.

    Example (float16)::

        never = Const() value=float32[]*-1e9
        allow1 = MatMul(x, x)                 f16
        infer1 = AddV2(allow1, never)         f16 → float32
        infer2 = Softmax(infer1)              f16 → float32
        allow2 = MatMul(infer2, x)            f16

    Example (float16)::

        allow1 = MatMul(x, x)         f16
        square = Mul(allow1, allow1)  f16 → float32
        infer1 = Tanh(square)         f16 → float32
        allow2 = MatMul(infer1, x)    f16
    """
    view, precision = canvas.view, canvas.target.precision
    is_extreme = view.of_constants(lambda values: not _holds(precision, values), np.bool_)
    constants: list[int] = np.flatnonzero(is_extreme).tolist()
    # Products that constants reach as large, or as small, as they are; 0.9999999 is 1 to a product.
    sized = [node for node in constants if not _is_nearly_one(precision, np.abs(floats(view.protos[node])).ravel())]
    keeping_size = canvas.on_allow & (canvas.deny ^ 1)
    keeping_size[canvas.float32_units(view.nodes_with(table.KEEPING_SIZE))] = 1
    reached = canvas.flood(canvas.float32_units(sized), keeping_size, forward=True)
    products = [unit for unit in reached if canvas.on_allow[unit]]
    canvas.keep_allowed(canvas.float32_units({canvas.node_of[unit] for unit in products}), Rule.BEYOND_RANGE)
    passable = (canvas.on_infer | canvas.on_clear) & (canvas.deny ^ 1)
    passable[canvas.float32_units(view.nodes_with(table.CARRIERS))] = 1
    passable &= canvas.allow ^ 1  # carriers that the user forces
    sources = canvas.float32_units([*constants, *view.nodes_with(table.EXTREME_SOURCES)])
    kept = [unit for unit in products if canvas.deny[unit]]
    canvas.paint_deny(canvas.flood([*sources, *kept], passable, forward=True), Rule.BEYOND_RANGE)
    if precision is Precision.FLOAT16:
        canvas.keep(_squares_and_quotients(canvas.flow) & canvas.flow.computes, Rule.LEAVES_RANGE)


def _squares_and_quotients(flow: Flow) -> Mask:
    values = flow.values
    products, reciprocals, totals = (values.nodes_of(ops) for ops in (("Mul",), table.RECIPROCALS, table.TOTALS))
    of_batches = reciprocals & values.downstream(totals, through=flow.is_open | reciprocals)
    by_reciprocals = products & values.readers_of(reciprocals | values.downstream(of_batches, through=products))
    ranging = values.nodes_of(table.RANGING) & ~(
        values.readers_of(values.nodes_of(("Const",)), position=1) & values.nodes_of(table.DIVIDING)
    )
    of_roots = values.nodes_of(table.RANGING_GRADIENTS)
    scaling = values.nodes_of({"Mul", *table.DIVIDING}) & values.readers_of(values.nodes_of(table.CONSTANTS))
    of_roots |= values.downstream(of_roots, through=scaling | (flow.is_open & ~flow.computes))
    edges = values.view.edges
    read = edges.at(values.nodes_of(("Mul",))[edges.dst_node])
    first, second = read.at(read.dst_position == 0), read.at(read.dst_position == 1)
    squares = np.zeros_like(ranging)
    if len(first) == len(second):  # a broken graph may lack inputs
        squares[first.dst_node[(first.src_node == second.src_node) & (first.src_port == second.src_port)]] = True
    return ranging | squares | by_reciprocals | values.readers_of(of_roots)


def _is_nearly_one(precision: Precision, sizes: Any) -> bool:
    return bool(sizes.size == 1 and sizes[0] != 1 and precision.rounds_to_one(float(sizes[0])))


def _holds(precision: Precision, values: Any) -> bool:
    """Whether no finite value would be infinite, not all that are not zero would be zero, and a single one not one.

    Some of the many values of a table of weights are always too small, and lost without harm.
    """
    sizes = np.abs(values[np.isfinite(values) & (values != 0)])
    if _is_nearly_one(precision, sizes):
        return False
    return bool(not sizes.size or (precision.smallest / 2 < sizes.max() <= precision.max_finite))
