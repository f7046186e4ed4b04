"""The hook in this process: on and off, name rules, list changes, loops, and its own failures."""

from __future__ import annotations

import gc
import logging
import os
from collections import Counter
from collections.abc import Iterator

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.eager.polymorphic_function import atomic_function

import amp_tf
from amp_tf.config import AmpConfig
from amp_tf.hooks import notices, xla
from amp_tf.oplists.hardware import Hardware
from amp_tf.painting.reasons import Rule
from amp_tf.reporting import process

BFLOAT16 = AmpConfig(precision="bfloat16")
BF16 = tf.bfloat16.as_datatype_enum


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    yield
    xla.uninstall()
    notices.forget()
    process.reset()


def tensor(seed: int, *shape: int):
    return tf.constant(np.random.default_rng(seed).normal(size=shape, scale=0.2).astype("float32"))


X, W = tensor(1, 8, 8), tensor(2, 8, 8)


def jitted(function):
    return tf.function(function, jit_compile=True)


def definition(function, *arguments):
    return context.context().get_function_def(function.get_concrete_function(*arguments).name)


def products(fdef) -> Counter[str]:
    return Counter(tf.as_dtype(node.attr["T"].type).name for node in fdef.node_def if node.op == "MatMul")


def only_loop(fdef):
    (loop,) = (node for node in fdef.node_def if node.op in ("While", "StatelessWhile"))
    return loop


def assert_rounded(actual, expected, products: int) -> None:
    """Whether two chains of so many products differ by bfloat16's rounding alone.

    A product rounds both operands and its result to 8 significant bits, each by at most 2**-9, and sums in float32.
    """
    bound = products * 3 * 2**-9 * np.abs(expected).max()
    np.testing.assert_allclose(actual, expected, rtol=0, atol=bound)


def assert_grown(variable, by: float) -> None:
    """Whether W was added to in float32: at most five roundings of numbers below 1, by at most 2**-25 each."""
    np.testing.assert_allclose(variable, W + by, rtol=0, atol=5 * 2**-25)


def clones() -> list[str]:
    return sorted(name for name in context.context().list_function_names() if "_amp_tf_" in name)


def test_functions_are_rewritten_between_install_and_uninstall_only():
    original = atomic_function.from_func_graph
    before, during, after = (jitted(lambda x: x @ W) for _ in range(3))
    assert products(definition(before, X)) == {"float32": 1}
    xla.install(BFLOAT16)
    xla.install(BFLOAT16)
    assert products(definition(during, X)) == {"bfloat16": 1}
    xla.uninstall()
    xla.uninstall()
    assert atomic_function.from_func_graph is original
    assert products(definition(after, X)) == {"float32": 1}
    assert products(definition(during, X)) == {"bfloat16": 1}


def test_somebody_elses_wrapper_around_the_hook_survives_uninstall():
    xla.install(BFLOAT16)
    hooked = atomic_function.from_func_graph
    atomic_function.from_func_graph = theirs = lambda *args, **kwargs: hooked(*args, **kwargs)
    try:
        xla.uninstall()
        assert atomic_function.from_func_graph is theirs
        assert products(definition(jitted(lambda x: x @ W), X)) == {"float32": 1}
        xla.install(BFLOAT16)
        assert products(definition(jitted(lambda x: x @ W), X)) == {"bfloat16": 1}
        assert theirs is atomic_function.from_func_graph
    finally:
        atomic_function.from_func_graph = hooked


def test_plain_functions_are_left_to_grappler():
    xla.install(BFLOAT16)
    assert products(definition(tf.function(lambda x: x @ W), X)) == {"float32": 1}


def test_signature_keeps_its_types():
    xla.install(BFLOAT16)
    function = jitted(lambda x: x @ W)
    fdef = definition(function, X)
    assert {arg.type for arg in (*fdef.signature.input_arg, *fdef.signature.output_arg)} == {
        tf.float32.as_datatype_enum
    }
    assert function(X).dtype == tf.float32


def test_name_rules_and_list_changes_apply():
    def two_products(x):
        return tf.matmul(tf.matmul(x, W, name="first"), W, name="second")

    xla.install(AmpConfig(precision="bfloat16", keep_float32=("^second$",)))
    fdef = definition(jitted(two_products), X)
    assert {node.name: node.attr["T"].type == BF16 for node in fdef.node_def if node.op == "MatMul"} == {
        "first": True,
        "second": False,
    }
    xla.install(AmpConfig(precision="bfloat16", allow_remove=("MatMul",)))
    assert products(definition(jitted(two_products), X)) == {"float32": 2}


