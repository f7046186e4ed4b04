"""Hypothesis strategies that several test files share."""

import contextlib

from hypothesis import strategies as st
from tensorflow.python.ops import control_flow_util

from tests.parity.random_graphs import random_graph


@st.composite
def random_graphs(draw, max_nodes=30):
    """Well-typed graphs over the ops of the lists; they say nothing about shapes and cannot run."""
    return random_graph(lambda n: draw(st.integers(0, n - 1)), max_nodes=max_nodes)


@contextlib.contextmanager
def lowered_control_flow():
    """Loops made inside come as Enter, Merge, Switch …, the form that Grappler sees, not as one
    While.
    """
    before = control_flow_util.ENABLE_CONTROL_FLOW_V2
    control_flow_util.ENABLE_CONTROL_FLOW_V2 = False
    try:
        yield
    finally:
        control_flow_util.ENABLE_CONTROL_FLOW_V2 = before
