"""Every case of auto_mixed_precision_test.cc: the expectation is written down, and the C++ pass confirms it."""

from __future__ import annotations

import numpy as np
import pytest

from tests.oracle import MODES, Knobs, Mode, OriginalFailedError, run_original
from tests.parity import cpp_cases, tensor_list_cases
from tests.parity.case import Case, can_run, run
from tests.parity.comparison import rewired, run_ours

pytestmark = pytest.mark.usefixtures("local_rules")
CASES = (*cpp_cases.CASES, *tensor_list_cases.CASES)
APPLICABLE = [
    pytest.param(case, mode, id=f"{case.name}-{mode.name}") for case in CASES for mode in MODES if mode in case.expected
]


@pytest.mark.parametrize(("case", "mode"), APPLICABLE)
@pytest.mark.parametrize("judge", [run_original, run_ours], ids=["TensorFlow", "amp_tf"])
def test_types_ops_and_number_of_added_nodes_are_those_written_down(case: Case, mode: Mode, judge) -> None:
    graph_def = case.graph_def()
    result = judge(graph_def, mode, case.fetch, Knobs(level=case.level))
    expected_ops = {node.name: case.new_ops.get(node.name, node.op) for node in graph_def.node}
    expected = case.expected[mode]
    # FusedBatchNorm gains the type attribute U when it becomes V2; it is float32.
    gained = {(node, "U"): (1,) for node in case.new_ops}
    assert result.types == expected.types(graph_def, mode.f16) | gained
    assert result.ops == expected_ops
    assert result.added == expected.added


@pytest.mark.parametrize(("case", "mode"), APPLICABLE)
def test_the_rewritten_graph_keeps_its_wires_and_its_values(case: Case, mode: Mode) -> None:
    graph_def = case.graph_def()
    result = run_ours(graph_def, mode, case.fetch, Knobs(level=case.level))
    assert rewired(graph_def, result.graph) == []
    if not can_run(mode):
        return
    atol, rtol = case.tolerances(mode)
    for name, ours, float32 in zip(
        case.fetch, run(result.graph, case.fetch, case.feeds), run(graph_def, case.fetch, case.feeds), strict=True
    ):
        assert ours.dtype == np.float32
        np.testing.assert_allclose(ours, float32, rtol, atol, err_msg=name)


@pytest.mark.parametrize("mode", [Mode.BFLOAT16, Mode.CUDA_LISTS])
def test_force_all_works_where_the_original_fails_on_a_fixed_float_argument(mode: Mode) -> None:
    case = next(case for case in CASES if case.name == "Simple")
    graph_def, knobs = case.graph_def(), Knobs(level="UNSAFE_FORCE_ALL")
    with pytest.raises(OriginalFailedError):
        run_original(graph_def, mode, case.fetch, knobs)
    result = run_ours(graph_def, mode, case.fetch, knobs)
    # SparseMatMul has no float16 type and its output is always float32; Const keeps its value.
    forced = {"deny1", "clr1", "infer1", "clr2", "allow1", "clr3", "infer2", "clr4", "clr5"}
    assert result.nodes_in(mode.f16) - {"deny2"} == forced
    (ours,), (float32,) = run(result.graph, case.fetch, {}), run(graph_def, case.fetch, {})
    np.testing.assert_allclose(ours, float32, rtol=2e-2)