def test_scopes_apply_inside_compiled_functions_and_to_their_gradients():
    variable = tf.Variable(W)

    def loss(x):
        with tf.GradientTape() as tape:
            with amp_tf.scope("float32"):
                kept = tf.matmul(x, variable, name="kept")
            value = tf.reduce_sum(tf.matmul(kept, variable, name="free"))
        return tape.gradient(value, variable)

    xla.install(BFLOAT16)
    fdef = definition(jitted(loss), X)
    kept = {node.name: node.attr["T"].type != BF16 for node in fdef.node_def if node.op == "MatMul"}
    assert len(kept) == 5  # the gradient for x is not asked for
    assert {name for name, is_kept in kept.items() if is_kept} == {name for name in kept if "kept" in name}


def test_report_names_the_function_its_callees_and_the_way():
    @tf.function
    def callee(x):
        return x @ W

    xla.install(BFLOAT16)
    caller = jitted(lambda x: callee(x) @ W)
    name = caller.get_concrete_function(X).name.decode()
    graphs = process.report().graphs
    assert {graph.way for graph in graphs} == {"xla"}
    assert name in {graph.function for graph in graphs}
    assert any("callee" in graph.function and graph.converted for graph in graphs)


def test_clones_of_a_retraced_and_deleted_function_are_gone():
    @tf.function
    def callee(x):
        return x @ W

    xla.install(BFLOAT16)
    caller = jitted(lambda x: callee(x) @ W)
    caller(X)
    caller(X[:4])
    assert len(clones()) == 2
    del caller
    gc.collect()
    assert clones() == []
    assert products(definition(callee, X)) == {"float32": 1}


def test_callee_that_two_calls_share_is_cloned_once():
    @tf.function
    def callee(x):
        return x @ W

    xla.install(BFLOAT16)
    caller = jitted(lambda x: callee(callee(x)))
    caller(X)
    assert len(clones()) == 1


def test_casts_of_what_a_loop_does_not_change_are_made_before_it():
    variable = tf.Variable(W)

    def looped(x):
        doubled = 2.0 * W

        def body(i, y):
            _, y = tf.while_loop(lambda j, y: j < 2, lambda j, y: (j + 1, y @ doubled), (0, y))
            return i + 1, tf.tanh(y @ variable)

        return tf.while_loop(lambda i, y: i < 3, body, (0, x))[1]

    expected = jitted(looped)(X)
    xla.install(BFLOAT16)
    function = jitted(looped)
    assert_rounded(function(X), expected, products=9)
    loop = only_loop(definition(function, X))
    assert list(loop.attr["T"].list.type).count(BF16) == 2  # doubled and variable, both cast once
    body = context.context().get_function_def(loop.attr["body"].func.name)
    sources = {
        node.name: node.input[0] for node in body.node_def if node.op == "Cast" and node.attr["DstT"].type == BF16
    }
    assert not any("ReadVariableOp" in source or "doubled" in source or "mul" in source for source in sources.values())


def test_casts_in_functions_that_the_loop_body_calls_are_made_before_the_loop_too():
    variable, other = tf.Variable(W), tf.Variable(2.0 * W)

    @tf.function
    def inner(y, fixed):
        return tf.tanh(y @ other) @ fixed

    @tf.function
    def layer(y, fixed):
        return inner(tf.tanh(y @ variable), fixed)

    def looped(x):
        fixed = 3.0 * W
        return tf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, layer(y, fixed)), (0, x))[1]

    expected, before = jitted(looped)(X), layer(X, W)
    xla.install(BFLOAT16)
    function = jitted(looped)
    assert_rounded(function(X), expected, products=9)
    loop = only_loop(definition(function, X))
    assert list(loop.attr["T"].list.type).count(BF16) == 3  # variable, other and fixed, each cast once
    called = {name: context.context().get_function_def(name.encode()) for name in clones()}
    casts = [node for fdef in called.values() for node in fdef.node_def if node.op == "Cast"]
    reads = {f"{node.name}:value:0" for fdef in called.values() for node in fdef.node_def if "Read" in node.op}
    assert not [cast.name for cast in casts if cast.attr["DstT"].type == BF16 and cast.input[0] in reads | {"fixed"}]
    np.testing.assert_array_equal(layer(X, W), before)  # its plain callers keep the functions as they were
    assert sum("layer" in name for name in called) == sum("inner" in name for name in called) == 1
    del function
    gc.collect()
    assert clones() == []


