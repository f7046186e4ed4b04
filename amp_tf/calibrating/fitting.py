"""Fits a row of the cost table to measured times of products."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from amp_tf.oplists.cost_tables import FEW_OPERATIONS, ProductCost

PRIOR_WEIGHT = 0.1  #: how much a figure that is ten times the shipped one counts, beside a product that is off by 90 %
_LEAST_NS = 1e-9  # of an operation; a rate must be finite
_LEAST_ELEMENT_NS = 1e-3  # that counts as prior where the shipped table has none
_USUAL_SHARE = 0.5  # that computing alone adds to an operation; what is far from it is doubted where no table says so


def fit(work: Sequence[tuple[float, float]], times: Sequence[float], shipped: ProductCost) -> ProductCost:
    """The nonnegative figures with the least relative error of the times.

    Four figures can fit some twenty noisy times in many ways: where the times do not decide, the shipped table's
    figures count, all scaled by one factor.

    Args:
        work: of each product, its operations and its elements.
        times: what each took, in ns.
        shipped: the figures of the shipped table.
    """
    rows = np.array([(operations, elements, 1.0, min(operations, FEW_OPERATIONS)) for operations, elements in work])
    expected = [shipped.of(operations, elements) for operations, elements in work]
    scale = float(np.median(np.divide(times, expected)))
    alone = shipped.alone or _USUAL_SHARE / shipped.rate
    prior = scale * np.array([1 / shipped.rate, max(shipped.ns, _LEAST_ELEMENT_NS), max(shipped.start, 1.0), alone])
    matrix = np.concatenate([rows / np.array(times)[:, None], PRIOR_WEIGHT * np.diag(1 / prior)])
    wanted = np.concatenate([np.ones(len(rows)), PRIOR_WEIGHT * np.array([1, 1, 1, bool(shipped.alone)])])
    per_operation, per_element, start, alone = _least_squares(matrix, wanted)
    return ProductCost(1 / max(per_operation, _LEAST_NS), per_element, start, alone)


def _least_squares(matrix: np.ndarray, wanted: np.ndarray) -> Sequence[float]:
    """The least-squares solution without negative numbers: the best of those that drop some columns."""
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
