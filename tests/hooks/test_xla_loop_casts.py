"""The hook in this process: which casts stand before loops, and which in each turn."""

from __future__ import annotations

import gc
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context

from amp_tf.hooks import xla
from tests.hooks.xla_functions import (
    BF16,
    BFLOAT16,
    W,
    X,
    assert_grown,
    assert_rounded,
    clones,
    definition,
    jitted,
    only_loop,
)

pytestmark = pytest.mark.usefixtures("xla_hook_off_afterwards")


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
