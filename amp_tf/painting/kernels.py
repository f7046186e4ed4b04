"""Inexact kernels: those whose 16-bit form loses more than one rounding.

A sum that is kept in the 16-bit type stops growing: 256 + 1 is 256 in bfloat16. Elu and Selu
compute exp(x) - 1 in 16 bit, and LogSoftmax takes the logarithm of a sum that is rounded to 1.
``tests/oplists/test_kernel_accuracy.py`` runs all elementwise kernels on every 16-bit number: on
CPUs the other ones lose at most 8 units in the last place.
"""

from __future__ import annotations

from collections.abc import Callable

from amp_tf.graph.datatypes import Unit, indices, mask_of
from amp_tf.oplists import table
from amp_tf.oplists.targets import CPU_DEVICE, Target
from amp_tf.painting.canvas import Canvas
from amp_tf.painting.decisions import Decision, Verdict
from amp_tf.painting.reasons import Code

#: Ops whose 16-bit kernels lose more than a rounding, with the reason and the targets.
INEXACT: tuple[tuple[frozenset[str], Code, Callable[[Target], bool]], ...] = (
    (table.SUMS_IN_ITS_TYPE, Code.SUMS, lambda target: target.device_type == CPU_DEVICE),
    # oneDNN's kernel of AvgPool adds in float32. It is there for bfloat16 on some CPUs alone.
    (table.SUMS_IN_EIGEN, Code.SUMS, lambda target: target.runs_eigen),
    (table.INACCURATE, Code.INACCURATE, lambda _: True),
)


def take_inexact_off_lists(canvas: Canvas) -> Canvas:
    """Takes ops off their list whose 16-bit kernels lose more than one rounding.

    Difference "inexact-kernel": TensorFlow has ScatterNd among the ops that move values, and
    AvgPool, Elu, Selu and LogSoftmax on its infer list. In bfloat16 the Elu of -1e-4 is 0, and so
    is the logarithm of a probability of 0.996.

    Example (bfloat16)::

        allow1 = MatMul(x, x)                                  f16
        sums = ScatterNd(cells, allow1, shape) Tindices=int32  f16 → float32
        allow2 = MatMul(sums, x)                               f16
        elu1 = Elu(allow2)                                     f16 → float32
        allow3 = MatMul(elu1, x)                               f16
    """
    for ops, reason, applies in INEXACT:
        if not applies(canvas.target):
            continue
        units = canvas.view.units_with(ops) & canvas.spreading & canvas.is_float32
        if units.any():
            unlisted = Decision(Verdict.NOTE, indices(units), reason)
            canvas = canvas.relisted(units).after(unlisted)
    return canvas


def take_bounded_off_deny(canvas: Canvas) -> Canvas:
    """Takes exponentials of values up to zero off the deny list.

    Such an exponential lies between zero and one, and may be rounded once. It is still computed in
    float32, but no longer keeps its users in float32. So the gradient of an exact Gelu, which is
    the sum of a gradient through the error function and one of the factor, may be 16 bit like the
    products around it.

    Difference "inexact-kernel": TensorFlow has all exponentials on its deny list, for the range.

    Example (bfloat16)::

        allow1 = MatMul(x, x)          f16
        square = Square(x)
        negative = Neg(square)
        bounded = Exp(negative)
        infer1 = Mul(allow1, bounded)  float32 → f16
        infer2 = Mul(infer1, x)        float32 → f16
        allow2 = MatMul(infer2, x)     f16
    """
    view = canvas.view
    bounded: list[Unit] = []
    for node in view.nodes_with(("Exp",)):
        negation, _ = view.inputs(node)[0]
        if view.ops[negation] in table.NEGATING:
            source, _ = view.inputs(negation)[0]
            if view.ops[source] in table.UNSIGNED:
                bounded += view.units(node)
    if not bounded:
        return canvas
    return canvas.relisted(canvas.on_deny & mask_of(bounded, view.unit_count))
