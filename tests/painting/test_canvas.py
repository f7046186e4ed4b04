"""Notes on a canvas, and its two spaces; the tests of rules hold all other decisions."""

from __future__ import annotations

import numpy as np
import pytest

from amp_tf.config import AmpConfig
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


def test_a_note_paints_nothing(canvas):
    noted = canvas.after(Decision(Verdict.NOTE, [3], Code.SUMS))
    assert noted.code.tolist() == [0, 0, 0, Code.SUMS]
    assert not (noted.allow | noted.deny).any()


def test_nodes_and_units_are_two_spaces():
    view = read_graph(graph("x = Placeholder()\ny = Cast(x) SrcT=float32 DstT=int32"), Templates())
    cast = np.array([False, True])
    assert view.units_of(cast).tolist() == [False, True, True]
    assert view.nodes_of(np.array([False, False, True])).tolist() == [False, True]
