"""The loss scale of TF1 sessions in the line at exit."""

import gc
import threading

import numpy as np
import pytest
import tensorflow as tf

from amp_tf.hooks import loss_scaling
from amp_tf.loss_scaling import ledger
from tests.hooks.loss_scaling.setup import installed
from tests.hooks.loss_scaling.test_v1 import BATCHES, NANS, Session

v1 = tf.compat.v1


@pytest.fixture(autouse=True)
def forgotten(monkeypatch):
    monkeypatch.setattr(ledger, "_ledger", ledger._Ledger())


def test_the_closed_session_that_made_the_most_steps_told_its_scale_and_its_skipped_steps():
    with installed():
        training = Session()
        training.train([NANS, *BATCHES])
        training.train(BATCHES[:2])
        assert loss_scaling.describe() == "loss scale 2^14, 1 of 6 steps skipped"
        (curve,) = ledger.curves()
        assert (curve["steps"], curve["skipped"], curve["points"]) == (6, 1, [(6, 2.0**14, 1)])
        Session("clip").train(BATCHES)
        assert loss_scaling.describe().endswith(": loss scale 2^15, 0 of 5 steps skipped")


def test_a_monitored_session_with_its_finalized_graph_tells_it_too():
    with installed():
        training = Session()
        with training.graph.as_default(), v1.train.MonitoredTrainingSession() as session:
            for batch in (NANS, *BATCHES):
                session.run(training.step, {training.x: batch})
    assert loss_scaling.describe() == "loss scale 2^14, 1 of 6 steps skipped"


@pytest.mark.parametrize(
    ("values", "told"),
    [([1.0], ""), ([1.0, np.nan], "loss scale 2^14, 1 of 2 steps skipped")],
)
def test_one_whose_loss_was_never_scaled_tells_only_skipped_steps(values, told):
    with installed(), v1.Graph().as_default(), v1.Session() as session:
        weight = v1.get_variable("weight", [1], use_resource=True)
        x = v1.placeholder(tf.float32, [1])
        optimizer = v1.train.GradientDescentOptimizer(0.1)
        gradients = tf.gradients(weight * x, [weight])
        step = optimizer.apply_gradients([(gradients[0], weight)])
        session.run(v1.global_variables_initializer())
        for value in values:
            session.run(step, {x: [value]})
    assert loss_scaling.describe() == told


def test_a_session_that_is_closed_by_an_error_or_twice_closes_as_ever():
    with installed():
        training = Session()

        def train():
            with v1.Session(graph=training.graph) as session:
                session.run([training.initialize])
                session.run(training.step, {training.x: BATCHES[0]})
                session.run(training.step)  # the placeholder is not fed

        with pytest.raises(tf.errors.InvalidArgumentError):
            train()
        session = v1.Session(graph=training.graph)
        session.close()
        session.close()
    assert loss_scaling.describe() == "loss scale 2^15, 0 of 1 steps skipped"


@pytest.mark.parametrize(
    "lock_of",
    [lambda graph: graph._mutation_lock(), lambda graph: graph._group_lock._ready],
    ids=["an operation is made", "the lock itself is taken"],
)
def test_a_session_that_the_collector_closes_while_its_graph_is_locked_does_not_wait(lock_of):
    """The collector may run anywhere, also in a thread that makes an operation: it would wait for
    itself.
    """
    with installed():
        training = Session()

        def train():
            session = v1.Session(graph=training.graph)
            session.itself = session
            session.run(training.initialize)
            session.run(training.step, {training.x: BATCHES[0]})
            del session
            with lock_of(training.graph):
                gc.collect()

        thread = threading.Thread(target=train, daemon=True)
        thread.start()
        thread.join(timeout=30)
        assert not thread.is_alive()
        assert loss_scaling.describe() == ""
        training.train(BATCHES)
    assert loss_scaling.describe() == "loss scale 2^15, 0 of 5 steps skipped"


def test_a_session_that_nobody_closes_is_asked_when_its_owner_lets_it_go():
    with installed():
        training = Session()
        session = v1.Session(graph=training.graph)
        session.run(training.initialize)
        session.run(training.step, {training.x: BATCHES[0]})
        del session
    assert loss_scaling.describe() == "loss scale 2^15, 0 of 1 steps skipped"


def test_a_remote_session_is_not_asked():
    server = v1.train.Server.create_local_server()
    with installed():
        training = Session()
        with v1.Session(server.target, graph=training.graph) as session:
            session.run(training.initialize)
            session.run(training.step, {training.x: np.ones((4, 3), "float32")})
    assert loss_scaling.describe() == ""
