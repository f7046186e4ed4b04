"""Promotion by origin: a value that is exact to 24 bits and meets what a product gave keeps float32.

NumPy, torch's autocast and Keras promote: float16 and float32 make float32. TensorFlow's pass casts the float32 side
down instead. Where that side is a coordinate, a time or a phase, the sum is rounded at its size, and what the network
contributed is gone: 5,000 m and a step of 0.1 m are 5,008 m or 4,992 m in bfloat16.

Each value has an origin. *Product*: made by products and what follows them; it carries a rounding of its own size
already. *Parameter*: variables such as biases, which are small beside what they join, tensors that a trace captured,
random numbers, and constants below :data:`GREAT`. *Exact*: what a program is given, counts, great constants, and the
weights of products: what is added to one is an update. *Joined*: exact and product, by an op that keeps absolute sizes:
an addition, a concatenation, a choice. To multiply joins nothing, because the error of a product stays relative; so a
factor that comes from a product ends what is exact, and so do ops whose result is bounded or normalized. Numbers that
stand for never, as in masks, are not joined to be kept: beside them all else is to vanish.

Not covered: exact data that a trace captured; parameters that are not small; sums that leave float16's range; and ops
that need more of a product's value alone (:func:`amp_tf.painting.exact.keep_whole_numbers`).
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from amp_tf.graph import datatypes
from amp_tf.graph.attributes import of_constants
from amp_tf.graph.datatypes import Mask
from amp_tf.graph.view import GraphView
from amp_tf.oplists.table import (
    ADDING,
    BIASES,
    CASTS,
    ENDING_ORIGINS,
    GIVEN,
    HANDING_ON,
    MULTIPLIED,
    RANGES,
    READ_OPS,
    REFERENCE_VARIABLES,
    STORING,
)
from amp_tf.painting.values import Values

GREAT = 16.0  #: constants of this size are no longer small beside activations
NEVER = 1e4  #: and those of this size stand for never


@dataclasses.dataclass(frozen=True)
class Origins:
    """Where the values of a graph come from.

    Attributes:
        exact: the nodes whose results are as large as something exact, or that read such a value.
        product: the nodes behind a product, up to the next.
    """

    exact: Mask
    product: Mask

    @property
    def joined(self) -> Mask:
        """The nodes that have both."""
        return self.exact & self.product

    @classmethod
    def of(cls, values: Values, users: Mask) -> Origins:
        """
        Args:
            values: the graph.
            users: products, and calls of functions that compute some.
        """
        product = values.downstream(users, through=~users)
        sizes = of_constants(values.view, _largest, np.float32)
        given = _given(values.view) | _updates(values, users) | ((sizes >= GREAT) & (sizes < NEVER))
        multiplied = values.nodes_of(MULTIPLIED)
        masks = multiplied & values.readers_of(sizes >= NEVER)
        ends = values.nodes_of(ENDING_ORIGINS) | values.nodes_of(STORING)
        behind = product | users
        other_products = values.count_readings(behind)[values.readers] - behind[values.sources]
        drops = multiplied[values.readers] & (other_products > 0)
        drops |= values.nodes_of(BIASES)[values.readers] & (values.positions == 1)
        drops |= (users | masks)[values.readers] | ends[values.sources]
        return cls(given | values.along(given, ~drops), product)


def _updates(values: Values, users: Mask) -> Mask:
    """Additions to a weight that a product reads as it is."""
    variables = values.nodes_of({*READ_OPS, *REFERENCE_VARIABLES})
    read = variables & values.upstream(users, through=variables | values.nodes_of(HANDING_ON))
    read |= values.downstream(read, through=values.nodes_of(HANDING_ON))
    return values.nodes_of(ADDING) & values.readers_of(read)


def _given(view: GraphView) -> Mask:
    """The nodes that give exact values which no node of the graph computes."""
    given = view.mask_with(frozenset({*GIVEN, *RANGES}))
    given[view.given_arguments()] = True
    for node in view.nodes_with(CASTS):
        source = view.signatures[node].slot_of("SrcT")
        given[node] |= source is not None and view.dtypes[view.base[node] + source] in datatypes.INTEGERS
    return given


def _largest(values: npt.NDArray[np.float32]) -> float:
    """The largest finite number by size, zero if there is none."""
    sizes = np.abs(values[np.isfinite(values)])
    return float(sizes.max()) if sizes.size else 0.0
