"""Cycles and paths of the value graph."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from amp_tf.graph.reader import read_graph
from amp_tf.graph.templates import Templates
from amp_tf.painting.value_graph import ValueGraph, find_edges
from tests.small_graphs import graph

SMALL = """
    x = Placeholder()
    square = Mul(x, x)
    half = Mul(square, x)
    sum = AddV2(half, square)
    bool = Greater(sum, x)
    end = Sqrt(sum)
"""


def made(links: Sequence[tuple[int, int]] = (), computes: np.ndarray | None = None) -> ValueGraph:
    """The value graph of the small graph, of which each node computes by default."""
    view = read_graph(graph(SMALL), Templates())
    ends = view.edges
    edges = find_edges(view, (ends.src_unit, ends.dst_unit, ends.dst_position), links)
    none = np.zeros(6, np.bool_)
    if computes is None:
        computes = ~none
    masks = dict.fromkeys(("products", "users", "is_open", "closing"), none)
    return ValueGraph(view, *edges, **masks, computes=computes)


def on_cycles(
    values: ValueGraph, through: np.ndarray, closing: np.ndarray, links: np.ndarray
) -> list[int]:
    """Returns the numbers of the nodes on cycles."""
    return np.flatnonzero(values.on_cycles(through, closing, links)).tolist()


def test_a_cycle_is_found_where_a_node_or_links_close_it() -> None:
    values = made()
    every = np.ones(6, np.bool_)
    half = np.arange(6) == 2
    no_links = np.zeros((2, 0), np.int32)
    assert not on_cycles(values, every, half, no_links)
    link = np.array([[5], [2]])  # from the end to the half
    assert on_cycles(values, every, ~every, link) == [2, 3, 5]
    linked = made([(5, 2)])
    assert on_cycles(linked, every, half, no_links) == [2, 3, 5]


@pytest.mark.parametrize("seed", range(60))
def test_cycles_are_what_reaches_itself_together(seed: int) -> None:
    dice = np.random.default_rng(seed)
    count = dice.integers(0, 9)
    links = dice.integers(0, 6, (count, 2)).T
    through = dice.random(6) < 0.8
    computes = dice.random(6) < 0.6
    values = made(computes=computes)
    reaches = np.zeros((6, 6), np.bool_)
    reaches[values.sources, values.readers] = True
    reaches[tuple(links)] = True
    reaches &= through[:, None] & through
    for middle in range(6):
        reaches |= reaches[:, middle, None] & reaches[middle]
    together = reaches & reaches.T
    wanted = []
    for node, row in enumerate(together):
        if row.sum() > 1 and computes[row].any():
            wanted.append(node)
    none = np.zeros(6, np.bool_)
    assert on_cycles(values, through, none, links) == wanted
    closed = made(links.T.tolist(), computes)
    closing = np.isin(range(6), links[1])
    assert on_cycles(closed, through, closing, links[:, :0]) == wanted


def test_the_heaviest_path_counts_weights_on_both_sides() -> None:
    values = made()
    every = np.ones(6, np.bool_)
    given = np.array([0, 3, 5, 1, 0, 0])
    weights, between = values.heaviest_paths(every, given)
    assert weights.tolist() == [9] * 6
    names = np.array(values.view.names)
    assert names[between].tolist() == ["square", "half", "sum"]
