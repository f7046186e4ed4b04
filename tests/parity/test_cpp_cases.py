"""Every case of auto_mixed_precision_test.cc, and the loops of its Python twin, confirmed by the C++ pass."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.ops import while_loop

from tests.oracle import MODES, Knobs, Mode, run_original
from tests.parity.case import Case, can_run, run
from tests.parity.comparison import differences, rewired, run_ours
from tests.parity.cpp_cases import CASES
from tests.parity.judging import undone
from tests.strategies import lowered_control_flow

pytestmark = pytest.mark.usefixtures("local_rules")
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


#: Nodes before a loop, in its body and behind it: w allow, g infer, c clear, b deny; a capital becomes 16 bit.
LOOPS = ("W C C", "C C W", "W G W", "W gbg W", "b gWC c", "b CWCG C", "C GWCG C", "C CgbgWC g")
SECTIONS = ("input", "while/body", "output")
OPS = {
    "w": lambda x, name: tf.matmul(x, tf.constant(_values(2), name=f"{name}_weight"), name=name),
    "g": lambda x, name: tf.add(x, 0.1, name=name),
    "c": lambda x, name: tf.nn.relu(x, name=name),
    "b": lambda x, name: tf.sqrt(tf.pow(x, 2.0), name=name),
}


def _values(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-0.6, 0.6, (8, 8)).astype(np.float32)


def _chain(colors: str, section: str, x: tf.Tensor) -> tf.Tensor:
    for number, color in enumerate(colors.lower()):
        x = OPS[color](x, f"{section}_{number}")
    return x


@pytest.mark.parametrize("colors", LOOPS)
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_propagation_through_a_simple_loop(colors: str, mode: Mode) -> None:
    before, body, after = colors.split()
    with tf.Graph().as_default() as graph, lowered_control_flow():
        x = _chain(before, "input", tf.constant(_values(1)))
        turn = lambda i, x: (i + 1, _chain(body, "body", x))  # noqa: E731
        x = while_loop.while_loop(lambda i, _: i < 4, turn, [tf.constant(0), x])[1]
        tf.identity(_chain(after, "output", x), name="fetch")
    graph_def, fetch = graph.as_graph_def(), ("fetch",)
    original, ours = run_original(graph_def, mode, fetch), run_ours(graph_def, mode, fetch)
    for result in (original, ours):
        f16 = result.nodes_in(mode.f16)
        found = (
            "".join(c.upper() if f"{section}_{i}" in f16 else c.lower() for i, c in enumerate(part))
            for section, part in zip(SECTIONS, (before, body, after), strict=True)
        )
        assert " ".join(found) == colors
    assert {difference.op for difference in differences(ours, original)} <= {"Enter"}  # difference "tied-types"
    with undone():
        assert differences(run_ours(graph_def, mode, fetch), original) == []
    if can_run(mode):
        (value,), (float32,) = run(ours.graph, fetch, {}), run(graph_def, fetch, {})
        np.testing.assert_allclose(value, float32, rtol=0, atol=(1.6e-2 if mode is Mode.BFLOAT16 else 2e-3))
