"""What folding (:mod:`amp_tf.rewriting.folding`) changed, as far as the painting must know."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Folded:
    """Nodes that have another meaning since normalization was folded into the convolutions before it.

    Attributes:
        scales: multiplications that now scale a filter; they stay in float32, so that the filter is rounded once.
        fused: biases, residual sums and activations that TensorFlow's remapper, which runs after amp_tf, computes
            together with a convolution if both have one type. By themselves they cost nothing then.
    """

    scales: frozenset[int] = frozenset()
    fused: frozenset[int] = frozenset()


NOTHING_FOLDED = Folded()