def test_casts_in_branches_inside_a_loop_of_what_it_does_not_change_are_made_before_it():
    variable, other = tf.Variable(W), tf.Variable(2.0 * W)

    @tf.function
    def layer(y, fixed):
        return tf.cond(tf.reduce_sum(y) > 0, lambda: y @ other, lambda: y @ fixed)

    def looped(x):
        fixed = 3.0 * W

        def body(i, y):
            y = tf.switch_case(i % 3, [lambda: layer(y, fixed), lambda: y @ variable, lambda: tf.tanh(y)])
            return i + 1, tf.cond(tf.reduce_sum(y) > 0, lambda: y, lambda: tf.tanh(y) @ fixed)

        return tf.while_loop(lambda i, y: i < 4, body, (0, x))[1]

    expected = jitted(looped)(X)
    xla.install(BFLOAT16)
    function = jitted(looped)
    assert_rounded(function(X), expected, products=7)  # if all branches with products are taken
    loop = only_loop(definition(function, X))
    assert list(loop.attr["T"].list.type).count(BF16) == 3  # variable, other and fixed, each cast once
    bodies = [context.context().get_function_def(name.encode()) for name in clones()]
    casts = [node for fdef in bodies for node in fdef.node_def if node.op == "Cast" and node.attr["DstT"].type == BF16]
    # What is left are the casts of y: in three branches that multiply it, and of tanh(y).
    assert len(casts) == 4
    assert not [cast.name for cast in casts if "Read" in cast.input[0]]
    del function
    gc.collect()
    assert clones() == []


def test_branch_inside_a_loop_casts_what_the_loop_changes_only_where_it_is_taken():
    def looped(x):
        def body(i, y):
            return i + 1, tf.cond(i > 0, lambda: tf.tanh(y @ y), lambda: y)

        return tf.while_loop(lambda i, y: i < 3, body, (0, x))[1]

    expected = jitted(looped)(X)
    xla.install(BFLOAT16)
    function = jitted(looped)
    assert_rounded(function(X), expected, products=3)  # the second product holds the first one twice
    loop = only_loop(definition(function, X))
    body = context.context().get_function_def(loop.attr["body"].func.name)
    assert not any(node.op == "Cast" for node in body.node_def)


def test_branch_inside_a_loop_that_writes_the_variable_casts_it_in_each_turn():
    variable = tf.Variable(W)

    def looped(x):
        def grow(y):
            variable.assign_add(0.1 * tf.ones_like(variable))
            return y @ variable

        body = lambda i, y: (i + 1, tf.cond(i > 0, lambda: grow(y), lambda: y @ variable))  # noqa: E731 - short
        return tf.while_loop(lambda i, y: i < 3, body, (0, x))[1]

    expected = jitted(looped)(X)
    variable.assign(W)
    xla.install(BFLOAT16)
    assert_rounded(jitted(looped)(X), expected, products=3)
    assert_grown(variable, by=0.2)


def test_called_function_that_writes_a_variable_of_the_loop_casts_it_in_each_turn():
    variable = tf.Variable(W)

    @tf.function
    def layer(y):
        y = y @ variable
        variable.assign_add(0.1 * tf.ones_like(variable))
        return y

    def looped(x):
        return tf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, layer(y) @ variable), (0, x))[1]

    expected = jitted(looped)(X)
    variable.assign(W)
    xla.install(BFLOAT16)
    assert_rounded(jitted(looped)(X), expected, products=6)
    assert_grown(variable, by=0.3)


def test_variable_that_the_body_writes_after_a_call_is_read_by_the_call_before_that():
    variable = tf.Variable(W)

    @tf.function
    def layer(y):
        return y @ variable

    def looped(x):
        def body(i, y):
            y = layer(y)
            variable.assign_add(0.1 * tf.ones_like(variable))
            return i + 1, layer(y)

        return tf.while_loop(lambda i, y: i < 3, body, (0, x))[1]

    expected = jitted(looped)(X)
    variable.assign(W)
    xla.install(BFLOAT16)
    assert_rounded(jitted(looped)(X), expected, products=6)


@pytest.mark.parametrize("is_passed_twice", [False, True])  # then the function that reads keeps its read to itself
def test_variable_that_a_later_call_writes_is_read_by_the_call_before_that(is_passed_twice):
    variable, other = tf.Variable(W), tf.Variable(4.0 * W)
    multiply = tf.function(lambda y: y @ variable)

    @tf.function
    def read(y, passed):
        return multiply(y) + 0.0 * tf.reduce_sum(passed)

    @tf.function
    def write(y):
        variable.assign(-variable)
        return y @ other

    def looped(x):
        return tf.while_loop(
            lambda i, y: i < 3, lambda i, y: (i + 1, write(read(y, variable if is_passed_twice else other))), (0, x)
        )[1]

    expected = jitted(looped)(X)
    variable.assign(W)
    xla.install(BFLOAT16)
    assert_rounded(jitted(looped)(X), expected, products=6)


