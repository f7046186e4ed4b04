"""Random graphs with normalization, folded and run in float32: the same values, whatever was folded.

The seeds are the same in every run; ``scripts/fuzz_parity folding`` rolls new ones.
"""

from __future__ import annotations

from tests.rewriting.fold_judging import FOLDED, judge_seed
from tests.rewriting.random_normalization import normalized_graph

SEEDS = range(80)


def test_folded_graphs_compute_the_same_values_in_float32() -> None:
    verdicts = {seed: judge_seed(seed) for seed in SEEDS}
    problems = [f"seed {seed}: {verdict.problem}" for seed, verdict in verdicts.items() if verdict.problem]
    assert not problems, "\n".join(problems)
    assert sum(verdict.kind == FOLDED for verdict in verdicts.values()) > 0.6 * len(SEEDS)


def test_fewer_steps_make_the_beginning_of_the_same_graph() -> None:
    whole, part = (normalized_graph(7, steps).graph.get_operations() for steps in (14, 2))
    begun = [op.node_def for op in part if not op.name.startswith("fetch")]
    assert len(begun) < len(whole)
    assert begun == [op.node_def for op in whole[: len(begun)]]
