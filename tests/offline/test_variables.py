"""Which variables of a SavedModel may be 16 bit: their values are followed to all who use them."""

import sys

import numpy as np
import pytest
import tensorflow as tf

from amp_tf.graph import view
from amp_tf.offline.reading import Checkpoint, read_saved_model
from amp_tf.offline.saved_model import convert_saved_model, rewrite_saved_model
from amp_tf.offline.variables import search_variables
from amp_tf.reporting.weights import Kept
from tests.offline.stored import BFLOAT16, Tied, convert, random_values, reasons_kept


class Nested(tf.Module):
    """One weight in a call, a loop, a branch and a choice, others in one of them, and a table that
    is gathered from.
    """

    def __init__(self):
        self.shared = tf.Variable(0.3 * random_values(8, 8), name="w")
        self.same = tf.Variable(0.3 * random_values(8, 8), name="w")
        self.table = tf.Variable(random_values(50, 8), name="table")

    @tf.function
    def called(self, x):
        return tf.nn.relu(tf.matmul(x, self.shared))

    @tf.function(input_signature=[tf.TensorSpec((4, 8)), tf.TensorSpec((4,), tf.int32)])
    def __call__(self, x, ids):
        y = self.called(x)
        for _ in tf.range(2):
            y = tf.tanh(tf.matmul(y, self.shared))
        if tf.reduce_sum(y) > 100.0:
            y = tf.matmul(y, self.shared)
        else:
            y = y + 1.0
            y = tf.matmul(y, self.same)
        z = tf.matmul(tf.nn.embedding_lookup(self.table, ids), self.shared)
        return tf.switch_case(tf.constant(1), [lambda: y, lambda: tf.matmul(y + z, self.shared)])


def test_weights_are_followed_through_calls_loops_branches_and_gathers(tmp_path):
    weights, converted, stored = convert(Nested(), tmp_path)
    assert reasons_kept(weights) == {"w": None, "table": None}
    assert len(weights.stored) == 3
    x = random_values(4, 8)
    ids = np.arange(4, dtype="i4")
    np.testing.assert_array_equal(stored(x, ids), converted(x, ids))
    assert stored.table.dtype == tf.bfloat16


def _product_of_each(w):
    return (
        tf.data.Dataset.range(3)
        .map(lambda i: tf.cast(i, tf.float32) * w)
        .reduce(0.0, lambda a, b: a + b)
    )


v1 = tf.compat.v1


def _answer_of_v1(folder, tag):
    """Loads a model of TensorFlow 1, runs it, and then its initializers, whose values are cast."""
    with tf.Graph().as_default(), v1.Session() as session:
        v1.saved_model.load(session, [tag], str(folder))
        answer = session.run("y:0", {"x:0": random_values(8, 8)})
        session.run(v1.global_variables_initializer())
        return answer


def _check_v1(folder, kept, use, *, is_resource=True):
    """Saves what uses a weight in TensorFlow 1, converts it, and checks why the weight stays."""
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, (None, 8), name="x")
        w = v1.get_variable("w", (8, 8), use_resource=is_resource)
        y = tf.identity(use(w, x), name="y")
        session.run(v1.global_variables_initializer())
        v1.saved_model.simple_save(session, str(folder / "f32"), {"x": x}, {"y": y})
    convert_saved_model(folder / "f32", folder / "converted", BFLOAT16)
    report = convert_saved_model(folder / "f32", folder / "stored", BFLOAT16, weights="f16")
    assert reasons_kept(report.weights) == {"w": kept}
    expected = _answer_of_v1(folder / "converted", "serve")
    np.testing.assert_array_equal(_answer_of_v1(folder / "stored", "serve"), expected)


def _product(w, x):
    return tf.matmul(x, w)


def _exponential(w, x):
    return x * tf.reduce_sum(tf.exp(w))


def _whole(w, x):
    return w.read_value()


def _written(w, x):
    w.assign_add(tf.matmul(x, x, transpose_a=True))
    return x


