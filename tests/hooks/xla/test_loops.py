"""Loops, branches, calls and special kernels in what XLA compiles."""

import gc
import re
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import types_pb2
from tensorflow.python.framework import kernels, op_def_registry

from amp_tf.config import AmpConfig
from amp_tf.hooks import xla
from amp_tf.hooks.xla import called_by
from amp_tf.oplists.table import DENY, FLOAT32_ONLY_IN_XLA, ROWS
from amp_tf.painting.outcome import Painting
from amp_tf.reporting.reports import RewriteReport
from amp_tf.rewriting import pipeline
from amp_tf.rewriting.pipeline import RewriteResult, name_clones
from tests.hooks.installing import install
from tests.hooks.xla.small_functions import (
    BF16,
    BFLOAT16,
    W,
    X,
    assert_rounded,
    clones,
    definition,
    jitted,
    products,
    registered,
    tensor,
)
from tests.small_graphs import function

pytestmark = pytest.mark.usefixtures("xla_hook_off_afterwards")


def products_in_clones():
    found = []
    for name in clones():
        found += products(registered(name)).elements()
    return found


def test_products_of_nested_loops_are_bfloat16_and_their_values_float32():
    variable = tf.Variable(W)

    def looped(x):
        doubled = 2.0 * W

        def body(i, y):
            _, y = tf.while_loop(lambda j, y: j < 2, lambda j, y: (j + 1, y @ doubled), (0, y))
            return i + 1, tf.tanh(y @ variable)

        return tf.while_loop(lambda i, y: i < 3, body, (0, x))[1]

    expected = jitted(looped)(X)
    install(xla, BFLOAT16)
    function = jitted(looped)
    assert_rounded(function(X), expected, products=9)
    assert products_in_clones() == ["bfloat16"] * 2


def test_functions_and_branches_in_a_loop_are_cloned_once_and_other_callers_keep_the_originals():
    variable = tf.Variable(W)

    @tf.function
    def layer(y, fixed):
        y = tf.tanh(y @ variable)
        return tf.cond(tf.reduce_sum(y) > 0, lambda: y @ W, lambda: tf.tanh(y) @ fixed)

    def looped(x):
        fixed = 3.0 * W

        def body(i, y):
            branches = [lambda: layer(y, fixed), lambda: y @ variable, lambda: tf.tanh(y)]
            return i + 1, tf.switch_case(i % 3, branches)

        return tf.while_loop(lambda i, y: i < 4, body, (0, x))[1]

    expected = jitted(looped)(X)
    before = layer(X, W)
    install(xla, BFLOAT16)
    function = jitted(looped)
    assert_rounded(function(X), expected, products=5)  # in four turns
    assert products_in_clones() == ["bfloat16"] * 4
    assert len([name for name in clones() if "layer" in name]) == 1
    np.testing.assert_array_equal(layer(X, W), before)
    del function
    gc.collect()
    assert clones() == []


def calling(name, called):
    """A function that does nothing but call another."""
    return function(
        f"function {name}(x: float32) -> (y: float32)\n  c = {called}(x)\n  return y = c:y:0"
    )


def converted(main, library):
    """The functions of a program that change, where all of them do, by their old names."""
    given = [*called_by(main, library.get).values(), main]
    results = []
    for original in given:
        changed = type(original)()
        changed.CopyFrom(original)
        changed.node_def[0].device = "/touched"
        results.append(RewriteResult(changed, RewriteReport(), changed=True))
    return name_clones(given, results)


def test_recursive_functions_are_converted_down_to_the_call_that_would_not_end():
    """A function that calls itself goes on with its original; TensorFlow makes none, but a library
    may hold one.
    """
    main = calling("main", "again")
    again = calling("again", "again")
    found = converted(main, {"again": again})
    assert list(found) == ["again", "main"]
    assert found["again"].signature.name.startswith("again_amp_tf_")
    assert found["again"].node_def[0].op == "again"
    assert found["main"].node_def[0].op == found["again"].signature.name
    assert main.node_def[0].op == "again"  # what was given is as it was
    assert again.node_def[0].device == ""


def test_call_chains_longer_than_pythons_stack_are_converted():
    count = 2 * sys.getrecursionlimit()
    library = {f"f{i}": calling(f"f{i}", f"f{i + 1}") for i in range(count)}
    found = converted(calling("main", "f0"), library)
    *callees, main = found
    assert (main, callees) == ("main", list(library)[::-1])
    called = f"f{count}"
    for clone in found.values():  # from the last callee to the first caller
        assert clone.node_def[0].op == called
        called = clone.signature.name


def recurrent_gradients(layer):
    """A function that gives the gradients of two recurrent layers."""

    keras.utils.set_random_seed(1)
    inputs = keras.Input((5, 8))
    make = getattr(keras.layers, layer)
    model = keras.Model(inputs, make(16)(make(16, return_sequences=True)(inputs)))

    def gradients(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x, training=True) ** 2)
        return tape.gradient(loss, [weight.value for weight in model.trainable_variables])

    return gradients


