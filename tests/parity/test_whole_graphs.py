"""Whole graphs get every type and cast that TensorFlow's pass gives them: random ones, models,
functions.

The random ones are the same in every run, so that CI judges the change and not the dice;
``scripts/fuzz_parity`` rolls new ones.
"""

import collections
import random

import pytest
import tensorflow as tf

from benchmarks.decisions import traces
from tests.oracle import MODES, optimized, run_original, type_attributes
from tests.parity.comparison import differences, rewired, run_ours, type_errors
from tests.parity.judging import DIFFERS, EQUAL, judge, undone
from tests.parity.random_graphs import in_words, random_graph

GRAPHS = 200


@pytest.mark.slow
@pytest.mark.quick
def test_every_type_and_the_number_of_casts_are_the_originals():
    compared = collections.Counter()
    for seed in range(GRAPHS):
        graph = random_graph(random.Random(seed).randrange)
        for mode in MODES:
            verdict = judge(graph, mode)
            compared[mode] += verdict.kind == EQUAL
            assert verdict.kind != DIFFERS, f"seed {seed}\n{in_words(graph, verdict.found)}"
    # A tenth of the graphs ask for UNSAFE_FORCE_ALL, where the original mostly gives up.
    for mode in MODES:
        assert compared[mode] > 0.8 * GRAPHS, compared


@pytest.mark.parametrize("seed", [42969, 210100])
@pytest.mark.parametrize("mode", MODES)
def test_graphs_on_which_the_comparison_once_failed(mode, seed):
    graph = random_graph(random.Random(seed).randrange, max_nodes=30)
    assert judge(graph, mode).kind != DIFFERS


#: Sums, concatenations, depthwise filters, gates, attention, and a loop.
BLOCKS = ("convnext", "unet_step", "inverted_bottleneck", "causal_attention_norm_first", "lstm_ln")


@pytest.mark.slow
@pytest.mark.parametrize("name", BLOCKS)
def test_a_training_graph_gets_the_types_that_tensorflow_gives_it(name):
    """With calls inlined and loops lowered, as Grappler's pass meets it."""
    made = traces.step(name, "fit").graph
    ends = [tensor.op for tensor in made.outputs]
    ends += made.control_outputs
    results = [op.name for op in ends]
    graph_def = optimized(made.as_graph_def(), ("function", "pruning"), results)
    names = set()
    ops = set()
    for node in graph_def.node:
        names.add(node.name)
        ops.add(node.op)
    preserve = sorted(names.intersection(results))
    assert ("Enter" in ops) == (name == "lstm_ln"), "no loop in lowered form"
    for mode in MODES:
        original = run_original(graph_def, mode, preserve)
        with undone():
            ours = run_ours(graph_def, mode, preserve)
        assert original.nodes_in(mode.f16), "TensorFlow converted nothing: the graph shows nothing"
        assert differences(ours, original) == []
        assert rewired(graph_def, ours.graph) == []
        assert type_errors(ours.graph) == []


def graph_with_bodies():
    """Bodies that are not inlined: each is a graph of its own to the pass, whose arguments keep
    their types.
    """

    @tf.function
    def inner(x, w):
        relu = tf.nn.relu(tf.matmul(x, w))
        y = tf.sqrt(relu + 1.0)
        tanh = tf.tanh(tf.matmul(y, w))
        return tanh, tf.nn.softmax(y)

    @tf.function
    def outer(x, w):
        a, b = inner(x, w)
        for _ in tf.range(3):
            a = tf.nn.relu(tf.matmul(a, w))
        a = tf.matmul(a, b) if tf.reduce_sum(a) > 0 else tf.nn.tanh(tf.matmul(a, w))
        which = tf.cast(tf.reduce_sum(b) > 0, tf.int32)
        a = tf.switch_case(
            which, [lambda: tf.nn.relu(tf.matmul(a, w)), lambda: tf.exp(tf.matmul(a, b))]
        )
        return tf.matmul(a, b)

    x = tf.TensorSpec([8, 8], name="x")
    w = tf.TensorSpec([8, 8], name="w")
    concrete = outer.get_concrete_function(x, w)
    return concrete.graph.as_graph_def(), concrete.outputs[0].op.name


def bodies(graph, names):
    """By function: the number of its nodes, and the types of those of its nodes that were there
    before.
    """
    found = {}
    for function in graph.library.function:
        name = function.signature.name
        types = {}
        for node in function.node_def:
            if node.name in names[name]:
                types[node.name] = dict(type_attributes(node))
        found[name] = (len(function.node_def), types)
    return found


@pytest.mark.usefixtures("local_rules")
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_bodies_get_the_types_and_casts_that_tensorflow_gives_them(mode):
    graph_def, fetch = graph_with_bodies()
    names = {}
    for function in graph_def.library.function:
        names[function.signature.name] = {node.name for node in function.node_def}
    assert len(names) == 7, (
        "a function, a loop's condition and body, two branches of an If and two of a Case"
    )
    original = run_original(graph_def, mode, (fetch,))
    ours = run_ours(graph_def, mode, (fetch,))
    assert differences(ours, original) == []
    theirs = bodies(original.graph, names)
    assert bodies(ours.graph, names) == theirs
    converted = set()
    for name, (_, nodes) in theirs.items():
        for types in nodes.values():
            if mode.f16 in sum(types.values(), ()):
                converted.add(name)
    assert len(converted) == 6, "the loop's condition has no product"
