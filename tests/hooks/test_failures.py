"""Faults, interrupts, forks and other plugins: the program goes on."""

import json
import shutil

import pytest

from amp_tf.hooks import native
from tests.hooks import running

# Breaks amp_tf from the inside, at the import of TensorFlow, and then runs an unchanged program.
SABOTAGE = """
import runpy, sys
import tensorflow
{sabotage}
runpy.run_path({program!r}, run_name="__main__")
"""
FAULTS = {
    "the rewrite raises": """
from amp_tf.rewriting import pipeline
def rewrite(*args, **kwargs): raise RuntimeError("made to")
pipeline.rewrite_serialized = rewrite
""",
    "the graph cannot be parsed": """
from amp_tf.config import AmpConfig
from amp_tf.hooks import plugin
plugin.set_conversion(lambda data, *told: plugin.convert_graph(b"\\xff" + data, *told, AmpConfig()))
""",
    "the result cannot be handed over": """
from amp_tf.hooks import native
def emit(self, output, graph): raise MemoryError("made to")
native.Shim.emit = emit
""",
    "TensorFlow does not list the nodes to preserve": """
from amp_tf.hooks import native
def nodes_to_preserve(address): raise OSError("made to")
native.nodes_to_preserve = nodes_to_preserve
""",
}


@pytest.fixture(scope="module")
def in_float32(site_folder):
    return running.run([str(running.PROGRAMS / "threads.py")], site_folder, {})


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_leaves_the_program_in_float32_with_one_warning(fault, in_float32, site_folder):
    program = str(running.PROGRAMS / "threads.py")  # eight threads meet the fault at once
    code = SABOTAGE.format(sabotage=FAULTS[fault], program=program)
    ended = running.run(["-c", code], site_folder, running.switched_on())
    assert ended.result == in_float32.result
    assert len(ended.warnings) == 1, ended.err
    assert (
        "Grappler plugin: a graph stays in float32 because amp_tf failed on it" in ended.warnings[0]
    )
    assert "AMP_TF_DISABLE=1 turns amp_tf off" in ended.warnings[0]
    assert "failed, and the graphs stayed in float32" in ended.err


def test_a_graph_that_runs_while_the_interpreter_exits_stays_in_float32(site_folder):
    code = """
import atexit
@atexit.register  # before TensorFlow is imported, so after amp_tf's own exit
def late():
    import numpy as np, tensorflow as tf
    rng = np.random.default_rng(1)
    left, right = (rng.normal(size=(32, 32)).astype("float32") for _ in range(2))
    compiled = tf.function(lambda x, y: tf.nn.relu(tf.nn.relu(x @ y) @ y))
    product = compiled(tf.constant(left), tf.constant(right)).numpy()
    exact = np.maximum(np.maximum(left.astype("float64") @ right, 0) @ right, 0)
    print("late", float(np.abs(product - exact).max() / np.abs(exact).max()))
import tensorflow
"""
    ended = running.run(["-c", code], site_folder, running.switched_on())
    assert ended.warnings == []
    assert float(ended.out.split()[1]) < 1e-5  # bfloat16 would be about 3e-3
    assert ended.converted == 0


def test_a_tensorflow_that_has_not_loaded_its_c_api_is_told_with_the_file(tmp_path, site_folder):
    shutil.copy(native.FOLDER / "amp_tf_cpu.so", tmp_path / "libtensorflow_cc.so.2")
    code = f"""
import tensorflow as tf, amp_tf
tf.__file__ = {str(tmp_path / "__init__.py")!r}
amp_tf.enable(precision="bfloat16")
print(tf.function(lambda x: x @ x)(tf.ones((2, 2))).shape)
"""
    ended = running.run(["-c", code], site_folder, {})
    (warning,) = ended.warnings
    assert f"TensorFlow has not loaded its C API from {tmp_path}/libtensorflow_cc.so.2" in warning
    assert "Install TensorFlow 2.16 to 2.21 with pip" in warning
    assert "dlopen" not in warning
    assert ended.out == "(2, 2)\n"


