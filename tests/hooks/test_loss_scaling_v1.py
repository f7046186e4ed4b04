"""Automatic loss scaling of ``tf.compat.v1.train`` optimizers, and the checkpoints that they restore."""

import gc
import weakref

import numpy as np
import pytest
import tensorflow as tf

import amp_tf
from tests.hooks.loss_scaling_setup import installed

v1 = tf.compat.v1


class Session:
    """A TF1 training graph: Adam, clipped between compute_gradients and apply_gradients or minimized."""

    def __init__(self, how="minimize", make=lambda: v1.train.AdamOptimizer(0.1)):
        self.graph = tf.Graph()
        with self.graph.as_default():
            self.x = v1.placeholder(tf.float32, (None, 3))
            self.weight = v1.get_variable("w", initializer=np.ones((3, 1), "float32"))
            loss = tf.reduce_mean((self.x @ self.weight - 1) ** 2)
            self.steps = v1.train.get_or_create_global_step()
            self.optimizer = make()
            if how == "minimize":
                self.step = self.optimizer.minimize(loss, self.steps)
            else:
                pairs = self.optimizer.compute_gradients(loss)
                gradients, _ = tf.clip_by_global_norm([g for g, _ in pairs], 0.5)
                self.step = self.optimizer.apply_gradients(
                    list(zip(gradients, [v for _, v in pairs], strict=True)), self.steps
                )
            self.saver = v1.train.Saver()
            self.initialize = v1.global_variables_initializer()

    def train(self, batches, path=None, restore=None):
        with v1.Session(graph=self.graph) as session:
            session.run(self.initialize)
            if restore:
                self.saver.restore(session, restore)
            for batch in batches:
                session.run(self.step, {self.x: batch})
            if path:
                self.saver.save(session, path)
            return session.run([self.weight, self.steps])

    @property
    def scales(self):
        return [v.op.name for v in self.graph.get_collection("variables") if "loss_scale" in v.op.name]


BATCHES = [np.random.RandomState(i).randn(4, 3).astype("float32") for i in range(5)]
NANS = np.full((4, 3), np.nan, "float32")


@pytest.mark.parametrize("how", ["minimize", "clip"])
def test_tf1_optimizers_scale_by_themselves(how):
    with installed():
        session = Session(how)
        weight, steps = session.train([*BATCHES[:2], NANS, *BATCHES[2:]])
    assert len(session.scales) == 2  # the scale and its counters
    expected, count = Session(how).train(BATCHES)
    np.testing.assert_array_equal(weight, expected)
    assert steps == count == 5


def test_case_27_a_tf1_optimizer_that_is_wrapped_is_left_alone():
    def make():
        return v1.mixed_precision.MixedPrecisionLossScaleOptimizer(v1.train.AdamOptimizer(0.1), "dynamic")

    with installed():
        theirs, ours = Session(make=make), Session(make=lambda: amp_tf.LossScaleOptimizer(v1.train.AdamOptimizer(0.1)))
        np.testing.assert_array_equal(theirs.train(BATCHES)[0], ours.train(BATCHES)[0])
    assert len(theirs.scales) == 1
    assert len(ours.scales) == 2


class Delegating(v1.train.Optimizer):
    """As Horovod's DistributedOptimizer does: averages between the two calls to another optimizer."""

    def __init__(self):
        super().__init__(use_locking=False, name="Delegating")
        self._inner = v1.train.AdamOptimizer(0.1)

    def compute_gradients(self, *args, **kwargs):
        return [(g * 1.0, v) for g, v in self._inner.compute_gradients(*args, **kwargs)]

    def apply_gradients(self, *args, **kwargs):
        return self._inner.apply_gradients(*args, **kwargs)


def test_an_optimizer_that_delegates_to_another_is_scaled_once():
    with installed():
        session = Session(make=Delegating)
        weight, steps = session.train([NANS, *BATCHES])
    assert len(session.scales) == 2
    np.testing.assert_array_equal(weight, Session(make=Delegating).train(BATCHES)[0])
    assert steps == 5


def test_case_32_and_k09_a_float32_saver_checkpoint_restores_into_the_scaled_graph(tmp_path, log):
    plain = Session()
    plain.train(BATCHES[:2], path=str(tmp_path / "plain"))
    with installed():
        scaled = Session()
        weight, steps = scaled.train(BATCHES[2:], restore=str(tmp_path / "plain"), path=str(tmp_path / "scaled"))
        again = Session().train([], restore=str(tmp_path / "scaled"))
    expected, count = plain.train(BATCHES)
    np.testing.assert_array_equal(weight, expected)
    assert steps == count
    np.testing.assert_array_equal(again[0], weight)
    assert len(log("the loss scale starts at its initial value")) == 1


def test_k09_a_monitored_session_resumes_a_float32_run(tmp_path):
    def train(graph, batches):
        with graph.graph.as_default(), v1.train.MonitoredTrainingSession(checkpoint_dir=str(tmp_path)) as session:
            for batch in batches:
                session.run(graph.step, {graph.x: batch})
            return session.run([graph.weight, graph.steps])

    train(Session(), BATCHES[:2])
    with installed():
        weight, steps = train(Session(), BATCHES[2:])
    expected, count = Session().train(BATCHES)
    np.testing.assert_array_equal(weight, expected)
    assert steps == count


def test_a_checkpoint_that_lacks_more_than_the_scale_fails_as_ever(tmp_path):
    with tf.Graph().as_default(), v1.Session() as session:
        other = v1.get_variable("other", initializer=1.0)
        session.run(other.initializer)
        path = v1.train.Saver().save(session, str(tmp_path / "other"))
    with installed(), pytest.raises(tf.errors.NotFoundError):
        Session().train([], restore=path)


def test_a_tf1_optimizer_with_its_wrapper_is_garbage_when_nobody_uses_it():
    with installed():
        session = Session()
    gone = weakref.ref(session.optimizer)
    del session
    gc.collect()
    assert gone() is None


class Overriding(v1.train.GradientDescentOptimizer):
    """A user's optimizer that changes the gradients on their way in and out of its base class."""

    def compute_gradients(self, *args, **kwargs):
        return [(g * 2.0, v) for g, v in super().compute_gradients(*args, **kwargs)]

    def apply_gradients(self, grads_and_vars, *args, **kwargs):
        return super().apply_gradients([(g * 3.0, v) for g, v in grads_and_vars], *args, **kwargs)


@pytest.mark.parametrize("how", ["minimize", "clip"])
def test_what_an_optimizer_overrides_is_done_once(how):
    with installed():
        session = Session(how, make=lambda: Overriding(0.01))
        weight, steps = session.train([NANS, *BATCHES])
    assert len(session.scales) == 2
    np.testing.assert_array_equal(weight, Session(how, make=lambda: Overriding(0.01)).train(BATCHES)[0])
    assert steps == 5


@pytest.mark.parametrize("first", ["initializer", "optimizer"])
def test_a_session_need_not_initialize_what_the_program_does_not_know(first):
    with installed(), tf.Graph().as_default():
        weight = v1.get_variable("w", initializer=[1.0, 2.0])
        initialize = v1.global_variables_initializer() if first == "initializer" else weight.initializer
        optimizer = v1.train.GradientDescentOptimizer(0.25)
        step = optimizer.minimize(tf.reduce_sum(weight**2))
        with v1.Session() as session:
            session.run(initialize)
            for _ in range(2):
                session.run(step)
            assert session.run(weight).tolist() == [0.25, 0.5]
            assert session.run(v1.global_variables()[-3:])[0] == 2.0**15
