"""Every case of auto_mixed_precision_test.py: what the original demands, and the C++ pass on the same graph."""

from __future__ import annotations

import numpy as np
import pytest

from tests.oracle import DT_FLOAT, MODES, Mode, run_original
from tests.parity.case import can_run, run
from tests.parity.comparison import differences, rewired, run_ours
from tests.parity.deliberate_differences import undone
from tests.parity.python_cases import CASES, LOOPS, LoopCase, PythonCase

pytestmark = pytest.mark.usefixtures("local_rules")
EACH_MODE = pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)


def _casts(result, before) -> tuple[int, int]:
    old = {node.name for node in before.node}
    to_float32 = [node.attr["DstT"].type == DT_FLOAT for node in result.graph.node if node.name not in old]
    return to_float32.count(False), to_float32.count(True)


def _assert_close(rewritten, graph_def, fetch, tolerance: float, outliers: float = 0.0) -> None:
    for ours, float32 in zip(run(rewritten, fetch, {}, "init"), run(graph_def, fetch, {}, "init"), strict=True):
        limit = tolerance * max(np.abs(float32).max(), 1e-2)
        assert np.mean(np.abs(ours - float32) > limit) <= outliers, np.abs(ours - float32).max() / limit


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@EACH_MODE
def test_what_the_original_demands(case: PythonCase, mode: Mode) -> None:
    graph_def, fetch = case.graph_def()
    preserve = (*fetch, "init")
    original, ours = run_original(graph_def, mode, preserve), run_ours(graph_def, mode, preserve)
    for result in (original, ours):
        assert set(case.f16) <= result.nodes_in(mode.f16)
        if case.casts:
            assert _casts(result, graph_def) == case.casts
    assert {difference.op for difference in differences(ours, original)} <= {"BiasAddGrad"}  # "inexact-kernel"
    with undone():
        assert differences(run_ours(graph_def, mode, preserve), original) == []
    assert rewired(graph_def, ours.graph) == []
    if can_run(mode):
        _assert_close(ours.graph, graph_def, fetch, case.tolerance * (8 if mode is Mode.BFLOAT16 else 1), case.outliers)


@pytest.mark.parametrize("number", range(1, 9))
@EACH_MODE
def test_propagation_through_simple_loop(number: int, mode: Mode) -> None:
    case: LoopCase = LOOPS[number - 1]
    graph_def, fetch = PythonCase(f"propagation_through_simple_loop_{number}", case.build, ()).graph_def()
    preserve = (*fetch, "init")
    original, ours = run_original(graph_def, mode, preserve), run_ours(graph_def, mode, preserve)
    for result in (original, ours):
        f16 = result.nodes_in(mode.f16)
        assert case.letters(f16.__contains__) == case
    assert {difference.op for difference in differences(ours, original)} <= {"Enter"}  # difference "tied-types"
    with undone():
        assert differences(run_ours(graph_def, mode, preserve), original) == []
    if can_run(mode):
        _assert_close(ours.graph, graph_def, fetch, 1.6e-2 if mode is Mode.BFLOAT16 else 2e-3)
