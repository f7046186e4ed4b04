"""The rewrite of any graph, even a broken one, has properties of its own, parity aside."""

from __future__ import annotations

import random

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import amp_tf
from tests.oracle import MODES, Knobs, Mode, outcome, type_attributes
from tests.parity.comparison import config_for, rewired, type_errors
from tests.parity.malformed import OF_GRAPHS, OF_NODES, judge_malformed, mutated
from tests.parity.op_pool import op_pool
from tests.parity.random_graphs import RandomGraph, random_graph
from tests.strategies import random_graphs

# No shrinking, which takes Hypothesis minutes. ``scripts/fuzz_parity --nodes 8`` makes smaller
# graphs.
examples = settings(
    max_examples=100,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
modes = st.sampled_from(MODES)


def rewrite(graph: RandomGraph, mode: Mode, graph_def=None):
    return amp_tf.rewrite(
        graph_def or graph.graph_def, config_for(mode, graph.knobs), preserve=graph.preserve
    )


@examples
@given(random_graphs(), modes)
def test_a_rewrite_is_whole_final_and_leaves_the_rest_alone(graph: RandomGraph, mode: Mode) -> None:
    before = graph.graph_def.SerializeToString(deterministic=True)
    result = rewrite(graph, mode)
    assert graph.graph_def.SerializeToString(deterministic=True) == before
    twice = rewrite(graph, mode, result.graph)
    assert twice.graph == result.graph
    assert not twice.changed
    assert rewired(graph.graph_def, result.graph) == []
    assert type_errors(graph.graph_def) == type_errors(result.graph) == []

    old = {node.name: node for node in graph.graph_def.node}
    new = {node.name: node for node in result.graph.node}
    types = outcome(graph.graph_def, graph.graph_def).types
    new_types = outcome(graph.graph_def, result.graph).types
    touched = {
        name for (name, attr), value in new_types.items() if types.get((name, attr)) != value
    }
    assert [name for name in new if name in old] == list(old), "the order of the nodes changed"
    for name, node in old.items():
        if name not in touched and list(new[name].input) == list(node.input):
            assert new[name] == node
    assert result.changed == (result.graph != graph.graph_def)
    casts = [
        (node.input[0], node.attr["DstT"].type)
        for node in new.values()
        if node.name not in old and node.op == "Cast"
    ]
    assert len(set(casts)) == len(casts)

    # Mean and Sum are on the CUDA deny list and on the infer list for bfloat16.
    deny = set(op_pool().deny) - ({"Mean", "Sum"} if mode is Mode.BFLOAT16 else set())
    for name, node in old.items():
        if name in graph.preserve or (node.op in deny and graph.knobs == Knobs()):
            assert dict(type_attributes(new[name])) == dict(type_attributes(node))


@examples
@given(random_graphs(), modes, st.integers(0, 2**16))
def test_the_order_of_the_nodes_does_not_matter(graph: RandomGraph, mode: Mode, seed: int) -> None:
    shuffled = type(graph.graph_def)()
    shuffled.CopyFrom(graph.graph_def)
    nodes = list(graph.graph_def.node)
    random.Random(seed).shuffle(nodes)
    del shuffled.node[:]
    shuffled.node.extend(nodes)
    one = rewrite(graph, mode).graph
    other = rewrite(graph, mode, shuffled).graph
    assert outcome(graph.graph_def, one).types == outcome(graph.graph_def, other).types
    assert {node.name for node in one.node} == {node.name for node in other.node}


def test_a_broken_graph_is_refused_or_rewritten_correctly() -> None:
    """250 seeds here; ``scripts/fuzz_parity malformed --count 50000`` for more."""
    kinds = set()
    mutations = set()
    for seed in range(250):
        graph = random_graph(random.Random(seed).randrange)
        broken, how = mutated(graph.graph_def, random.Random(seed))
        if broken is not None:
            verdict = judge_malformed(broken, graph.preserve, MODES[seed % len(MODES)], graph.knobs)
            assert not verdict.problem, f"seed {seed}, {how}: {verdict.kind}: {verdict.problem}"
            kinds.add(verdict.kind)
        mutations.update(how.split(" and "))
    assert kinds == {"GraphError", "rewritten", "unchanged"}
    assert mutations == {*OF_GRAPHS, *OF_NODES}
