"""The hook in this process: on and off, name rules, list changes, and its own failures."""

import gc

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.eager.polymorphic_function import atomic_function

from amp_tf.config import AmpConfig
from amp_tf.hooks import xla
from amp_tf.oplists.hardware import Hardware
from amp_tf.painting.reasons import Rule
from amp_tf.reporting import reports
from amp_tf.rewriting import pipeline
from tests.hooks.installing import install, uninstall
from tests.hooks.xla.small_functions import (
    BFLOAT16,
    W,
    X,
    clones,
    definition,
    jitted,
    products,
)

pytestmark = pytest.mark.usefixtures("xla_hook_off_afterwards")


def test_functions_are_rewritten_between_install_and_uninstall_only():
    original = atomic_function.from_func_graph
    before, during, after = (jitted(lambda x: x @ W) for _ in range(3))
    assert products(definition(before, X)) == {"float32": 1}
    install(xla, BFLOAT16)
    install(xla, BFLOAT16)
    assert products(definition(during, X)) == {"bfloat16": 1}
    uninstall(xla)
    uninstall(xla)
    assert atomic_function.from_func_graph is original
    assert products(definition(after, X)) == {"float32": 1}


class Loaded(tf.Module):
    """A function for XLA, and one that calls it; a SavedModel has one trace of each."""

    @tf.function(jit_compile=True, input_signature=[tf.TensorSpec((8, 8))])
    def inner(self, x):
        return x @ W

    @tf.function(input_signature=[tf.TensorSpec((8, 8))])
    def outer(self, x):
        return self.inner(x) + 0.0


def test_a_loaded_function_is_float32_once_amp_tf_is_off(tmp_path):
    exact = tf.matmul(X, W).numpy()
    module = Loaded()
    tf.saved_model.save(module, str(tmp_path), signatures=module.outer.get_concrete_function())
    install(xla, BFLOAT16)
    ran, waited = (tf.saved_model.load(str(tmp_path)) for _ in range(2))
    rounded = ran.inner(X).numpy()
    for call in (ran.outer, lambda x: ran.signatures["serving_default"](x)["output_0"]):
        np.testing.assert_array_equal(call(X), rounded)
    uninstall(xla)
    for module in (ran, waited):
        for call in (module.inner, module.outer, module.signatures["serving_default"]):
            [result] = tf.nest.flatten(call(X))
            np.testing.assert_allclose(result, exact, rtol=0, atol=1e-6)
        with tf.GradientTape() as tape:
            tape.watch(X)
            result = module.outer(X)
        exact_gradient = tf.matmul(tf.ones((8, 8)), W, transpose_b=True)
        np.testing.assert_allclose(tape.gradient(result, X), exact_gradient, rtol=0, atol=1e-6)
    tf.saved_model.save(ran, str(tmp_path / "again"))
    assert b"as_written" not in (tmp_path / "again" / "saved_model.pb").read_bytes()
    install(xla, BFLOAT16)
    np.testing.assert_array_equal(ran.outer(X), rounded)
    # XLA of TensorFlow 2.16 leaves the rounding of such a product out.
    if not tf.version.VERSION.startswith("2.16"):
        assert not np.allclose(rounded, exact, rtol=0, atol=1e-6)


def test_plain_functions_are_left_to_grappler():
    install(xla, BFLOAT16)
    assert products(definition(tf.function(lambda x: x @ W), X)) == {"float32": 1}


def test_list_changes_apply():
    install(xla, AmpConfig(precision="bfloat16", allow_remove=("MatMul",)))
    assert products(definition(jitted(lambda x: x @ W), X)) == {"float32": 1}


def test_report_names_the_function_its_callees_and_the_way():
    @tf.function
    def callee(x):
        return x @ W

    install(xla, BFLOAT16)
    caller = jitted(lambda x: callee(x) @ W)
    name = caller.get_concrete_function(X).name.decode()
    converted = {graph.function: graph.way for graph in reports.of_process().graphs}
    assert set(converted.values()) == {"xla"}
    assert name in converted
    assert [function for function in converted if "callee" in function]


def test_clones_of_a_retraced_and_deleted_function_are_gone():
    @tf.function
    def callee(x):
        return x @ W

    install(xla, BFLOAT16)
    caller = jitted(lambda x: callee(x) @ W)
    caller(X)
    caller(X[:4])
    assert len(clones()) == 2
    del caller
    gc.collect()
    assert clones() == []
    assert products(definition(callee, X)) == {"float32": 1}


def test_rewrite_that_fails_leaves_the_function_and_warns_once(log, monkeypatch):
    def failing(*args, **kwargs):
        raise RuntimeError("made to fail")

    expected = jitted(lambda x: x @ W)(X)
    install(xla, BFLOAT16)
    monkeypatch.setattr(pipeline, "rewrite_program", failing)
    for _ in range(2):
        np.testing.assert_array_equal(jitted(lambda x: x @ W)(X), expected)
    (warning,) = log("amp_tf: ")
    assert "RuntimeError: made to fail" in warning
    assert "AMP_TF_DISABLE=1" in warning


def test_definition_that_tensorflow_refuses_is_replaced_by_the_original(monkeypatch):
    install(xla, BFLOAT16)
    add = context.Context.add_function_def

    def refuse_rewritten(self, fdef):
        if any(node.op == "Cast" for node in fdef.node_def):
            raise ValueError("refused")
        add(self, fdef)

    monkeypatch.setattr(context.Context, "add_function_def", refuse_rewritten)
    function = jitted(lambda x: x @ W)
    assert products(definition(function, X)) == {"float32": 1}
    np.testing.assert_allclose(
        function(X), X @ W, rtol=0, atol=8 * 2**-24
    )  # eight float32 products below 1, summed


def test_auto_on_a_cpu_leaves_what_does_not_pay_and_says_so():
    if not Hardware.detect_cpu().cpu_gains:
        pytest.skip("auto converts nothing on a CPU without bfloat16 in hardware")
    install(xla, AmpConfig())
    assert products(definition(jitted(lambda x: x @ W), X)) == {"float32": 1}
    why = reports.of_process().why_nothing
    assert why is not None
    assert why.rule is Rule.NO_TARGET
    assert "XLA:CPU" in str(why)
    assert "AMP_TF_PRECISION=bfloat16" in str(why)
