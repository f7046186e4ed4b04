"""Broken graphs: always a GraphError that says where, or a verified result; never a crash, never a wait.

1,500 seeds here; ``scripts/fuzz_parity malformed --count 50000`` for more.
"""

from __future__ import annotations

import random

import pytest
from google.protobuf.message import DecodeError

from tests.oracle import MODES
from tests.parity.malformed import MUTATIONS, judge_malformed, mutated
from tests.parity.random_graphs import random_graph


@pytest.mark.parametrize("block", range(3))
def test_a_broken_graph_is_refused_or_rewritten_correctly(block: int) -> None:
    kinds = set()
    for seed in range(500 * block, 500 * (block + 1)):
        graph = random_graph(random.Random(seed).randrange)
        broken, how = mutated(graph.graph_def, random.Random(seed))
        if broken is not None:
            verdict = judge_malformed(broken, graph.preserve, MODES[seed % len(MODES)], graph.knobs)
            assert not verdict.problem, f"seed {seed}, {how}: {verdict.kind}: {verdict.problem}"
            kinds.add(verdict.kind)
    assert kinds == {"GraphError", "rewritten", "unchanged"}


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_every_mutation_breaks_something_that_is_noticed_or_harmless(mutation) -> None:
    refused = 0
    for seed in range(12):
        graph = random_graph(random.Random(seed).randrange, with_knobs=False)
        broken = type(graph.graph_def)()
        broken.CopyFrom(graph.graph_def)
        try:
            broken = mutation(broken, random.Random(seed)) or broken
        except DecodeError:
            refused += 1
            continue
        verdict = judge_malformed(broken, graph.preserve, MODES[seed % len(MODES)], graph.knobs)
        assert not verdict.problem, f"seed {seed}: {verdict.kind}: {verdict.problem}"
        refused += verdict.kind == "GraphError"
    assert refused or mutation.__name__ in HARMLESS


# TensorFlow takes a graph with these as it is, and so does amp_tf.
HARMLESS = {"attribute_unknown", "device_nonsense", "loop_frame_gone"}
