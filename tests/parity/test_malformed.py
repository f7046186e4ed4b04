"""Broken graphs: always a GraphError that says where, or a verified result; never a crash, never a wait.

500 seeds here; ``scripts/fuzz_parity malformed --count 50000`` for more.
"""

from __future__ import annotations

import random

from tests.oracle import MODES
from tests.parity.malformed import MUTATIONS, judge_malformed, mutated
from tests.parity.random_graphs import random_graph


def test_a_broken_graph_is_refused_or_rewritten_correctly() -> None:
    kinds, mutations = set(), set()
    for seed in range(500):
        graph = random_graph(random.Random(seed).randrange)
        broken, how = mutated(graph.graph_def, random.Random(seed))
        if broken is not None:
            verdict = judge_malformed(broken, graph.preserve, MODES[seed % len(MODES)], graph.knobs)
            assert not verdict.problem, f"seed {seed}, {how}: {verdict.kind}: {verdict.problem}"
            kinds.add(verdict.kind)
        mutations.update(how.split(" and "))
    assert kinds == {"GraphError", "rewritten", "unchanged"}
    assert mutations == {mutation.__name__ for mutation in MUTATIONS}
