from __future__ import annotations

import numpy as np
import pytest

from amp_tf.config import AmpConfig
from amp_tf.graph.reader import read_graph
from amp_tf.graph.templates import Templates
from amp_tf.graph.view import Adjacency
from amp_tf.oplists.hardware import Hardware
from amp_tf.oplists.targets import resolve_target
from amp_tf.painting.canvas import NO_CAUSE, Canvas, units_of
from amp_tf.painting.eligibility import Obstacles
from amp_tf.painting.reasons import Rule
from tests.small_graphs import graph


@pytest.fixture
def canvas():
    """A canvas without paint on the chain 0 → 1 → 2 → 3 and the lone unit 4."""
    view = read_graph(graph("a = Placeholder()\nb = Relu(a)\nc = Relu(b)\nd = Relu(c)\ne = Placeholder()"), Templates())
    zeros = {
        field: np.zeros(view.unit_count, np.uint8)
        for field in (
            *("on_allow", "on_infer", "on_deny", "on_clear", "processable", "locked"),
            *("is_float32", "type_allowed", "convertible", "allow", "deny", "rule"),
        )
    }
    return Canvas(
        view=view,
        resolution=resolve_target(AmpConfig(), Hardware(cpu_has_bf16=True)),
        obstacles=Obstacles({}, {}, ()),
        edges=view.adjacency(),
        node_of=view.unit_nodes(),
        src=np.asarray(view.edges.src_unit),
        dst=np.asarray(view.edges.dst_unit),
        cause=[NO_CAUSE] * view.unit_count,
        **zeros,
    )


def flags(*units):
    made = np.zeros(5, np.uint8)
    made[list(units)] = 1
    return made


def test_a_flood_reaches_what_is_enterable_and_not_its_seeds(canvas):
    assert sorted(canvas.flood([0], flags(1, 2, 3, 4), forward=True)) == [1, 2, 3]
    assert sorted(canvas.flood([3], flags(1, 2), backward=True)) == [1, 2]
    assert sorted(canvas.flood([2], flags(0, 1, 3), forward=True, backward=True)) == [0, 1, 3]
    assert canvas.flood([0], flags(2, 3), forward=True) == []
    assert canvas.flood([0], flags(1), backward=True) == []


def test_a_flood_remembers_from_where_it_came(canvas):
    canvas.flood([0], flags(1, 2), forward=True)
    assert canvas.cause == [NO_CAUSE, 0, 1, NO_CAUSE, NO_CAUSE]


def test_a_flood_ends_in_a_loop(canvas):
    canvas.add_edges([(3, 0)])
    assert sorted(canvas.flood([0], flags(0, 1, 2, 3), forward=True)) == [0, 1, 2, 3]


def test_added_edges_join_those_of_the_graph(canvas):
    canvas.add_edges([(3, 4)])
    assert isinstance(canvas.edges, Adjacency)
    assert canvas.edges.fanouts(3) == [4]
    assert canvas.edges.fanouts(0) == [1]
    assert sorted(canvas.flood([0], flags(1, 2, 3, 4), forward=True)) == [1, 2, 3, 4]


def test_paint_that_is_there_keeps_its_rule(canvas):
    canvas.paint_allow([1], Rule.ALLOW_LIST)
    canvas.paint_allow([1, 2], Rule.AFTER_ALLOW)
    assert units_of(canvas.allow) == [1, 2]
    assert canvas.rule.tolist() == [0, Rule.ALLOW_LIST, Rule.AFTER_ALLOW, 0, 0]
    canvas.paint_deny([3], Rule.DENY_LIST)
    canvas.paint_deny([3], Rule.AFTER_DENY)
    assert (units_of(canvas.deny), canvas.rule[3]) == ([3], Rule.DENY_LIST)


def test_paint_comes_off_painted_units_alone(canvas):
    canvas.paint_allow([1], Rule.ALLOW_LIST)
    canvas.unpaint_allow([0, 1], Rule.QUANTIZED)
    assert units_of(canvas.allow) == []
    assert canvas.rule.tolist() == [0, Rule.QUANTIZED, 0, 0, 0]
