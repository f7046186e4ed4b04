"""The second visit of a graph is told from the first of another."""

import json
import threading

import tensorflow as tf

import amp_tf
from amp_tf.hooks.plugin import Visits
from tests.hooks import running

PRESERVED = frozenset({"x", "result"})


def _graph():
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, (8, 8), name="x")
        tf.identity(tf.matmul(x, x, name="product"), name="result")
    return bytes(graph.as_graph_def().SerializeToString())


def _rewritten(data):
    graph = tf.compat.v1.GraphDef.FromString(data)
    return bytes(amp_tf.rewrite(graph, amp_tf.AmpConfig(precision="bfloat16")).graph.SerializeToString())


def _after(rewritten):
    visits = Visits()
    visits.note_first(PRESERVED, 3, rewritten)
    return visits


def test_a_graph_that_stays_as_it_is_counts_once():
    visits = _after(None)
    assert not visits.is_second(frozenset({"x"}), 3)
    assert not visits.is_second(PRESERVED, 30)
    assert visits.is_second(PRESERVED, 3)
    assert not visits.is_second(PRESERVED, 3)


def test_threads_know_nothing_of_each_other():
    new = _rewritten(_graph())
    visits, seen = _after(new), []
    other = threading.Thread(target=lambda: seen.append(visits.is_rewritten(new, PRESERVED)))
    other.start()
    other.join()
    assert seen == [False]


def test_a_thread_that_ended_leaves_nothing_to_the_next_and_the_table_stays_small(
    monkeypatch,
):
    """Python gives the next thread the identity of the last at once, and programs make threads without end."""
    new, seen, idents = _rewritten(_graph()), [], set()
    visits = Visits()

    def visit():
        idents.add(threading.get_ident())
        seen.append(visits.is_second(PRESERVED, 3))
        visits.note_first(PRESERVED, 3, new)

    monkeypatch.setattr("amp_tf.hooks.plugin._THREADS", 10)
    for _ in range(40):
        thread = threading.Thread(target=visit)
        thread.start()
        thread.join()
    assert len(idents) < 40
    assert seen == [False] * 40
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
