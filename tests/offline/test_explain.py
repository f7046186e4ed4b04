"""explain: the rule, the way the decision came, and a list change that really turns it."""

import dataclasses

import pytest
import tensorflow as tf

import amp_tf
from amp_tf.offline.explain import Explanation, explain
from amp_tf.oplists.hardware import Hardware
from amp_tf.painting.paint import NO_CHANGE, Change
from amp_tf.painting.reasons import Balance, Reason, Rule
from amp_tf.precision import Precision
from tests.small_graphs import graph as small_graph

CONFIG = amp_tf.AmpConfig(precision="float16", target="cpu")


@pytest.fixture(scope="module")
def graph():
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, (4, 4), name="x")
        deny = tf.exp(x, name="deny1")
        clear = tf.nn.relu(deny, name="clr1")
        infer = tf.tanh(clear, name="infer1")
        allow = tf.matmul(infer, infer, name="allow1")
        after = tf.tanh(allow, name="infer2")
        tf.raw_ops.Lgamma(x=after, name="unlisted1")
    return graph.as_graph_def()


def _explain(graph, name, config=CONFIG):
    return explain(graph, name, config)


def _precision(graph, name, config):
    report = amp_tf.rewrite(graph, config).report
    return next(node.precision for node in report.nodes if node.name == name)


@pytest.mark.usefixtures("local_rules")
@pytest.mark.parametrize(
    ("name", "rule", "trail"),
    [
        ("infer1", Rule.AFTER_DENY, ("infer1", "clr1", "deny1")),
        ("infer2", Rule.AFTER_ALLOW, ("infer2", "allow1")),
    ],
)
def test_the_path_leads_to_where_the_decision_came_from(graph, name, rule, trail):
    explanation = _explain(graph, name)
    assert (explanation.reason.rule, explanation.trail) == (rule, trail)


@pytest.mark.usefixtures("local_rules")
@pytest.mark.parametrize("name", ["deny1", "clr1", "infer1", "allow1", "infer2", "unlisted1"])
def test_the_named_change_and_the_named_pattern_turn_the_node(graph, name):
    explanation = _explain(graph, name)
    before = _precision(graph, name, CONFIG)
    assert explanation.precision is before
    if name == "unlisted1":  # Lgamma has a float16 kernel
        assert explanation.change == Change(added=frozenset({("clear_add", "Lgamma")}))
    assert [field for field, _ in explanation.own_change.added] == [
        "keep_float32" if before.is_f16 else "force_f16"
    ]
    for change in (explanation.change, explanation.own_change):
        assert change
        assert _precision(graph, name, change.config(CONFIG)).is_f16 != before.is_f16


def test_where_no_setting_turns_a_node_it_says_what_else_would(graph):
    explanation = explain(graph, "allow1", CONFIG, preserve=("allow1",))
    assert (explanation.precision, explanation.reason.rule) == (Precision.FLOAT32, Rule.PRESERVED)
    assert not explanation.change
    assert str(explanation).splitlines()[1:] == [
        "To compute it in 16 bit: fetch what comes after it, or do not feed or fetch it"
    ]


def test_without_a_product_a_node_of_the_deny_list_is_said_to_be_on_it():
    with tf.Graph().as_default() as graph:
        tf.exp(tf.compat.v1.placeholder(tf.float32, (4, 4)), name="deny1")
    assert _explain(graph.as_graph_def(), "deny1").reason.rule is Rule.DENY_LIST


def test_a_change_that_the_users_own_lists_contradict_is_not_proposed_without_them(graph):
    config = dataclasses.replace(CONFIG, deny_add=("MatMul",))
    explanation = _explain(graph, "allow1", config)
    assert explanation.change == Change(dropped=frozenset({("deny_add", "MatMul")}))
    assert _precision(graph, "allow1", explanation.change.config(config)).is_f16
    words = "drop 'MatMul' from TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_DENYLIST_ADD"
    assert str(explanation).splitlines()[-1] == f"To compute it in 16 bit, and all like it: {words}"


def test_the_words(graph):
    assert str(_explain(graph, "infer1")).splitlines() == [
        "infer1 (Tanh, on the infer list) computes in float32: it uses values of the deny-list "
        "node 'clr1'.",
        "The decision came from node to node: infer1 <- clr1 <- deny1",
        "To compute this node alone in 16 bit: AMP_TF_FORCE_F16=node:infer1",
        "To compute it in 16 bit, and all like it: "
        "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_CLEARLIST_ADD=Tanh",
    ]


def test_a_pattern_that_decided_is_named_with_what_to_do(graph):
    kept = _explain(
        graph, "allow1", dataclasses.replace(CONFIG, keep_float32=("nobody", "^all", "1$"))
    )
    assert str(kept).splitlines()[1:] == [
        "To compute it in 16 bit, and all like it: drop '1$' and '^all' from AMP_TF_KEEP_FLOAT32"
    ]
    forced = _explain(graph, "deny1", dataclasses.replace(CONFIG, force_f16=("deny",)))
    assert str(forced).splitlines()[1:] == [
        "To compute this node alone in float32: AMP_TF_KEEP_FLOAT32=node:deny1",
        "To compute it in float32, and all like it: drop 'deny' from AMP_TF_FORCE_F16",
    ]


