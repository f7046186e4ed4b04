"""Decisions on a canvas, one kind after the other, and searches over units."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from amp_tf.config import AmpConfig
from amp_tf.graph.algorithms import reach
from amp_tf.graph.reader import read_graph
from amp_tf.graph.templates import Templates
from amp_tf.oplists.targets import resolve_target
from amp_tf.painting.canvas import Canvas, Subject
from amp_tf.painting.decisions import Decision, Verdict
from amp_tf.painting.eligibility import NO_OBSTACLES
from amp_tf.painting.reasons import Code
from tests.painting.painted import BF16_CPU
from tests.small_graphs import graph

CHAIN = """
    x = Placeholder()
    allow1 = MatMul(x, x)
    infer1 = Tanh(allow1)
    clear1 = Relu(infer1)
"""


@pytest.fixture
def canvas():
    """A chain of four nodes, each with one unit."""
    view = read_graph(graph(CHAIN), Templates())
    resolution = resolve_target(AmpConfig(precision="bfloat16", target="cpu"), BF16_CPU)
    return Canvas.of(Subject(view, resolution, NO_OBSTACLES))


def test_the_lists_are_those_of_the_settings(canvas):
    lists = np.array([canvas.on_allow, canvas.on_infer, canvas.on_clear, canvas.on_deny])
    assert lists[:, 1:].tolist() == [
        [True, False, False],
        [False, True, False],
        [False, False, True],
        [False, False, False],
    ]


def test_a_decision_changes_another_canvas(canvas):
    copies = {}
    for field in dataclasses.fields(canvas):
        value = getattr(canvas, field.name)
        if hasattr(value, "dtype"):
            copies[field.name] = np.copy(value)
    decisions = [Decision(Verdict.ALLOW, [1, 2], Code.ALLOW_LIST)]
    for verdict in Verdict:
        decisions.append(Decision(verdict, [1], Code.NEEDED, {1: 2}))
    painted = canvas.after(*decisions)
    assert painted.relisted(canvas.on_allow, "clear").on_clear[1]
    for name, copy in copies.items():
        np.testing.assert_array_equal(getattr(canvas, name), copy, err_msg=name)


def test_the_first_reason_stays(canvas):
    for verdict, flags in ((Verdict.ALLOW, "allow"), (Verdict.DENY, "deny")):
        first = Decision(verdict, [2], Code.JOINED)
        second = Decision(verdict, [2, 3], Code.NEEDED, {2: 1, 3: 1})
        painted = canvas.after(first, second)
        assert getattr(painted, flags).tolist() == [False, False, True, True]
        assert painted.code.tolist() == [0, 0, Code.JOINED, Code.NEEDED]
        assert painted.cause.tolist() == [0, 1, 2, 1]  # a cause belongs to its reason


def test_what_is_left_has_no_paint(canvas):
    painted = canvas.after(Decision(Verdict.ALLOW, [1, 2], Code.ALLOW_LIST))
    left = painted.leaving([2, 3], Code.CARRIED)
    assert left.allow.tolist() == [False, True, False, False]
    assert left.code.tolist() == [0, Code.ALLOW_LIST, Code.CARRIED, 0]  # 3 had none


def test_only_what_the_list_painted_is_kept(canvas):
    keeping = Decision(Verdict.KEEP, [0, 1, 2], Code.BEYOND_RANGE)
    for reason, is_kept in ((Code.ALLOW_LIST, True), (Code.FORCED_BY_NAME, False)):
        painted = canvas.after(Decision(Verdict.ALLOW, [1], reason))
        kept = painted.after(keeping)
        assert kept.allow[1] != is_kept
        assert kept.on_allow[1] != is_kept
        assert kept.deny.tolist() == [False, is_kept, False, False]


def test_a_note_paints_nothing(canvas):
    noted = canvas.after(Decision(Verdict.NOTE, [3], Code.SUMS))
    assert noted.code.tolist() == [0, 0, 0, Code.SUMS]
    assert not (noted.allow | noted.deny).any()


@pytest.mark.parametrize(
    ("ways", "causes"),
    [
        (["outward"], {2: 1, 3: 2}),
        (["inward"], {0: 1}),
        (["outward", "inward"], {2: 1, 0: 1, 3: 2}),
    ],
)
def test_a_search_finds_the_nearest_first_with_their_causes(canvas, ways, causes):
    through = np.ones(4, np.bool_)
    through[1] = False  # or it would come back to where it began
    rows = [getattr(canvas.links, way) for way in ways]
    found = reach([1], through, *rows)
    assert list(found.items()) == list(causes.items())
    through[2] = False
    assert 3 not in reach([1], through, *rows)


def test_nodes_and_units_are_two_spaces():
    view = read_graph(graph("x = Placeholder()\ny = Cast(x) SrcT=float32 DstT=int32"), Templates())
    cast = np.array([False, True])
    assert view.units_of(cast).tolist() == [False, True, True]
    assert view.nodes_of(np.array([False, False, True])).tolist() == [False, True]
