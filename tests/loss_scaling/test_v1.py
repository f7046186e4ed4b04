"""Case 14 and 31 for ``tf.compat.v1.train`` optimizers: sessions, MonitoredSession, Saver, eager
execution.
"""

import inspect

import numpy as np
import pytest
import tensorflow as tf

import amp_tf
from tests.loss_scaling.programs.own_steps import OWN

v1 = tf.compat.v1
GOOD = [np.random.RandomState(i).randn(4, 3).astype("float32") for i in range(6)]
BAD = np.full((4, 3), np.nan, "float32")


class Graph:
    """A regression with Adam; ``train`` returns the weights."""

    def __init__(self, wrap, clip=False, loss_dtype=tf.float32, **settings):
        self.graph = tf.Graph()
        with self.graph.as_default():
            self.x = v1.placeholder(tf.float32, (None, 3))
            self.weight = v1.get_variable("w", initializer=np.ones((3, 1), "float32"))
            loss = tf.cast(tf.reduce_mean((self.x @ self.weight - 1) ** 2), loss_dtype)
            self.steps = v1.train.get_or_create_global_step()
            self.optimizer = v1.train.AdamOptimizer(0.1)
            if wrap:
                self.optimizer = amp_tf.LossScaleOptimizer(self.optimizer, **settings)
            pairs = self.optimizer.compute_gradients(loss)
            if clip:
                gradients, _ = tf.clip_by_global_norm([g for g, _ in pairs], 0.5)
                pairs = list(zip(gradients, [v for _, v in pairs], strict=True))
            self.step = self.optimizer.apply_gradients(pairs, global_step=self.steps)
            self.saver = v1.train.Saver()
            self.initialize = v1.global_variables_initializer()

    def train(self, batches, session=None):
        if session is not None:
            for batch in batches:
                session.run(self.step, {self.x: batch})
            return session.run(self.weight)
        with v1.Session(graph=self.graph) as session:
            session.run(self.initialize)
            return self.train(batches, session)


@pytest.mark.parametrize("clip", [False, True])
def test_case_14_and_20_a_session_skips_a_nonfinite_step_and_global_step_waits(clip):
    wrapped = Graph(True, clip, dynamic_growth_steps=4)
    with v1.Session(graph=wrapped.graph) as session:
        session.run(wrapped.initialize)
        actual = wrapped.train([*GOOD[:3], BAD, *GOOD[3:]], session)
        status = wrapped.optimizer.status(session)
        assert session.run(wrapped.steps) == 6
    np.testing.assert_array_equal(actual, Graph(False, clip).train(GOOD))
    assert (status.scale, status.skipped, status.steps, status.last_change) == (2.0**14, 1, 7, 4)


def test_case_31_and_32_a_saver_of_a_wrapped_graph_restores_into_wrapped_and_bare(tmp_path):
    wrapped = Graph(True, dynamic_growth_steps=2)
    again = Graph(True, dynamic_growth_steps=2)
    bare = Graph(False)
    with v1.Session(graph=wrapped.graph) as session:
        session.run(wrapped.initialize)
        wrapped.train([*GOOD[:3], BAD], session)
        path = wrapped.saver.save(session, str(tmp_path / "ckpt"))
        expected = wrapped.train(GOOD[3:], session)
        status = wrapped.optimizer.status(session)
    for other in (again, bare):
        with v1.Session(graph=other.graph) as session:
            other.saver.restore(session, path)
            np.testing.assert_array_equal(other.train(GOOD[3:], session), expected)
            if other is again:
                assert other.optimizer.status(session) == status


def test_case_15_a_graph_that_calls_tf_gradients_scales_and_unscales():
    with tf.Graph().as_default(), v1.Session() as session:
        weight = v1.get_variable("w", initializer=[1.0, 2.0])
        optimizer = amp_tf.LossScaleOptimizer(v1.train.GradientDescentOptimizer(0.25))
        loss = optimizer.scale_loss(tf.reduce_sum(weight**2))
        step = optimizer.apply_gradients([(tf.gradients(loss, weight)[0], weight)])
        session.run(v1.global_variables_initializer())
        session.run(step)
        assert session.run(weight).tolist() == [0.5, 1.0]


def test_case_29_a_float16_loss_is_scaled_in_float32():
    actual = Graph(True, loss_dtype=tf.float16).train(GOOD)
    np.testing.assert_allclose(actual, Graph(False).train(GOOD), rtol=2e-3)


def test_eager_execution_works_too():
    weight = v1.Variable([1.0, 2.0])
    optimizer = amp_tf.LossScaleOptimizer(v1.train.GradientDescentOptimizer(0.25))
    optimizer.minimize(lambda: tf.reduce_sum(weight**2), var_list=[weight])
    optimizer.minimize(lambda: tf.reduce_sum(weight**2) * np.nan, var_list=[weight])
    assert weight.numpy().tolist() == [0.5, 1.0]
    assert (optimizer.status().skipped, optimizer.status().nonfinite_losses_in_row) == (1, 1)


def test_slots_are_those_of_the_inner_optimizer():
    wrapped = Graph(True)
    assert sorted(wrapped.optimizer.get_slot_names()) == ["m", "v"]
    assert wrapped.optimizer.get_slot(wrapped.weight, "m") is not None


def test_the_scale_refuses_to_work_in_another_wrapper():
    wrapped = amp_tf.LossScaleOptimizer(tf.compat.v1.train.GradientDescentOptimizer(0.1))
    with pytest.raises(
        amp_tf.ConfigError,
        match=r"only inside amp_tf's own wrapper. Wrap the optimizer with amp_tf",
    ):
        wrapped._loss_scale.update([])


SGD = v1.train.GradientDescentOptimizer


class InAnotherOrder(SGD):
    def apply_gradients(self, grads_and_vars, name=None, global_step=None):
        return super().apply_gradients(grads_and_vars, global_step=global_step, name=name)


@pytest.mark.parametrize("settings", [{}, {"enabled": False}])
@pytest.mark.parametrize(
    "own", [InAnotherOrder, *(OWN[name](SGD) for name in ("pairs_alone", "without_name"))]
)
def test_a_users_apply_gradients_is_called_with_what_it_takes(own, settings):
    with tf.Graph().as_default(), v1.Session() as session:
        weight = v1.get_variable("w", initializer=1.0)
        count = v1.train.get_or_create_global_step()
        optimizer = amp_tf.LossScaleOptimizer(own(0.5), **settings)
        takes_more = len(inspect.signature(own.apply_gradients).parameters) > 2
        counted = {"global_step": count} if takes_more else {}
        step = optimizer.apply_gradients(optimizer.compute_gradients(2.0 * weight), **counted)
        session.run(v1.global_variables_initializer())
        session.run(step)
        assert session.run([weight, count]) == [0.0, len(counted)]
