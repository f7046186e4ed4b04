"""Norms: roots of sums of squares, by which all values of a vector are then divided."""

from __future__ import annotations

from amp_tf.oplists.table import ADDING, BOUNDS, ROOTS, SCALING, SUBTRACTING, TOTALS
from amp_tf.painting.canvas import Canvas
from amp_tf.painting.reasons import Rule


def keep_norms(canvas: Canvas) -> None:
    """The root of a sum or mean of squares is painted deny, from the squares on.

    One rounding of it changes a whole vector alike, so that the sums that follow do not average it away; and there
    would be three or four, of the sum, of the sum with epsilon, and of the root. RMSNorm and ``tf.math.l2_normalize``
    are written so; :func:`amp_tf.painting.differences.keep_differences` does the same for variances.

    Difference "norm": TensorFlow has all of it on its infer list.

    Example (bfloat16)::

        axis = Const() dtype=int32 value=int32[]*1
        allow1 = MatMul(x, x)                       f16
        squares = Square(allow1)                    f16 → float32
        mean = Mean(squares, axis) keep_dims=true   f16 → float32
        root = Rsqrt(mean)                          f16 → float32
        normal = Mul(allow1, root)                  f16
        allow2 = MatMul(normal, x)                  f16
    """
    flow = canvas.flow
    values, is_open = flow.unmasked, flow.is_open & ~flow.results
    roots = values.nodes_of(ROOTS) & is_open
    totals = values.nodes_of(TOTALS) & is_open
    squares = values.squares() & is_open if roots.any() and totals.any() else roots
    totals &= values.readers_of(squares)
    if not totals.any():
        return
    between = is_open & (values.nodes_of({*ADDING, *SCALING, *BOUNDS} - SUBTRACTING) | ~flow.computes)
    to_roots = roots | values.upstream(roots, through=between)
    totals &= values.sources_of(to_roots)
    of_totals = values.downstream(totals, through=to_roots)
    canvas.keep((squares & values.sources_of(totals)) | totals | of_totals, Rule.NORM)