@pytest.mark.parametrize(
    ("balance", "in_f16", "in_float32"),
    [
        (Balance(3440.0, 3360.0), "3.44", "3.36"),
        (Balance(9000.0, 3000.0), "9.0", "3.0"),
        (Balance(3000.0, 3000.0), "3.000", "3.000"),
    ],
)
def test_the_two_estimates_get_the_digits_that_tell_them_apart_and_are_said_once(
    balance, in_f16, in_float32
):
    reason = Reason(Rule.DOES_NOT_PAY, detail=str(balance), balance=balance)
    found = Explanation(
        "n", "Add", "Add", "infer", Precision.FLOAT32, reason, ("n",), NO_CHANGE, NO_CHANGE
    )
    first, second, *_ = str(found).splitlines()
    assert first == (
        "n (Add, on the infer list) computes in float32: it would not be faster in 16 bit (it and "
        "the nodes to convert "
        f"with it would take {in_f16} µs in 16 bit with casts, {in_float32} µs in float32)."
    )
    assert second == (
        "These are the cost model's estimates. To convert the node anyway, name the precision: "
        "--precision bfloat16, "
        "or AMP_TF_PRECISION=bfloat16."
    )


def test_a_pattern_for_a_node_that_also_finds_an_inlined_one_says_so():
    inlined = "x = Placeholder()\nm = MatMul(x, x)\nPartitionedCall/m = MatMul(x, x)"
    assert _explain(small_graph(inlined), "m").matches == 2


def test_a_pattern_that_finds_several_nodes_says_how_many():
    reason = Reason(Rule.DENY_LIST)
    own = Change(added=frozenset({("force_f16", "Mul$")}))
    found = Explanation(
        "n", "Mul", "Mul", "deny", Precision.FLOAT32, reason, ("n",), own, NO_CHANGE, matches=3
    )
    assert str(found).splitlines()[-1] == (
        "To compute this node, and 2 other nodes that the pattern matches, in 16 bit: "
        "AMP_TF_FORCE_F16='Mul$'"
    )


@pytest.fixture(scope="module")
def normalized():
    """Keras' normalization behind a convolution, with the shapes that folding asks for."""
    with tf.Graph().as_default() as graph:
        x, w, s, b = (
            tf.compat.v1.placeholder(tf.float32, shape, name=name)
            for name, shape in {
                "x": (8, 32, 32, 16),
                "w": (3, 3, 16, 16),
                "s": (16,),
                "b": (16,),
            }.items()
        )
        scaled = tf.multiply(tf.nn.conv2d(x, w, 1, "SAME", name="conv"), s, name="scaled")
        tf.identity(
            tf.nn.relu(tf.raw_ops.AddV2(x=scaled, y=b, name="shifted"), name="act"), name="fetch"
        )
    return graph.as_graph_def(add_shapes=True)


CPU = {"preserve": ("fetch",), "hardware": Hardware(cpu_has_bf16=True)}
AUTO = amp_tf.AmpConfig()


def _decided(graph, name, config):
    report = amp_tf.rewrite(graph, config, **CPU).report
    return next(node for node in report.nodes if node.name == name)


@pytest.mark.parametrize("name", ["conv", "scaled", "shifted", "act", "s"])
def test_what_is_explained_is_what_the_rewrite_does_after_folding_and_after_a_change(
    name, normalized
):
    """Nothing is folded any more where nothing becomes 16 bit."""
    found = explain(normalized, name, AUTO, **CPU)
    decided = _decided(normalized, name, AUTO)
    assert (found.precision, found.reason) == (decided.precision, decided.reason)
    if name == "scaled":
        assert found.reason.rule is Rule.SCALES_FILTER
    if name == "shifted":
        assert "AddV2, folded to BiasAdd, on the infer list) computes in bfloat16" in str(found)
    if name in ("conv", "shifted", "act"):
        for change in (found.own_change, found.change):
            then = _decided(normalized, name, change.config(AUTO))
            assert then.precision.is_f16 != found.precision.is_f16


def test_nothing_is_written_for_what_is_tried(graph, tmp_path):
    folders = {name: str(tmp_path / name) for name in ("log_path", "report_path")}
    assert _explain(graph, "infer1", dataclasses.replace(CONFIG, **folders)).change
    assert not list(tmp_path.iterdir())


def test_a_node_that_was_converted_before_is_not_said_to_compute_in_float32(graph):
    config = dataclasses.replace(CONFIG, precision="bfloat16")
    converted = amp_tf.rewrite(graph, config).graph
    assert str(_explain(converted, "allow1", config)) == (
        "allow1 (MatMul, on the allow list) is left as it is: it handles no float32 values."
    )
    emulated = amp_tf.rewrite(graph, CONFIG).graph
    assert str(_explain(emulated, "allow1")).splitlines()[0] == (
        "allow1 (MatMul, on the allow list) is left as it is: a float32 kernel computes it, from "
        "operands that amp_tf "
        "has rounded to 16 bit before."
    )
