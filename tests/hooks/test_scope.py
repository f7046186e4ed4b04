"""amp_tf.scope: the attribute reaches the ops, their gradients, and the functions traced inside the
block.
"""

import pytest
import tensorflow as tf

import amp_tf
from amp_tf.hooks import switch
from amp_tf.painting.eligibility import SCOPE_ATTR
from amp_tf.painting.reasons import Rule
from amp_tf.reporting import reports
from tests.small_graphs import all_nodes

CONFIG = amp_tf.AmpConfig(precision="bfloat16", target="cpu")


def _scope_of(graph_def):
    """The scope of each MatMul, in the graph and in its functions."""
    found = []
    for node in all_nodes(graph_def):
        if node.op == "MatMul":
            found.append(node.attr[SCOPE_ATTR].s if SCOPE_ATTR in node.attr else None)
    return found


MATRIX = tf.TensorSpec((4, 4))


def _trace(function):
    """The graph of a function of two matrices."""
    return tf.function(function).get_concrete_function(MATRIX, MATRIX).graph.as_graph_def()


def _two_layers(x, w):
    with amp_tf.scope("float32"):
        h = tf.matmul(x, w)
    return tf.matmul(h, w)


def test_a_product_that_tensorflow_fused_is_in_the_scope_in_which_it_was_made():
    """Its remapper gives what it fuses none of the attributes that it does not know."""
    weights = {name: tf.Variable(tf.ones((16, 16))) for name in ("kept", "free")}
    bias = tf.Variable(tf.ones((16,)))

    def dense(x, name):
        with tf.name_scope(name):
            return tf.nn.relu(tf.nn.bias_add(tf.matmul(x, weights[name]), bias))

    @tf.function
    def layers(x):
        with amp_tf.scope("float32"):
            x = dense(x, "kept")
        return dense(x, "free") * 2.0

    reports.reset()
    with amp_tf.enable(CONFIG):
        layers(tf.ones((8, 16)))
    nodes = [node for node in amp_tf.report().nodes if "MatMul" in node.op]
    products = {node.name.split("/")[-2]: node for node in nodes}
    assert products["kept"].reason.rule is Rule.KEPT_BY_SCOPE
    assert products["free"].precision.is_f16


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

    graph = _trace(step)
    outer = b"float32\tlayer:head\t^other/"
    assert _scope_of(graph)[:2] == [b"f16\tlayer:nobody\n" + outer, outer]
    report = amp_tf.rewrite(graph, CONFIG).report
    for node in report.nodes.where(op="MatMul"):
        is_kept = node.reason.rule is Rule.KEPT_BY_SCOPE
        assert is_kept is ("head/" in node.name)
        assert node.precision.is_f16 is not is_kept
    assert report.unmatched == ("^other/", "layer:nobody")


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
        if not by_tape:
            return tf.gradients(tf.reduce_sum(_two_layers(x, w)), [x, w])
        with tf.GradientTape() as tape:
            tape.watch([x, w])
            loss = tf.reduce_sum(_two_layers(x, w))
        return tape.gradient(loss, [x, w])

    scopes = _scope_of(_trace(step))
    # Two products forward; two for each of them backward, those of the first one kept.
    assert scopes.count(b"float32") == scopes.count(None) == 3


def test_loop_bodies_and_nested_functions_traced_inside_are_marked():
    @tf.function
    def inner(x, w):
        return tf.matmul(x, w)

    def outer(x, w):
        with amp_tf.scope("float32"):
            x = inner(x, w)
            for _ in tf.range(3):
                x = tf.matmul(x, w)
            return x

    assert _scope_of(_trace(outer)) == [b"float32", b"float32"]


def test_branches_and_gradients_in_the_replicas_of_a_strategy_are_marked():
    # Which traces even one replica in a thread of its own.
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])

    def replica(x, w):
        with tf.GradientTape() as tape:
            tape.watch(w)
            y = tf.cond(tf.reduce_sum(x) > 0, lambda: tf.matmul(x, w), lambda: x)
            loss = tf.reduce_sum(y)
        return tape.gradient(loss, w)

    def step(x, w):
        with amp_tf.scope("float32"):
            inside = strategy.run(replica, (x, w))
        return inside, strategy.run(replica, (x, w))

    # Forward, as the gradient needs it, and backward: each inside and outside.
    scopes = _scope_of(_trace(step))
    assert scopes.count(b"float32") == scopes.count(None) == 3


