"""Training graphs of real models: every type of every node and the number of added nodes as in the C++ pass."""

from __future__ import annotations

import pytest

from tests.oracle import MODES, run_original
from tests.parity.comparison import differences, rewired, run_ours
from tests.parity.deliberate_differences import undone
from tests.parity.models import APPLICATIONS, MODELS, training_graph
from tests.parity.type_check import type_errors


@pytest.mark.slow
@pytest.mark.parametrize("name", [*MODELS, *APPLICATIONS])
def test_a_training_graph_gets_the_types_that_tensorflow_gives_it(name: str) -> None:
    graph = training_graph(name)
    recurrent = name in ("lstm_stack", "gru_stack", "custom_loop")
    assert any(node.op == "Enter" for node in graph.graph_def.node) == recurrent, "the loops are not in lowered form"
    for mode in MODES:
        original = run_original(graph.graph_def, mode, graph.preserve)
        with undone():
            ours = run_ours(graph.graph_def, mode, graph.preserve)
        assert original.nodes_in(mode.f16), "TensorFlow converted nothing: the graph shows nothing"
        assert differences(ours, original) == []
        assert rewired(graph.graph_def, ours.graph) == []
        assert type_errors(ours.graph) == []