@pytest.mark.parametrize(
    ("use", "kept"),
    [
        (_product, None),
        (_exponential, Kept.READ),
        (_whole, Kept.READ),
        (_written, Kept.WRITTEN),
        (lambda w, x: _product_of_each(w), Kept.HANDED_ON),
    ],
)
def test_what_else_uses_a_weight_keeps_it_in_float32(use, kept, tmp_path):
    model = Tied()
    model.other = tf.function(lambda x: use(model.w, x), input_signature=[tf.TensorSpec((None, 8))])
    tf.saved_model.save(model, str(tmp_path / "f32"))
    _, report = rewrite_saved_model(tmp_path / "f32", BFLOAT16, weights="f16")
    assert reasons_kept(report.weights) == {"w": kept, "idle": Kept.UNREAD}


@pytest.mark.parametrize(("is_resource", "kept"), [(True, None), (False, Kept.REFERENCE)])
def test_a_model_of_tensorflow_1_is_stored_if_its_variables_are_resources(
    is_resource, kept, tmp_path
):
    _check_v1(tmp_path, kept, lambda w, x: tf.exp(tf.matmul(x, w)), is_resource=is_resource)


def _steps_of_search(count, folder):
    """Counts the steps of Python in the view while the variables of a model are searched."""
    with tf.Graph().as_default(), v1.Session() as session:
        y = x = v1.placeholder(tf.float32, (4, 4))
        for number in range(count):
            y = tf.matmul(y, v1.get_variable(f"w{number}", (4, 4), use_resource=True))
        session.run(v1.global_variables_initializer())
        v1.saved_model.simple_save(session, str(folder / f"{count}"), {"x": x}, {"y": y})
    model = read_saved_model(folder / f"{count}")
    checkpoint = Checkpoint(folder / f"{count}")
    steps = 0

    def count_steps(frame, event, _):
        nonlocal steps
        if frame.f_code.co_filename != view.__file__:
            return None
        frame.f_trace_opcodes = True
        steps += event == "opcode"
        return count_steps

    before = sys.gettrace()
    sys.settrace(count_steps)
    try:
        search_variables(model, checkpoint, [frozenset()])
    finally:
        sys.settrace(before)
    return steps


def test_the_search_for_variables_takes_as_many_steps_for_each_however_many_there_are(tmp_path):
    few = _steps_of_search(25, tmp_path)
    assert _steps_of_search(200, tmp_path) < 10 * few  # 36 times with a pass over all for each


@pytest.mark.parametrize("on", [_product, _exponential])
@pytest.mark.parametrize("off", [_product, _exponential])
def test_both_branches_of_a_condition_of_tensorflow_1_read_a_weight_that_was_read_before(
    off, on, tmp_path
):
    def choose(w, x):
        is_on = v1.placeholder_with_default(True, (), name="is_on")
        value_off, value_on = tf.raw_ops.Switch(data=w.read_value(), pred=is_on)
        return tf.raw_ops.Merge(inputs=[off(value_off, x), on(value_on, x)])[0]

    _check_v1(tmp_path, None if off is on is _product else Kept.READ, choose)


@pytest.mark.parametrize(("use", "kept"), [(tf.matmul, None), (tf.add, Kept.READ)])
def test_all_graphs_of_a_model_count(use, kept, tmp_path):
    """Two MetaGraphs share the variables."""
    builder = v1.saved_model.Builder(str(tmp_path / "f32"))
    for tag, function in (("train", use), ("serve", tf.matmul)):
        with tf.Graph().as_default(), v1.Session() as session:
            w = v1.get_variable("w", (8, 8), use_resource=True)
            tf.exp(function(v1.placeholder(tf.float32, (None, 8), name="x"), w), name="y")
            session.run(v1.global_variables_initializer())
            if tag == "train":
                builder.add_meta_graph_and_variables(session, [tag])
            else:
                builder.add_meta_graph([tag])
    builder.save()
    report = convert_saved_model(tmp_path / "f32", tmp_path / "stored", BFLOAT16, weights="f16")
    assert reasons_kept(report.weights) == {"w": kept}
    for tag in ("train", "serve"):
        _answer_of_v1(tmp_path / "stored", tag)
