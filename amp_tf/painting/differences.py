"""Differences of values that are nearly alike, and what becomes of them.

x - y is exact, but where x and y are alike and rounded, it is made of their roundings. That does no harm to the sum of
a million such differences; a quotient, a root, a logarithm or an exponential shows it at full size: a variance below
zero, ``tf.image.ssim`` of infinity. A variance is found as the difference of squares that it mostly is.

In practice these are the statistics of every normalization that is written in plain operations, which Keras' own policy
keeps in float32, too. Where two products are subtracted and the difference is divided (``tf.image.ssim``), they are
float32 themselves, or nothing that follows can help. x - mean(x) does not count as two products, or all of a network
with batch normalization would.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from amp_tf.graph.indices import Mask
from amp_tf.oplists.table import (
    ADDING,
    BIASES,
    DECOMPOSING,
    DIVIDING,
    EXPONENTIALS,
    FUSED_PRODUCTS,
    HANDING_ON,
    LINEAR,
    LOG_VALUES,
    LOGARITHMS,
    LONG_PRODUCTS,
    MAGNIFYING,
    NORMALIZING,
    RECIPROCALS,
    SHARES,
    SUBTRACTING,
    SUMS_IN_BFLOAT16,
    TOTALS,
    UNSIGNED,
)
from amp_tf.painting.canvas import Canvas, units_of
from amp_tf.painting.flow import Flow
from amp_tf.painting.reasons import FORCED, KEPT, Rule
from amp_tf.painting.values import Values

FARTHEST = 64  #: nodes behind a difference among which its products are looked for


def keep_differences(canvas: Canvas) -> None:
    """A difference that is then divided, rooted, logged or exponentiated is painted deny, from its products to there.

    Such are variances, distances, normalized values, and 1 - p in a logarithm. A difference of squares is one whatever
    follows, so is one of logarithms, and one of a prediction and what is given on its way to a loss: a label of 2,000.3
    is 2,000. So is one of two predictions with a bias each. So is all else of which a logarithm is taken, that a matrix
    is decomposed of, or of which many are multiplied: of values near one it is their distance from one. A value that
    joins by an addition from elsewhere ends the search: what is left of the difference is one term of many.

    Where both sides of such a difference are made of products, and of others, the products are painted deny as well: of
    E[x²] - E[x]² by two convolutions nothing is left once each is rounded. Where both come from one product, as in
    x - mean(x), they share its rounding. So is the product of a prediction whose kernel adds the bias.

    A difference that no product uses changes nothing of what products use. Where an optimizer divides gradient minus
    momentum, the gradient's way back to the layer may be 16 bit, but not what a loss takes logarithms of. A sum after
    the last product ends the search, too, unless its terms lost their signs: the roundings in it have either sign. So
    the gradient of a bias may be divided by a loss scale or a norm. What passes a product's values through unchanged
    may be 16 bit.

    Difference "difference": TensorFlow converts them where they lie between or follow products.

    Example (bfloat16)::

        allow1 = MatMul(x, x)           f16
        difference = Sub(bias, allow1)  f16 → float32
        root = Sqrt(difference)         f16 → float32
        allow2 = MatMul(root, x)        f16
    """
    flow, terms = canvas.flow, _Terms.of(canvas.flow)
    differences = terms.differences()
    errors = terms.errors(differences)
    logged = terms.read_as_they_are(differences)
    shown = terms.magnified(differences) | logged
    read, magnified = logged | errors, shown | errors
    behind = flow.unmasked.upstream((magnified & ~flow.results) | read, through=terms.computing)
    results = terms.computing & flow.results & ~flow.values.nodes_of(SUMS_IN_BFLOAT16)
    behind |= flow.unmasked.upstream(magnified & flow.results, through=results)
    canvas.keep(magnified | (behind & ~flow.rounded_already()), Rule.DIFFERENCE)
    fused = terms.products_with_bias(errors | (differences & shown) | logged)
    _keep_products(canvas, terms.products_that_differ(differences & shown) | fused)


def keep_centred(canvas: Canvas) -> None:
    """A value minus its mean, as in the gradient of a variance or of a softmax, is painted deny, with that mean.

    Such rows add up to zero, and to something else where the mean is rounded beside its values, or, of a weighted mean,
    the weights do not add up to one because each was rounded; so the softmax is painted deny, too. What is large in all
    columns alike would come back in the gradients of queries and keys, and of the layer before a normalization.

    Difference "difference": as :func:`keep_differences`.

    Example (bfloat16)::

        axis = Const() dtype=int32 value=int32[]*1
        allow1 = MatMul(x, x)                       f16
        weighted = Mul(allow1, x)                   f16 → float32
        mean = Sum(weighted, axis) keep_dims=true   f16 → float32
        centred = Sub(allow1, mean)                 f16 → float32
        allow2 = MatMul(centred, x)                 f16
    """
    flow = canvas.flow
    values, is_open = flow.unmasked, flow.is_open & ~flow.results
    factors, weights = (values.nodes_of(ops) & is_open for ops in (("Mul",), SHARES))
    moving = is_open & ~flow.computes
    totals = values.nodes_of(TOTALS) & ~flow.results  # on float16's deny list
    found = np.zeros(canvas.view.node_count, np.bool_)
    if not totals.any():
        return

    def way_back(node: int) -> list[int]:
        """A node, and the nodes that only move its value to it, back to the one that computed it."""
        way = [node]
        while moving[way[-1]] and len(way) < FARTHEST and len(sources := values.sources_at(way[-1])) == 1:
            way += sources
        return way

    near = totals | values.downstream(totals, through=moving)
    for node in np.flatnonzero(values.nodes_of(SUBTRACTING) & is_open & values.readers_of(near)).tolist():
        sources = values.sources_at(node)
        for way in map(way_back, sources):
            for summed in values.sources_at(way[-1]) if totals[way[-1]] else ():
                terms = values.sources_at(summed)
                if summed in sources:
                    found[[node, *way]] = True
                elif factors[summed] and set(terms) & set(sources):
                    found[[node, *way, summed]] = True
                    found[terms] |= weights[terms]
    canvas.keep(found, Rule.CENTRED)


def promote_differences(canvas: Canvas) -> None:
    """A difference of which one side is float32 for the contract's sake stays in float32.

    Of a loop's state minus where it began, or a sum minus one of its terms, a small part is left; to round the side
    that is exact would lose it, and saves no cast.

    Difference "difference": as :func:`keep_differences`.

    Example (bfloat16)::

        allow1 = MatMul(x, x)          f16
        more = AddV2(allow1, bias)
        logged = Log(more)
        left = Sub(more, allow1)       f16 → float32
        allow2 = MatMul(left, logged)  f16
    """
    values = canvas.flow.values
    kept = canvas.nodes_of(np.isin(canvas.rule, sorted(KEPT)))
    kept |= values.downstream(kept, through=values.nodes_of(HANDING_ON))
    promoted = values.nodes_of(SUBTRACTING) & values.readers_of(kept)
    free = canvas.view.spread(promoted) & ~np.isin(canvas.rule, sorted(FORCED))
    canvas.unpaint_allow(units_of(free), Rule.DIFFERENCE)


@dataclasses.dataclass(frozen=True)
class _Terms:
    """What the nodes of a graph are for its differences.

    Attributes:
        flow: where the graph's values go.
        values: where its values go; what only masks others left out.
        computing: what may be computed in 16 bit, or is linear on whatever list; not products.
        moving: what only moves values.
        adding: what adds or subtracts.
        divided: multiplications by a reciprocal.
    """

    flow: Flow
    values: Values
    computing: Mask
    moving: Mask
    adding: Mask
    divided: Mask

    @classmethod
    def of(cls, flow: Flow) -> _Terms:
        values = flow.unmasked
        linear = values.nodes_of({*LINEAR, *SUBTRACTING}) & ~flow.users
        moving, factors = flow.is_open & ~flow.computes, values.nodes_of(("Mul",)) & ~flow.users
        return cls(
            flow=flow,
            values=values,
            computing=flow.is_open | linear,
            moving=moving,
            adding=values.nodes_of(ADDING) & linear,
            divided=values.downstream(values.nodes_of(RECIPROCALS), through=factors | moving) & factors,
        )

    def differences(self) -> Mask:
        """Differences, additions of a difference or of a negative value, and sums that are exponentiated.

        TensorFlow's optimizers make b + (c - a) of (b - a) + c, and logarithms of what cancels have different signs.
        """
        values = self.values
        subtracted = values.nodes_of(SUBTRACTING) & self.computing
        signed = subtracted | values.nodes_of(("Neg",))
        signed |= values.downstream(signed, through=self.moving)
        exponentials = values.nodes_of(EXPONENTIALS)
        exponents = values.sources_of(exponentials | values.upstream(exponentials, through=self.moving))
        return subtracted | (self.adding & (values.readers_of(signed) | exponents))

    def magnified(self, differences: Mask) -> Mask:
        """The differences whose roundings are shown at full size, with what lies between them and where they are."""
        values = self.values
        # x * r + (b - m * r): the sum of what was divided by one deviation
        found = self.adding & (values.count_readings(self.divided | differences) > 1) & values.readers_of(self.divided)
        found |= self._normalized_offsets()
        if not differences.any():
            return found
        squares = values.squares()
        found |= differences & values.readers_of(squares | values.downstream(squares, through=self._linear()))
        products = self.flow.products
        fresh = values.downstream(products, through=self.computing & ~differences)
        joined = self.adding & values.readers_of(fresh | products) & ~differences
        left = values.downstream(differences, through=self.computing & ~joined & ~self._averaged()) | differences
        # A quotient by a constant is the product that TensorFlow's optimizers make of it.
        shown = (values.nodes_of(MAGNIFYING) & ~(values.nodes_of(DIVIDING) & values.by_constants())) | self.divided
        return found | (self.divided & left) | values.upstream(shown, through=left)

    def _averaged(self) -> Mask:
        """Sums after the last product whose terms have either sign, so that roundings cancel: gradients of biases."""
        values, results = self.values, self.flow.results
        unsigned = values.squares() | values.nodes_of(UNSIGNED)
        unsigned |= values.downstream(unsigned, through=self.computing)
        return values.nodes_of({*TOTALS, *SUMS_IN_BFLOAT16}) & results & ~unsigned

    def read_as_they_are(self, differences: Mask) -> Mask:
        """Logarithms, decompositions and products of many factors, and differences of logarithms."""
        values = self.values
        logarithms = values.nodes_of(LOG_VALUES)
        logarithms |= values.downstream(logarithms, through=self.moving)
        quotients = differences & (values.count_readings(logarithms) > 1)
        return values.nodes_of({*LOGARITHMS, *DECOMPOSING, *LONG_PRODUCTS}) | quotients

    def errors(self, differences: Mask) -> Mask:
        """Differences of a prediction and what is given, or of two with an offset, of which a loss is made.

        And, whatever is made of it, of a value with an offset and something exact, which may be as large.
        """
        values = self.values
        numbers = values.nodes_of(TOTALS) & self.flow.results
        of_losses = numbers | values.upstream(numbers, through=~self.flow.users)
        offsets = self.offsets
        sums = offsets & (self.adding | values.nodes_of(BIASES))
        moved = sums | values.downstream(sums, through=self._linear())
        centred = values.nodes_of(SUBTRACTING) & self.flow.origins.joined & values.readers_of(moved)
        return differences & ((of_losses & (offsets | values.readers_of(moved))) | centred)

    @functools.cached_property
    def offsets(self) -> Mask:
        """What reads values behind a product, and others beside them."""
        values, products = self.values, self.flow.products
        fed = values.count_readings(products | values.downstream(products, through=self.computing))
        return (fed > 0) & (fed < values.count_inputs())

    def products_with_bias(self, errors: Mask) -> Mask:
        """The products whose kernels add a bias to what errors are made of: their result is rounded with it."""
        values = self.values
        moved = values.upstream(errors, through=self.moving)
        return self.flow.products & values.nodes_of(FUSED_PRODUCTS) & values.sources_of(errors | moved)

    def _normalized_offsets(self) -> Mask:
        """Normalizations in one op that take off what was added before: the sum would be rounded beside the offset."""
        values = self.values
        normalizing = values.nodes_of(NORMALIZING) & self.flow.is_open
        if not normalizing.any():
            return normalizing
        return normalizing & values.downstream(self.adding & self.offsets, through=self.computing)

    def products_that_differ(self, differences: Mask) -> Mask:
        """The products behind the two sides of differences, where both sides have some and not the same."""
        values, linear, products = self.values, self._linear(), self.flow.products
        fed = products | values.downstream(products, through=linear)
        found = np.zeros(values.view.node_count, np.bool_)

        def fed_sources(node: int) -> list[int]:
            return [source for source in values.sources_at(node) if fed[source]] if linear[node] else []

        def origin(node: int) -> int:
            """The last node before this one where values of several products meet; x and mean(x) have the same."""
            seen = set()
            while node not in seen and len(sources := set(fed_sources(node))) == 1:
                seen.add(node)
                (node,) = sources
            return node

        def products_behind(node: int) -> set[int]:
            seen, waiting = {node}, [node]
            while waiting and len(seen) < FARTHEST:
                fresh = set(fed_sources(waiting.pop())) - seen
                seen |= fresh
                waiting += fresh
            return {node for node in seen if products[node]}

        for node in np.flatnonzero(differences).tolist():
            sources = values.sources_at(node)
            if len(sources) == 2 and fed[sources].all() and origin(sources[0]) != origin(sources[1]):
                sides = [products_behind(source) for source in sources]
                if sides[0] != sides[1]:
                    found[list(sides[0] | sides[1])] = True
        return found

    def _linear(self) -> Mask:
        """What keeps the roundings of a product as large as they are."""
        return self.moving | (self.values.nodes_of(LINEAR) & self.computing)


def _keep_products(canvas: Canvas, nodes: Mask) -> None:
    if not nodes.any():
        return
    canvas.keep_allowed(units_of(canvas.view.spread(nodes)), Rule.DIFFERENCE)
