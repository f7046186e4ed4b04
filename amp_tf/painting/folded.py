"""What folding and lifting (:mod:`amp_tf.rewriting`) changed, as far as the painting must know."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Folded:
    """Nodes that have another meaning or place since the graph was prepared for the painting.

    Attributes:
        scales: multiplications that now scale a filter; they stay in float32, so that the filter is rounded once.
        fused: biases, residual sums and activations that TensorFlow's remapper, which runs after amp_tf, computes
            together with a convolution if both have one type. By themselves they cost nothing then.
        lifted: biases and activations that now stand between a matrix product and its reshaping, and are computed with
            it if they have its type.
    """

    scales: frozenset[int] = frozenset()
    fused: frozenset[int] = frozenset()
    lifted: frozenset[int] = frozenset()


NOTHING_FOLDED = Folded()