#: An event during the conversion of a graph, the status of the program, and what it prints.
DURING_A_REWRITE = {
    "an interrupt reaches the program": (
        """
# A background job of a shell starts with it ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
def convert(*graph): signal.raise_signal(signal.SIGINT)
plugin.set_conversion(convert)
try:
    f(x)
    print("swallowed")
except KeyboardInterrupt:
    print("interrupted")
""",
        0,
        "interrupted\n",
    ),
    "what a signal handler raises reaches the program": (
        """
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
def convert(*graph):
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.1)  # Python runs handlers between two of its instructions
plugin.set_conversion(convert)
f(x)
print("swallowed")
""",
        7,
        "",
    ),
    "the exit waits for another thread": (
        """
inside = threading.Event()
def convert(*graph):
    inside.set()
    time.sleep(1)
    print("rewrite ended", flush=True)
plugin.set_conversion(convert)
threading.Thread(target=f, args=(x,), daemon=True).start()
assert inside.wait(60)
atexit.register(print, "exit begins", flush=True)
""",
        0,
        "exit begins\nrewrite ended\n",
    ),
}


@pytest.mark.parametrize("case", DURING_A_REWRITE)
def test_what_happens_during_a_rewrite(case, site_folder):
    code, status, out = DURING_A_REWRITE[case]
    begin = """
import atexit, ctypes, os, signal, sys, threading, time
import tensorflow as tf
from amp_tf.hooks import plugin
ctypes.CFUNCTYPE(None)(lambda: 1 / 0)()  # is told on stderr
f, x = tf.function(lambda x: tf.nn.relu(tf.nn.relu(x @ x) @ x) @ x), tf.ones((8, 8))
"""
    ended = running.run(["-c", begin + code], site_folder, running.switched_on(), status=status)
    assert ended.out == out
    assert ended.warnings == []
    assert ended.err.count("Exception ignored") == 1


def test_a_fork_after_training_leaves_one_summary_and_two_good_ends(site_folder):
    code = f"""
import os, runpy, sys
runpy.run_path({str(running.PROGRAMS / "custom_loop.py")!r}, run_name="__main__")
child = os.fork()
if child == 0:
    sys.exit(0)  # runs the exit handlers of the parent
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    ended = running.run(["-c", code], site_folder, running.switched_on())
    assert ended.out.splitlines()[-1] == "0"
    assert ended.converted > 0  # and there is one summary line only
    assert ended.warnings == []


def test_another_graph_plugin_is_stepped_around_with_one_warning(site_folder, tmp_path):
    """The other plugin is a copy of the shim: to TensorFlow, a library that takes the device type
    CPU.
    """
    other = shutil.copy(native.FOLDER / "amp_tf_cpu.so", tmp_path / "libother.so")
    program = str(running.PROGRAMS / "custom_loop.py")
    ended = running.run(
        [program],
        site_folder,
        {**running.switched_on(), "TF_PLUGGABLE_DEVICE_LIBRARY_PATH": str(other)},
    )
    assert len(ended.warnings) == 1, ended.err
    assert str(other) in ended.warnings[0]
    assert "another graph optimizer plugin is loaded" in ended.warnings[0]
    assert ended.converted == 0
    assert "another graph optimizer plugin" in ended.summary[6]


PROGRAM = """
import json, multiprocessing
import tensorflow as tf

def train():
    f = tf.function(lambda x: tf.nn.relu(x @ x) @ x)
    f(tf.ones((32, 32)))
    import amp_tf
    print(json.dumps([graph.casts for graph in amp_tf.report().graphs]), flush=True)

child = multiprocessing.get_context("fork").Process(target=train)
child.start()
child.join()
assert child.exitcode == 0
"""


def test_a_child_of_a_process_that_only_imported_tensorflow_converts(site_folder):
    variables = {running.SWITCH: "1", "AMP_TF_PRECISION": "bfloat16"}
    ended = running.run(["-c", PROGRAM], site_folder, variables)
    (casts,) = json.loads(ended.out)
    assert casts > 0
    assert ended.summary[1] is None  # the parent's line alone, which saw no graph
