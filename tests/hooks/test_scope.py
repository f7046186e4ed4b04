"""amp_tf.scope: the attribute reaches the ops, their gradients, and the functions traced inside the
block.
"""

import pytest
import tensorflow as tf

import amp_tf
from amp_tf.painting.eligibility import SCOPE_ATTR
from amp_tf.painting.reasons import Rule
from amp_tf.reporting import reports

CONFIG = amp_tf.AmpConfig(precision="bfloat16", target="cpu")


def _scope_of(graph_def):
    """The scope of each MatMul, in the graph and in its functions."""
    nodes = [
        *graph_def.node,
        *(node for function in graph_def.library.function for node in function.node_def),
    ]
    return [
        node.attr[SCOPE_ATTR].s if SCOPE_ATTR in node.attr else None
        for node in nodes
        if node.op == "MatMul"
    ]


def _trace(function, *shapes):
    return (
        tf.function(function)
        .get_concrete_function(*map(tf.TensorSpec, shapes))
        .graph.as_graph_def()
    )


def _two_layers(x, w):
    with amp_tf.scope("float32"):
        h = tf.matmul(x, w)
    return tf.matmul(h, w)


def test_a_product_that_tensorflow_fused_is_in_the_scope_in_which_it_was_made():
    """Its remapper gives what it fuses none of the attributes that it does not know."""
    variables = [tf.Variable(tf.ones((16, 16))) for _ in range(2)]
    bias = tf.Variable(tf.ones((16,)))

    @tf.function
    def layers(x):
        with amp_tf.scope("float32"), tf.name_scope("kept"):
            x = tf.nn.relu(tf.nn.bias_add(tf.matmul(x, variables[0]), bias))
        with tf.name_scope("free"):
            return tf.nn.relu(tf.nn.bias_add(tf.matmul(x, variables[1]), bias)) * 2.0

    reports.reset()
    with amp_tf.enable(CONFIG):
        layers(tf.ones((8, 16)))
    nodes = {
        node.name.split("/")[-2]: node for node in amp_tf.report().nodes if "MatMul" in node.op
    }
    assert nodes["kept"].reason.rule is Rule.KEPT_BY_SCOPE
    assert nodes["free"].precision.is_f16


def test_a_scope_may_be_for_the_nodes_of_some_layers_alone():
    def step(x, w):
        with tf.GradientTape() as tape, amp_tf.scope("float32", "layer:head", "^other/"):
            tape.watch(w)
            with tf.name_scope("body"), amp_tf.scope("f16", "layer:nobody"):
                x = tf.matmul(x, w)
            with tf.name_scope("head"):
                x = tf.matmul(x, w)
            loss = tf.reduce_sum(x)
        return tape.gradient(loss, w)

    graph = _trace(step, (4, 4), (4, 4))
    outer = b"float32\tlayer:head\t^other/"
    assert _scope_of(graph)[:2] == [b"f16\tlayer:nobody\n" + outer, outer]
    nodes = amp_tf.rewrite(graph, CONFIG).report.nodes.where(op="MatMul")
    kept = [node.name for node in nodes if node.reason.rule is Rule.KEPT_BY_SCOPE]
    assert kept == [
        "head/MatMul",
        "gradient_tape/head/MatMul/MatMul",
        "gradient_tape/head/MatMul/MatMul_1",
    ]
    assert sum(node.precision.is_f16 for node in nodes) == 2
    assert amp_tf.rewrite(graph, CONFIG).report.unmatched == ("^other/", "layer:nobody")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("float32", "layer:"), "'layer:' names no layer"),
        (("float32", "("), r"'\(' is not a regular expression"),
        (("fp8",), "'fp8' is not a valid value. Valid values: float32, f16"),
        ((tf.int32,), r"'int32' is not a valid"),
    ],
)
def test_a_bad_precision_or_pattern_is_refused(arguments, message):
    with (
        pytest.raises(amp_tf.ConfigError, match=rf"^amp_tf\.scope: {message}"),
        amp_tf.scope(*arguments),
    ):
        pass


@pytest.mark.parametrize("by_tape", [True, False])
def test_gradients_follow_their_op(by_tape):
    def step(x, w):
        with tf.GradientTape() as tape:
            tape.watch([x, w])
            loss = tf.reduce_sum(_two_layers(x, w))
        return tape.gradient(loss, [x, w]) if by_tape else tf.gradients(loss, [x, w])

    scopes = _scope_of(_trace(step, (4, 4), (4, 4)))
    # two products forward; two for each of them backward, those of the first one kept
    assert sorted(scopes, key=str) == sorted([b"float32"] * 3 + [None] * 3, key=str)


def test_loop_bodies_and_nested_functions_traced_inside_are_marked():
    @tf.function
    def inner(x, w):
        return tf.matmul(x, w)

    def outer(x, w):
        with amp_tf.scope("float32"):
            x = inner(x, w)
            return tf.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, tf.matmul(x, w)), (0, x))[
                1
            ]

    assert _scope_of(_trace(outer, (4, 4), (4, 4))) == [b"float32", b"float32"]


def test_branches_and_gradients_in_the_replicas_of_a_strategy_are_marked():
    strategy = tf.distribute.MirroredStrategy(
        ["CPU:0"]
    )  # which traces even one replica in a thread of its own

    def step(x, w):
        def replica(x, w):
            with tf.GradientTape() as tape:
                tape.watch(w)
                loss = tf.reduce_sum(
                    tf.cond(tf.reduce_sum(x) > 0, lambda: tf.matmul(x, w), lambda: x)
                )
            return tape.gradient(loss, w)

        with amp_tf.scope("float32"):
            inside = strategy.run(replica, (x, w))
        return inside, strategy.run(replica, (x, w))

    # Forward, as the gradient needs it, and backward: each inside and outside.
    scopes = _scope_of(_trace(step, (4, 4), (4, 4)))
    assert scopes.count(b"float32") == scopes.count(None) == 3


def test_ops_inside_are_marked_and_the_innermost_scope_counts_until_its_block_ends():
    def model(x, w):
        with amp_tf.scope("float32"):
            with amp_tf.scope("f16"):
                x = tf.matmul(x, w)
            x = tf.matmul(x, w)
        return tf.matmul(x, w)

    assert _scope_of(_trace(model, (4, 4), (4, 4))) == [b"f16", b"float32", None]


@pytest.mark.parametrize(
    ("precision", "rule", "converted"),
    [
        ("float32", Rule.KEPT_BY_SCOPE, False),
        ("f16", Rule.FORCED_BY_SCOPE, True),
        ("bfloat16", Rule.FORCED_BY_SCOPE, True),
        ("float16", Rule.DENY_LIST, False),
    ],
)
def test_the_rewrite_keeps_or_converts_what_is_marked(precision, rule, converted):
    def model(x, w):
        h = tf.matmul(x, w)
        with amp_tf.scope(precision):
            return tf.exp(h, name="marked")

    report = amp_tf.rewrite(_trace(model, (4, 4), (4, 4)), CONFIG).report
    (node,) = [node for node in report.nodes if node.op == "Exp"]
    assert (node.reason.rule, node.precision.is_f16) == (rule, converted)


@pytest.mark.parametrize("dtype", [tf.float32, tf.float16, tf.bfloat16.as_numpy_dtype])
def test_a_dtype_is_taken_for_its_name(dtype):
    def product(x):
        with amp_tf.scope(dtype):
            return tf.matmul(x, x)

    assert _scope_of(_trace(product, (4, 4))) == [tf.as_dtype(dtype).name.encode()]
