"""Where values go: floods, cycles and the heaviest paths, on a graph that is small enough to count by hand."""

from __future__ import annotations

import numpy as np
import pytest

from amp_tf.graph.reader import read_graph
from amp_tf.graph.templates import Templates
from amp_tf.painting.flow import Values
from tests.small_graphs import graph

TEXT = """
    x = Placeholder()
    square = Mul(x, x)
    half = Mul(square, x)
    sum = AddV2(half, square)
    bool = Greater(sum, x)
    end = Sqrt(sum)
"""


@pytest.fixture
def values() -> Values:
    view = read_graph(graph(TEXT), Templates())
    return Values(view, view.edges.src_unit, view.edges.dst_unit, view.unit_nodes())


def names(values: Values, mask: np.ndarray) -> str:
    return " ".join(values.view.names[node] for node in np.flatnonzero(mask))


def mask(values: Values, *wanted: str) -> np.ndarray:
    return np.array([name in wanted for name in values.view.names])


def test_floods_go_through_what_is_open_and_reach_nothing_else(values: Values) -> None:
    everything = np.ones(6, np.bool_)
    assert names(values, values.downstream(mask(values, "square"), everything)) == "half sum bool end"
    assert names(values, values.downstream(mask(values, "square"), mask(values, "half", "end"))) == "half"
    assert names(values, values.upstream(mask(values, "end"), everything)) == "x square half sum"


def test_neighbours(values: Values) -> None:
    assert names(values, values.readers_of(mask(values, "half"))) == "sum"
    assert names(values, values.sources_of(mask(values, "sum"))) == "square half"
    assert names(values, values.readers_of(mask(values, "half"), position=0)) == "sum"
    assert names(values, values.readers_of(mask(values, "half"), position=1)) == ""


def test_a_cycle_is_found_where_links_close_it(values: Values) -> None:
    everything = np.ones(6, np.bool_)
    assert values.cycles(everything) == []
    (cycle,) = values.cycles(everything, [(5, 2)])  # from the end to the half
    assert sorted(cycle) == [2, 3, 5]


@pytest.mark.parametrize("seed", range(60))
def test_cycles_are_what_reaches_itself_together(seed: int, values: Values) -> None:
    dice = np.random.default_rng(seed)
    links = dice.integers(0, 6, (dice.integers(0, 9), 2))
    through = dice.random(6) < 0.8
    reaches = np.zeros((6, 6), np.bool_)
    reaches[values.sources, values.readers] = True
    reaches[tuple(links.T)] = True
    reaches &= through[:, None] & through
    for middle in range(6):
        reaches |= reaches[:, middle, None] & reaches[middle]
    together = reaches & reaches.T
    wanted = {frozenset(np.flatnonzero(row).tolist()) for row in together if row.sum() > 1}
    assert {frozenset(cycle) for cycle in values.cycles(through, links.tolist())} == wanted


def test_the_heaviest_path_counts_weights_on_both_sides(values: Values) -> None:
    weights, between = values.heaviest_paths(np.ones(6, np.bool_), np.array([0, 3, 5, 1, 0, 0]))
    assert weights.tolist() == [9, 9, 9, 9, 9, 9]
    assert names(values, between) == "square half sum"