def test_ops_inside_are_marked_and_the_innermost_scope_counts_until_its_block_ends():
    def model(x, w):
        with amp_tf.scope(tf.float32):  # a dtype is taken for its name
            with amp_tf.scope("f16"):
                x = tf.matmul(x, w)
            x = tf.matmul(x, w)
        return tf.matmul(x, w)

    assert _scope_of(_trace(model)) == [b"f16", b"float32", None]


def test_replicas_that_take_turns_in_a_block_have_a_scope_each():
    # They do so at each sum; what is traced later in their graph is outside again.
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])

    def replica(x, w):
        context = tf.distribute.get_replica_context()
        with amp_tf.scope("float32"):
            total = context.all_reduce("sum", tf.matmul(x, w))
            product = context.merge_call(lambda _, values: tf.matmul(values.values[0], w), (total,))
            inside = tf.matmul(total, w) + product
        return inside, tf.matmul(x, w)

    def step(x, w):
        return strategy.run(replica, (x, w)), tf.matmul(x, w)

    # In each replica two products inside and one behind, one for both, and one at last.
    scopes = _scope_of(_trace(step))
    assert scopes.count(b"float32") == 5
    assert scopes.count(None) == 3
    assert scopes[-1] is None


def _product(x, w):
    return tf.matmul(x, w)


def _recomputed(x, w):
    return tf.recompute_grad(_product)(x, w)


@tf.custom_gradient
def _by_hand(x, w):
    def gradient(dy):
        return tf.matmul(dy, w, transpose_b=True), tf.matmul(x, dy, transpose_a=True)

    return tf.matmul(x, w), gradient


@pytest.mark.parametrize(("layer", "backward"), [(_by_hand, 2), (_recomputed, 3)])
def test_custom_gradients_by_a_tape_follow_their_function(layer, backward):
    def step(x, w):
        with tf.GradientTape() as tape:
            tape.watch([x, w])
            with amp_tf.scope("float32"):
                h = layer(x, w)
            loss = tf.reduce_sum(layer(h, w))
        return tape.gradient(loss, [x, w])

    scopes = _scope_of(_trace(step))
    assert scopes.count(b"float32") == scopes.count(None) == 1 + backward


def test_vectorized_ops_and_their_gradients_follow_their_op():
    def step(x, w):
        def row(x):
            with amp_tf.scope("float32"):
                h = tf.matmul(x[None], w)
            return tf.matmul(h, w)

        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = tf.vectorized_map(row, x)
        return y, tape.jacobian(y, x)

    graph = tf.function(step).get_concrete_function(MATRIX, MATRIX).graph
    scopes = {}
    for op in graph.get_operations():
        if "MatMul" in op.type:
            scope = op.node_def.attr[SCOPE_ATTR].s
            scopes[scope] = scopes.get(scope, 0) + 1
    # Forward and backward, each in the body of a loop and vectorized.
    assert scopes == {b"float32": 4, b"": 4}


def test_gradients_of_a_loaded_model_follow_their_op(tmp_path):
    model = tf.Module()
    model.layers = tf.function(_two_layers, input_signature=[MATRIX, MATRIX])
    tf.saved_model.save(model, str(tmp_path))
    switch.uninstall("amp_tf.hooks.scope")  # as in a process that enters no scope
    loaded = tf.saved_model.load(str(tmp_path))

    def step(x, w):
        with tf.GradientTape() as tape:
            tape.watch([x, w])
            loss = tf.reduce_sum(loaded.layers(x, w))
        return tape.gradient(loss, [x, w])

    with amp_tf.enable(CONFIG):
        graph = _trace(step)
    scopes = _scope_of(graph)
    # Two products backward for each one forward, in as many copies.
    assert len(scopes) >= 6
    assert scopes.count(b"float32") == scopes.count(None)


def test_a_function_is_traced_for_each_scope_in_which_it_is_called():
    @tf.function
    def inner(x, w):
        return tf.matmul(x, w)

    def outer(x, w):
        x = inner(x, w)
        with amp_tf.scope("float32"):
            x = inner(inner(x, w), w)
        with amp_tf.scope("f16"):
            x = inner(x, w)
        return inner(x, w)

    graph = _trace(outer)
    scopes = {}
    for function in graph.library.function:
        (scopes[function.signature.name],) = _scope_of(
            tf.compat.v1.GraphDef(node=function.node_def)
        )
    called = [node.attr["f"].func.name for node in graph.node if "Call" in node.op]
    assert [scopes[name] for name in called] == [None, b"float32", b"float32", b"f16", None]
    assert len(scopes) == 3