def test_variable_that_is_passed_to_a_loop_twice_is_read_as_xla_reads_it_by_itself():
    variable = tf.Variable(W)

    def looped(x):
        def body(i, y, handle):
            y = y @ variable
            with tf.control_dependencies([y]):
                write = tf.raw_ops.AssignVariableOp(resource=handle, value=-W * tf.cast(i, tf.float32))
            with tf.control_dependencies([write]):
                return i + 1, tf.identity(y), handle

        return tf.while_loop(lambda i, y, handle: i < 3, body, (0, x, variable.handle))[1]

    assert_rounded(jitted(looped)(X), X @ W @ W @ W, products=3)  # XLA carries a value for each name of a variable
    variable.assign(W)
    xla.install(BFLOAT16)
    function = jitted(looped)
    assert_rounded(function(X), X @ W @ W @ W, products=3)
    assert BF16 in only_loop(definition(function, X)).attr["T"].list.type


def test_variable_that_the_loop_writes_is_cast_in_each_turn():
    variable = tf.Variable(W)

    def looped(x):
        def body(i, y):
            y = y @ variable
            variable.assign_add(0.1 * tf.ones_like(variable))
            return i + 1, y

        return tf.while_loop(lambda i, y: i < 3, body, (0, x))[1]

    expected = jitted(looped)(X)
    variable.assign(W)
    xla.install(BFLOAT16)
    assert_rounded(jitted(looped)(X), expected, products=3)
    assert_grown(variable, by=0.3)


def test_variable_written_before_the_loop_is_read_by_the_hoisted_cast_after_that():
    variable = tf.Variable(tf.zeros((8, 8)))

    @jitted
    def assign_then_loop(x):
        variable.assign(2.0 * W)
        y = tf.while_loop(lambda i, y: i < 2, lambda i, y: (i + 1, y @ variable), (0, x))[1]
        variable.assign(tf.zeros((8, 8)))
        return y

    xla.install(BFLOAT16)
    assert_rounded(assign_then_loop(X), X @ (2 * W) @ (2 * W), products=2)


def test_rewrite_that_fails_leaves_the_function_and_warns_once(caplog, monkeypatch):
    from amp_tf.rewriting import pipeline

    def failing(*args, **kwargs):
        raise RuntimeError("made to fail")

    xla.install(BFLOAT16)
    monkeypatch.setattr(pipeline, "rewrite", failing)
    with caplog.at_level(logging.WARNING, logger="absl"):
        functions = [jitted(lambda x: x @ W) for _ in range(2)]
        for function in functions:
            np.testing.assert_array_equal(function(X), tf.function(lambda x: x @ W, jit_compile=True)(X))
    ours = [record.getMessage() for record in caplog.records if "amp_tf" in record.getMessage()]
    assert len(ours) == 1
    assert "RuntimeError: made to fail" in ours[0]
    assert "AMP_TF_DISABLE=1" in ours[0]


def test_definition_that_tensorflow_refuses_is_replaced_by_the_original(monkeypatch):
    xla.install(BFLOAT16)
    add = context.Context.add_function_def

    def refuse_rewritten(self, fdef):
        if any(node.op == "Cast" for node in fdef.node_def):
            raise ValueError("refused")
        add(self, fdef)

    monkeypatch.setattr(context.Context, "add_function_def", refuse_rewritten)
    function = jitted(lambda x: x @ W)
    assert products(definition(function, X)) == {"float32": 1}
    np.testing.assert_allclose(function(X), X @ W, rtol=0, atol=8 * 2**-24)  # eight float32 products below 1, summed


def test_auto_on_a_cpu_leaves_what_does_not_pay_and_says_so():
    if not Hardware.detect_cpu().cpu_has_bf16:
        pytest.skip("auto converts nothing on a CPU without bfloat16 in hardware")
    xla.install(AmpConfig())
    assert products(definition(jitted(lambda x: x @ W), X)) == {"float32": 1}
    why = process.report().why_nothing
    assert why is not None
    assert why.rule is Rule.DOES_NOT_PAY
    assert "XLA:CPU" in str(why)
    assert "AMP_TF_PRECISION=bfloat16" in str(why)
    nodes = {node.op: node for node in process.report().nodes}
    assert nodes["MatMul"].reason == why
    assert nodes["Identity"].reason.rule is not Rule.DOES_NOT_PAY
