"""explain: the rule, the way the decision came, and a list change that really turns it."""

import dataclasses

import pytest
import tensorflow as tf

import amp_tf
from amp_tf.graph.reader import read_graph
from amp_tf.graph.templates import Templates
from amp_tf.offline.explain import explain
from amp_tf.painting.reasons import Rule
from amp_tf.precision import Precision

CONFIG = amp_tf.AmpConfig(precision="float16", target="cpu")


@pytest.fixture(scope="module")
def graph():
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, (4, 4), name="x")
        deny = tf.exp(x, name="deny1")
        clear = tf.nn.relu(deny, name="clr1")
        infer = tf.sqrt(clear, name="infer1")
        allow = tf.matmul(infer, infer, name="allow1")
        after = tf.tanh(allow, name="infer2")
        tf.raw_ops.Lgamma(x=after, name="unlisted1")
    return graph.as_graph_def()


def _explain(graph, name, config=CONFIG):
    return explain(read_graph(graph, Templates()), name, config)


def _precision(graph, name, config):
    report = amp_tf.rewrite(graph, config).report
    return next(node.precision for node in report.nodes if node.name == name)


def test_the_path_leads_to_the_deny_ancestor(graph):
    explanation = _explain(graph, "infer1")
    assert explanation.reason.rule is Rule.AFTER_DENY
    assert explanation.trail == ("infer1", "clr1", "deny1")


def test_the_path_leads_to_the_allow_neighbour(graph):
    explanation = _explain(graph, "infer2")
    assert (explanation.reason.rule, explanation.trail) == (Rule.AFTER_ALLOW, ("infer2", "allow1"))


@pytest.mark.parametrize("name", ["deny1", "clr1", "infer1", "allow1", "infer2", "unlisted1"])
def test_the_named_change_turns_the_node(graph, name):
    explanation = _explain(graph, name)
    before = _precision(graph, name, CONFIG)
    assert explanation.precision is before
    if name == "unlisted1":  # Lgamma has a float16 kernel
        assert explanation.change == {"clear_add": ("Lgamma",)}
    assert explanation.change
    after = _precision(graph, name, dataclasses.replace(CONFIG, **explanation.change))
    assert after.is_f16 != before.is_f16


def test_a_node_that_no_list_turns_says_so(graph):
    explanation = explain(read_graph(graph, Templates()), "allow1", CONFIG, preserve=("allow1",))
    assert (explanation.precision, explanation.reason.rule) == (Precision.FLOAT32, Rule.PRESERVED)
    assert explanation.change == {}
    assert "No change of one or two ops on the lists turns it to 16 bit." in str(explanation)


def test_the_words(graph):
    assert str(_explain(graph, "infer1")).splitlines() == [
        "infer1 (Sqrt, on the infer list) computes in float32: it uses values of the deny-list node 'clr1'.",
        "The decision came along: infer1 <- clr1 <- deny1",
        "This would turn it to 16 bit: AmpConfig(infer_remove=('Sqrt',), clear_add=('Sqrt',)), or "
        "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_INFERLIST_REMOVE=Sqrt "
        "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_CLEARLIST_ADD=Sqrt",
    ]


def test_an_unknown_node_names_the_closest(graph):
    with pytest.raises(amp_tf.GraphError, match=r"no node 'infer3'. The closest names: infer2, infer1"):
        _explain(graph, "infer3")


def test_an_inner_name_finds_the_whole_one():
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, name="dense/Relu")  # its spelling is closer
        tf.nn.relu(x, name="sequential_1/first/second/dense_1/Relu")
    with pytest.raises(amp_tf.GraphError, match=r"names: sequential_1/first/second/dense_1/Relu, dense/Relu"):
        _explain(graph.as_graph_def(), "dense_1/Relu")
