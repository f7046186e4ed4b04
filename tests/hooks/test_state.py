"""A garbage collection begins anywhere: no lock that its thread holds may stop what it runs."""

from __future__ import annotations

import gc
import threading

import pytest
import tensorflow as tf

from amp_tf.hooks import state, summary
from amp_tf.oplists.hardware import Hardware
from tests.hooks import running

TF1 = """
import faulthandler, gc, threading
import tensorflow as tf
v1 = tf.compat.v1

def forget_a_session():
    with tf.Graph().as_default():
        x = v1.placeholder(tf.float32, (8, 8))
        w = v1.get_variable("w", (8, 8))
        loss = tf.reduce_mean(tf.nn.relu(x @ w) @ w)
        step = v1.train.GradientDescentOptimizer(0.1).minimize(loss)
        session = v1.Session()
        session.itself = session
        session.run(v1.global_variables_initializer())
        session.run(step, {x: [[1.0] * 8] * 8})

from amp_tf.reporting import reports

lock = reports._ledger._lock
gc.disable()
forget_a_session()

def collect():
    with lock:
        gc.collect()

thread = threading.Thread(target=collect, daemon=True)
thread.start()
thread.join(60)
if thread.is_alive():
    faulthandler.dump_traceback()
    import os; os._exit(3)
"""


def test_a_session_that_is_collected_waits_for_no_lock_of_ours(site_folder, tmp_path):
    variables = {running.SWITCH: "1", "AMP_TF_PRECISION": "float16", "AMP_TF_REPORT": str(tmp_path)}
    running.run(["-c", TF1], site_folder, variables)


def test_a_thread_knows_its_own_collections_alone():
    class Asking:
        def __init__(self):
            self.itself = self

        def __del__(self):
            seen.append(state.is_collecting())
            other = threading.Thread(target=lambda: seen.append(state.is_collecting()))
            other.start()
            other.join()

    state.watch_collections()
    state.watch_collections()
    assert gc.callbacks.count(state._note_collection) == 1
    seen: list[bool] = []
    Asking()
    gc.collect()
    assert (seen, state.is_collecting()) == ([True, False], False)
    last = Asking()
    last.itself = None
    del last  # by its owner, without a collection
    assert seen[2:] == [False, False]


@pytest.fixture
def tf32():
    """Turns TF32 on or off, and puts it back."""
    before = tf.config.experimental.tensor_float_32_execution_enabled()
    yield tf.config.experimental.enable_tensor_float_32_execution
    tf.config.experimental.enable_tensor_float_32_execution(before)


@pytest.mark.parametrize("is_on", [True, False])
def test_the_report_says_of_gpus_that_have_it_whether_tf32_is_on(monkeypatch, tf32, is_on):
    gpus = Hardware(((7, 0), (8, 0), (9, 0)))
    # Tests before this one ran graphs, or none.
    monkeypatch.setattr(state, "hardware", lambda: gpus)
    monkeypatch.setattr(Hardware, "detect_cpu", lambda: gpus)
    tf32(is_on)
    _, *found = summary.report().facts["devices"]
    assert [gpu["tf32"] for gpu in found] == [None, is_on, is_on]


def test_functions_may_be_collected_while_they_are_looked_up():
    def trace():
        function = tf.function(lambda x: x @ x)
        return function.get_concrete_function(tf.TensorSpec((2, 2)))

    functions = [trace() for _ in range(3)]
    names = [function.function_def.signature.name for function in functions]
    found = []
    for definition in state.find_functions(names):
        found.append(definition.signature.name)
        functions.clear()
        gc.collect()
    assert found == names[:1]
    assert not [*state.find_functions(["no_such_function"])]
