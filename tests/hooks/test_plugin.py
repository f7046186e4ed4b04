"""The second visit of a graph is told from the first of another."""

import json
import threading

from amp_tf.hooks.plugin import Visit, Visits
from tests.hooks import running

PRESERVED = frozenset({"x", "result"})
FIRST = Visit(PRESERVED, 3, True)


def in_another_thread(call):
    other = threading.Thread(target=call)
    other.start()
    other.join()


def test_a_first_visit_is_taken_once_by_its_thread_and_for_its_graph():
    visits = Visits()
    seen = []
    visits.note(FIRST)
    assert visits.take(frozenset({"x"})) is None
    visits.note(FIRST)
    in_another_thread(lambda: seen.append(visits.take(PRESERVED)))
    assert seen == [None]
    assert visits.take(PRESERVED) is FIRST
    assert visits.take(PRESERVED) is None


def test_a_thread_that_ended_leaves_nothing_to_the_next_and_the_table_stays_small(monkeypatch):
    """Python gives the next thread the identity of the last at once, and programs make threads
    without end.
    """
    visits = Visits()
    seen = []
    idents = set()

    def visit():
        idents.add(threading.get_ident())
        seen.append(visits.take(PRESERVED))
        visits.note(FIRST)

    monkeypatch.setattr("amp_tf.hooks.plugin._THREADS", 10)
    for _ in range(40):
        in_another_thread(visit)
    assert len(idents) < 40
    assert seen == [None] * 40
    assert len(visits._firsts) == 10


PROGRAM = """
import json
import tensorflow as tf
from amp_tf.config import AmpConfig
from amp_tf.hooks import plugin
from amp_tf.rewriting import pipeline

rewrites, visits = [], []
inner = pipeline.rewrite_serialized
def counted(data, *arguments, **settings):
    result = inner(data, *arguments, **settings)
    rewrites.append(result.changed)
    return result
pipeline.rewrite_serialized = counted
def convert(data, preserve, shapes):
    visits.append(len(data))
    return plugin.convert_graph(data, preserve, shapes, AmpConfig(precision="bfloat16"))
plugin.set_conversion(convert)

@tf.function
def f(x):
    return tf.nn.relu(tf.matmul(x, tf.ones((64, 64)))) + 1.0

f(tf.ones((8, 64)))
f(tf.ones((16, 64)))
print(json.dumps({"visits": len(visits), "rewrites": rewrites}))
"""


def test_tensorflow_visits_twice_and_amp_tf_works_once(tmp_path):
    """Also where a function is traced again: same names, same nodes to preserve."""
    folder = tmp_path
    ended = running.run(["-c", PROGRAM], folder, running.switched_on())
    assert json.loads(ended.out.splitlines()[-1]) == {"visits": 4, "rewrites": [True, True]}


SHARED = """
import json
import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from amp_tf.config import AmpConfig
from amp_tf.hooks import plugin

found = []
def convert(data, preserve, shapes):
    new = plugin.convert_graph(data, preserve, shapes, AmpConfig(precision="bfloat16"))
    nodes = graph_pb2.GraphDef.FromString(new or data).node
    reads = {node.name for node in nodes if node.op == "ReadVariableOp"}
    cast = [node.input[0] for node in nodes if node.op == "Cast" and node.input[0] in reads]
    found.append([len(reads), len(reads & preserve), len(set(cast))])
    return new
plugin.set_conversion(convert)

weight = tf.Variable(tf.ones((64, 64)))

@tf.function
def f(x):
    return tf.matmul(tf.nn.relu(tf.matmul(x, weight)), weight)

f(tf.ones((8, 64)))
print(json.dumps(found[0]))
"""


def test_a_weight_that_two_layers_share_is_cast_once(tmp_path):
    """Although TensorFlow preserves each read of a variable in a function."""
    ended = running.run(["-c", SHARED], tmp_path, running.switched_on())
    assert json.loads(ended.out.splitlines()[-1]) == [2, 2, 1]


CALLED = """
import json
import threading
import tensorflow as tf
from amp_tf.config import AmpConfig
from amp_tf.hooks import plugin, state
from amp_tf.oplists.hardware import Hardware

state.hardware = lambda: Hardware(cpu_has_bf16=True)
converted = []
def convert(data, preserve, shapes):
    new = plugin.convert_graph(data, preserve, shapes, AmpConfig())
    converted.append(new is not None)
    return new
plugin.set_conversion(convert)

weight = tf.Variable(tf.ones((2048, 2048)))
open_batch = [tf.TensorSpec((None, 2048))]

def made():
    return tf.function(lambda x: tf.matmul(x, weight), input_signature=open_batch)

def converts(call):
    converted.clear()
    call()
    return any(converted)

def in_a_thread():
    thread = threading.Thread(target=made(), args=[tf.ones((1, 2048))])
    thread.start()
    thread.join()

def of_a_dataset():
    rows = tf.data.Dataset.from_tensors(tf.ones((1, 2048)))
    step = tf.function(lambda batches: tf.matmul(next(batches), weight))
    step(iter(rows.unbatch().batch(1)))

print(json.dumps({
    "one": converts(lambda: made()(tf.ones((1, 2048)))),
    "many": converts(lambda: made()(tf.ones((256, 2048)))),
    "one in a thread": converts(in_a_thread),
    "a dataset": converts(of_a_dataset),
}))
"""


def test_an_open_batch_size_is_that_of_the_call(tmp_path):
    """One that no call names, because the data come from a dataset, is assumed to be large."""
    ended = running.run(["-c", CALLED], tmp_path, running.switched_on())
    expected = {"one": False, "many": True, "one in a thread": False, "a dataset": True}
    assert ended.result == expected