@pytest.mark.parametrize(
    ("layer", "precision", "name"), [("LSTM", "bfloat16", "bf16"), ("GRU", "float16", "f16")]
)
def test_what_a_recurrent_layer_keeps_for_products_is_16_bit_and_no_number_changes(
    layer, precision, name, monkeypatch
):
    x = tensor(3, 4, 5, 8)
    gradients = recurrent_gradients(layer)

    def stacks(function):
        """The types of what is kept of the recurrent weights, for each of the 5 turns."""
        text = function.experimental_get_compiler_ir(x)(stage="stablehlo")
        return set(re.findall(r"tensor<5x16x\d+x(\w+)>", text))

    install(xla, AmpConfig(precision=precision))
    # Lists that float32 arithmetic reads stay in float32 here: to round them changes numbers.
    monkeypatch.setattr(
        Painting, "may_round_inputs", lambda painting: np.zeros(painting.view.unit_count, np.bool_)
    )
    narrow = jitted(gradients)
    found = narrow(x)
    assert stacks(narrow) == {name}
    monkeypatch.setattr(pipeline, "find_narrow_units", lambda paintings, root: {})
    wide = jitted(gradients)
    for one, other in zip(found, wide(x), strict=True):
        np.testing.assert_array_equal(one, other)
    assert stacks(wide) == {"f32"}


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_weights_are_cast_before_loops_and_no_number_changes(precision, monkeypatch):
    variable = tf.Variable(W)
    gradients = recurrent_gradients("LSTM")
    x = tensor(3, 4, 5, 8)

    def turned(y, turns):
        def body(i, y):
            return i + 1, tf.tanh(y @ variable)

        return tf.while_loop(lambda i, y: i < turns, body, (0, y), maximum_iterations=turns)[1]

    def looped(x):
        y = turned(x[:, 0], 3)
        variable.assign(2.0 * variable)
        return turned(y, 2), *gradients(x)

    install(xla, AmpConfig(precision=precision))
    function = jitted(looped)
    variable.assign(W)
    found = function(x)
    added = [arg.name for name in clones() for arg in registered(name).signature.input_arg]
    assert sum("amp_tf_cast" in name for name in added) >= 2 * 4  # in bodies and conditions
    monkeypatch.setattr(pipeline, "move_casts", lambda functions, templates: {})
    variable.assign(W)
    expected = jitted(looped)(x)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def kept_in_float32():
    """The ops whose results loops keep for their gradients in float32."""
    kept = set()
    for name in clones():
        nodes = {node.name: node for node in registered(name).node_def}
        for node in nodes.values():
            is_pushed = node.op == "TensorListPushBack"
            if is_pushed and node.attr["element_dtype"].type == types_pb2.DT_FLOAT:
                maker, _, _ = node.input[1].partition(":")
                kept.add(nodes[maker].op if maker in nodes else "argument")
    return kept


def test_a_cell_state_is_kept_in_16_bit_and_the_forget_gate_in_float32():
    """The gradient of the state is multiplied by the gate in each turn."""
    x = tensor(3, 4, 5, 8)
    gradients = recurrent_gradients("LSTM")
    expected = gradients(x)
    install(xla, BFLOAT16)
    narrow = jitted(gradients)
    found = narrow(x)
    assert kept_in_float32() == {"Sigmoid"}
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=2**-6 * np.abs(other).max())


def test_second_gradients_of_max_pooling_compile():
    images = tensor(3, 1, 8, 8, 1)
    filters = tensor(4, 3, 3, 1, 1)
    # The pooled input: which value is the largest is certain.
    ranks = tf.reshape(tf.range(64.0), [1, 8, 8, 1])
    pool = {"ksize": [1, 2, 2, 1], "strides": [1, 2, 2, 1], "padding": "VALID"}

    def second_gradient(image):
        pooled = tf.raw_ops.MaxPool(input=ranks, **pool)
        gradient = tf.nn.conv2d(image, filters, 1, "SAME")
        chosen = tf.raw_ops.MaxPoolGradGrad(
            orig_input=ranks, orig_output=pooled, grad=gradient, **pool
        )
        return tf.nn.conv2d(chosen, filters, 1, "SAME")

    expected = jitted(second_gradient)(images)
    install(xla, BFLOAT16)
    function = jitted(second_gradient)
    types = {node.op: node.attr["T"].type for node in definition(function, images).node_def}
    assert (types["Conv2D"], types["MaxPoolGradGrad"]) == (BF16, types_pb2.DT_FLOAT)
    assert_rounded(function(images), expected, products=2)


def test_the_ops_are_those_that_xla_has_only_float32_kernels_for():
    jitted(lambda x: x + 1)(1.0)  # XLA registers its kernels now
    listed = [row.op for row in ROWS if row.op_list != DENY]
    assert set(filter(_is_float32_only, listed)) == FLOAT32_ONLY_IN_XLA


def _is_float32_only(op):
    """Tells whether XLA's kernels have float32 and no 16 bit for some type, although the op allows
    it.
    """
    op_def = op_def_registry.get(op)
    registered = kernels.get_registered_kernels_for_op(op).kernel
    compiled = [kernel for kernel in registered if kernel.device_type == "XLA_CPU_JIT"]
    for attr in op_def.attr if op_def else ():
        if attr.type not in ("type", "list(type)"):
            continue
        if not any(_accepts(kernel, attr.name, types_pb2.DT_FLOAT) for kernel in compiled):
            continue
        allowed = attr.allowed_values.list.type
        for data_type in (types_pb2.DT_BFLOAT16, types_pb2.DT_HALF):
            if allowed and data_type not in allowed:
                continue
            if not any(_accepts(kernel, attr.name, data_type) for kernel in compiled):
                return True
    return False


def _accepts(kernel, name, data_type):
    for constraint in kernel.constraint:
        types = constraint.allowed_values.list.type
        if constraint.name == name and types and data_type not in types:
            return False
    return True
