"""Fits what products take to what was measured."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from amp_tf.oplists.cost_tables import ProductCost

PRIOR_WEIGHT = 0.1  #: how much a figure that is ten times the shipped one counts, beside a product that is off by 90 %
_LEAST_NS = 1e-9  # of an operation; a rate must be finite


def fit(work: Sequence[tuple[float, float]], times: Sequence[float], shipped: ProductCost) -> ProductCost:
    """The figures by which the times are off least, relatively, of which none is negative.

    Three figures from some twenty noisy times may fit in many ways: where the times do not tell, those of the shipped
    table, all made faster or slower alike, count.

    Args:
        work: of each product, its operations and its elements.
        times: what each took, in ns.
        shipped: the figures of the shipped table.
    """
    rows = np.array([(operations, elements, 1.0) for operations, elements in work])
    expected = [shipped.of(operations, elements) for operations, elements in work]
    scale = float(np.median(np.divide(times, expected)))
    prior = scale * np.array([1 / shipped.rate, shipped.ns, max(shipped.start, 1.0)])
    matrix = np.concatenate([rows / np.array(times)[:, None], PRIOR_WEIGHT * np.diag(1 / prior)])
    wanted = np.concatenate([np.ones(len(rows)), np.full(3, PRIOR_WEIGHT)])
    per_operation, per_element, start = _least_squares(matrix, wanted)
    return ProductCost(1 / max(per_operation, _LEAST_NS), per_element, start)


def _least_squares(matrix: np.ndarray, wanted: np.ndarray) -> Sequence[float]:
    """The solution without negative numbers: the best of those that set some columns aside."""
    columns = range(matrix.shape[1])
    best: tuple[float, list[float]] = (np.inf, [0.0 for _ in columns])
    for count in range(1, len(columns) + 1):
        for chosen in itertools.combinations(columns, count):
            found, *_ = np.linalg.lstsq(matrix[:, chosen], wanted, rcond=None)
            error = float(np.square(matrix[:, chosen] @ found - wanted).sum())
            if found.min() >= 0 and error < best[0]:
                values = dict(zip(chosen, found.tolist(), strict=True))
                best = error, [values.get(column, 0.0) for column in columns]
    return best[1]
