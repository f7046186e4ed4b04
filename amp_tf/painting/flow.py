"""Where the values of a painted graph go: what the rules of the numerical contract ask."""

from __future__ import annotations

import dataclasses
import functools

from amp_tf.graph.datatypes import Mask
from amp_tf.oplists.table import STORING
from amp_tf.painting.origins import Origins
from amp_tf.painting.values import Values


@dataclasses.dataclass(frozen=True)
class Flow:
    """The values of a graph and what their nodes are.

    Attributes:
        values: the graph at the level of nodes.
        unmasked: the values without edges that only mask others.
        products: the nodes that are painted allow.
        users: products, and calls of functions that compute some.
        is_open: the nodes that the lists may still convert: infer and clear ones of float32.
        computes: those of the infer list: each may round.
    """

    values: Values
    unmasked: Values
    products: Mask
    users: Mask
    is_open: Mask
    computes: Mask

    @functools.cached_property
    def results(self) -> Mask:
        """The nodes that no product uses, not even by way of others."""
        values = self.values
        return ~values.upstream(self.users, through=~values.nodes_of(STORING)) & ~self.users

    @functools.cached_property
    def origins(self) -> Origins:
        """Where values come from."""
        return Origins.of(self.unmasked, self.users)
