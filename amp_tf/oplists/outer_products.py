"""Products that sum nothing: each of their results is one multiplication, whatever their op.

Rotary and sinusoidal embeddings write position times frequency as an Einsum, "bi,j->bij". The hardware is no faster in
16 bit at what sums nothing, and the sine of such an angle means nothing once the position is rounded: of integers,
bfloat16 holds all up to 256, float16 up to 2,048.

A MatMul with an inner dimension of 1 would be the same, but XLA's functions carry no shapes.
"""

from __future__ import annotations

from typing import Any

#: Ops whose nodes may sum nothing, and the op as which such nodes are judged.
JUDGED_AS = {"Einsum": "Mul"}


def sums_nothing(node: Any) -> bool:
    """Whether every label of an Einsum's inputs is a label of its result; an ellipsis counts as one.

    Args:
        node: the NodeDef of an op in :data:`JUDGED_AS`.
    """
    equation = node.attr.get("equation")  # a look-up by index would add what a broken graph lacks
    if equation is None:
        return False
    inputs, arrow, result = equation.s.replace(b" ", b"").partition(b"->")
    return bool(arrow) and set(inputs.replace(b",", b"")) <= set(result)
