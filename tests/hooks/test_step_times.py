"""The program's own steps are timed where a report is asked for, whoever runs them."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras  # noqa: F401  the hook patches what is imported before it is installed

import amp_tf
from amp_tf.config import AmpConfig
from amp_tf.hooks import step_times
from amp_tf.reporting import files
from amp_tf.reporting.reports import RewriteReport
from tests.hooks.installing import install, uninstall
from tests.reporting.rendering import shown


@pytest.fixture
def measured(tmp_path):
    step_times.reset()
    install(step_times, AmpConfig(report_path=str(tmp_path)))
    yield lambda: {(row["way"], row["what"]): row for row in step_times.rows()}
    uninstall(step_times)
    step_times.reset()


def steps_in(rows):
    return {key: row["steps"] for key, row in rows.items()}


def test_without_a_report_nothing_is_measured():
    step_times.reset()
    call = tf.types.experimental.PolymorphicFunction.__call__
    end = keras.callbacks.CallbackList.on_train_batch_end
    with amp_tf.enable(AmpConfig()):
        assert tf.types.experimental.PolymorphicFunction.__call__ is call
        assert keras.callbacks.CallbackList.on_train_batch_end is end
    tf.function(lambda x: x + 1)(1.0)
    assert step_times.rows() == []


@pytest.mark.parametrize("at_once", [1, 2])
def test_each_step_of_keras_is_counted_once(measured, library, at_once):
    model = library.Sequential([library.Input((4,)), library.layers.Dense(1)])
    model.compile("sgd", "mse", steps_per_execution=at_once)
    x = np.ones((32, 4), "float32")
    y = np.ones((32, 1), "float32")
    model.fit(x, y, batch_size=8, epochs=3, validation_data=(x[:16], y[:16]), verbose=0)
    model.predict(x, batch_size=8, verbose=0)
    found = measured()
    assert steps_in(found) == {
        ("Keras", "fit"): 12,
        ("Keras", "evaluate"): 6,
        ("Keras", "predict"): 4,
    }
    fit = found["Keras", "fit"]
    assert 0 < fit["fastest_ms"] <= fit["median_ms"] < fit["first_ms"]  # which traced
    assert fit["seconds"] * 1e3 >= fit["first_ms"]


def test_steps_on_batches_are_counted(measured, library):
    model = library.Sequential([library.Input((4,)), library.layers.Dense(1)])
    model.compile("sgd", "mse")
    for _ in range(3):
        model.train_on_batch(np.ones((8, 4), "float32"), y=np.ones((8, 1), "float32"))
    assert steps_in(measured()) == {("Keras", "train_on_batch"): 3}


def test_a_loop_that_calls_callbacks_with_something_else_than_numbers_goes_on(measured, library):
    seen = []
    callbacks = library.callbacks.CallbackList(
        [library.callbacks.LambdaCallback(on_train_batch_end=lambda *a, **_: seen.append(a))]
    )
    callbacks.on_train_batch_begin("first")
    callbacks.on_train_batch_end("first")
    assert [batch for batch, *_ in seen] == ["first"]
    assert measured() == {}


def test_a_function_is_counted_by_its_outermost_calls_that_do_not_raise(measured):
    @tf.function
    def inner(x):
        tf.debugging.assert_positive(x)
        return x * 2

    @tf.function
    def train_step(original, way, name_of, function):  # names of ours, too
        return inner(original) + way + name_of + function

    one = tf.constant(1.0)
    for _ in range(2):
        assert train_step(original=one, way=one, name_of=one, function=one) == 5
    with pytest.raises(tf.errors.InvalidArgumentError):
        train_step(original=-one, way=one, name_of=one, function=one)
    assert steps_in(measured()) == {("tf.function", "train_step"): 2}


def test_runs_of_a_session_are_named_by_what_they_fetch(measured):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.compat.v1.placeholder(tf.float32, (), name="x")
        y = tf.add(x, 1, name="y")
        z = tf.multiply(x, 2, name="z")
        for _ in range(3):
            session.run([y, z], {x: 1.0})
        session.run({"only": z}, {x: 1.0})
    assert steps_in(measured()) == {("session", "y:0, z:0"): 3, ("session", "z:0"): 1}


def test_the_page_tells_what_was_measured_of_one_run_and_of_several_side_by_side():
    def document(median, steps=100):
        row = {"way": "Keras", "what": "fit", "steps": steps, "seconds": 1.0, "first_ms": 900.0}
        facts = {"steps": [{**row, "median_ms": median, "fastest_ms": 1.0}]}
        return RewriteReport(facts=facts).to_dict()

    page = shown(files.page([document(12.0)]))
    assert "measured, fit" in page
    assert "<dd>12 ms<small>a step, the median of 100</small></dd>" in page
    both = shown(files.page([document(12.0), document(7.0)]))
    assert '<th scope="row">measured, a step of fit</th><td>12 ms</td><td>7 ms</td>' in both
    assert "measured, fit" not in shown(files.page([document(12.0, steps=1)]))  # which traced
