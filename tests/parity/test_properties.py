"""The rewrite of any graph, even a broken one, has properties of its own, parity aside."""

import random

import pytest

import amp_tf
from tests.oracle import DEFAULT, MODES, Mode, outcome, type_attributes
from tests.parity.comparison import config_for, rewired, type_errors
from tests.parity.malformed import OF_GRAPHS, OF_NODES, judge_malformed, mutated
from tests.parity.op_pool import op_pool
from tests.parity.random_graphs import random_graph

GRAPHS = 100  # ``scripts/fuzz_parity`` rolls new ones
seeds = pytest.mark.parametrize("seed", range(GRAPHS))


def rolled(seed):
    """The graph and the mode of a seed."""
    return random_graph(random.Random(seed).randrange), MODES[seed % len(MODES)]


def rewrite(graph, mode, graph_def=None):
    given = graph_def or graph.graph_def
    config = config_for(mode, graph.knobs)
    return amp_tf.rewrite(given, config, preserve=graph.preserve)


@seeds
def test_a_rewrite_is_whole_final_and_leaves_the_rest_alone(seed):
    graph, mode = rolled(seed)
    before = graph.graph_def.SerializeToString(deterministic=True)
    result = rewrite(graph, mode)
    assert graph.graph_def.SerializeToString(deterministic=True) == before
    twice = rewrite(graph, mode, result.graph)
    assert twice.graph == result.graph
    assert not twice.changed
    assert result.changed == (result.graph != graph.graph_def)
    assert rewired(graph.graph_def, result.graph) == []
    assert type_errors(graph.graph_def) == type_errors(result.graph) == []
    check_untouched(graph, mode, result.graph)


def check_untouched(graph, mode, after):
    """Checks that nodes stay whose types and inputs do, and that no cast is made twice."""
    old = {node.name: node for node in graph.graph_def.node}
    new = {node.name: node for node in after.node}
    assert [name for name in new if name in old] == list(old), "the order of the nodes changed"
    # Mean and Sum are on the CUDA deny list and on the infer list for bfloat16.
    denied = set(op_pool().deny)
    if mode is Mode.BFLOAT16:
        denied -= {"Mean", "Sum"}
    casts = []
    for name, node in new.items():
        if name not in old:
            if node.op == "Cast":
                casts.append((*node.input, node.attr["DstT"].type))
            continue
        was = old[name]
        has_types = dict(type_attributes(node)) == dict(type_attributes(was))
        if has_types and list(node.input) == list(was.input):
            assert node == was
        is_denied = was.op in denied and graph.knobs == DEFAULT
        assert has_types or not (name in graph.preserve or is_denied)
    assert len(set(casts)) == len(casts)


@seeds
def test_the_order_of_the_nodes_does_not_matter(seed):
    graph, mode = rolled(seed)
    nodes = list(graph.graph_def.node)
    random.Random(seed).shuffle(nodes)
    shuffled = type(graph.graph_def)(node=nodes, versions=graph.graph_def.versions)
    one = rewrite(graph, mode).graph
    other = rewrite(graph, mode, shuffled).graph
    assert outcome(graph.graph_def, one).types == outcome(graph.graph_def, other).types
    names = {node.name for node in one.node}
    assert names == {node.name for node in other.node}


def test_a_broken_graph_is_refused_or_rewritten_correctly():
    """250 seeds here; ``scripts/fuzz_parity malformed --count 50000`` for more."""
    kinds = set()
    mutations = set()
    for seed in range(250):
        graph, mode = rolled(seed)
        broken, how = mutated(graph.graph_def, random.Random(seed))
        if broken is not None:
            verdict = judge_malformed(broken, graph.preserve, mode, graph.knobs)
            assert not verdict.problem, f"seed {seed}, {how}: {verdict.kind}: {verdict.problem}"
            kinds.add(verdict.kind)
        mutations.update(how.split(" and "))
    assert kinds == {"GraphError", "rewritten", "unchanged"}
    assert mutations == {*OF_GRAPHS, *OF_NODES}
