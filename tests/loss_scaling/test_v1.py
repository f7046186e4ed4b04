"""Case 14 and 31 for ``tf.compat.v1.train`` optimizers: sessions, MonitoredSession, Saver, eager
execution.
"""

import numpy as np
import pytest
import tensorflow as tf

import amp_tf
from tests.loss_scaling.programs.own_steps import OWN

v1 = tf.compat.v1
GOOD = [np.random.RandomState(i).randn(4, 3).astype("float32") for i in range(6)]
BAD = np.full((4, 3), np.nan, "float32")


class Graph:
    """A regression with Adam."""

    def __init__(self, is_wrapped, clip=False, loss_dtype=tf.float32, **settings):
        self.graph = tf.Graph()
        with self.graph.as_default():
            self.x = v1.placeholder(tf.float32, (None, 3))
            self.weight = v1.get_variable("w", initializer=np.ones((3, 1), "float32"))
            loss = tf.cast(tf.reduce_mean((self.x @ self.weight - 1) ** 2), loss_dtype)
            self.steps = v1.train.get_or_create_global_step()
            self.optimizer = v1.train.AdamOptimizer(0.1)
            if is_wrapped:
                self.optimizer = amp_tf.LossScaleOptimizer(self.optimizer, **settings)
            ((gradient, _),) = self.optimizer.compute_gradients(loss)
            if clip:
                (gradient,), _ = tf.clip_by_global_norm([gradient], 0.5)
            pairs = [(gradient, self.weight)]
            self.step = self.optimizer.apply_gradients(pairs, global_step=self.steps)
            self.saver = v1.train.Saver()
            self.initialize = v1.global_variables_initializer()

    def session(self):
        """A session with fresh variables."""
        session = v1.Session(graph=self.graph)
        session.run(self.initialize)
        return session

    def train(self, batches, session):
        """Trains, and returns the weights."""
        for batch in batches:
            session.run(self.step, {self.x: batch})
        return session.run(self.weight)


def trained_alone(clip=False):
    bare = Graph(False, clip)
    with bare.session() as session:
        return bare.train(GOOD, session)


@pytest.mark.parametrize("clip", [False, True])
def test_case_14_and_20_a_session_skips_a_nonfinite_step_and_global_step_waits(clip):
    wrapped = Graph(True, clip, dynamic_growth_steps=4)
    with wrapped.session() as session:
        actual = wrapped.train([*GOOD[:3], BAD, *GOOD[3:]], session)
        status = wrapped.optimizer.status(session)
        assert session.run(wrapped.steps) == 6
    np.testing.assert_array_equal(actual, trained_alone(clip))
    assert (status.scale, status.skipped, status.steps, status.last_change) == (2.0**14, 1, 7, 4)


def test_global_step_goes_on_after_a_hundred_skipped_steps_so_that_a_program_ends():
    wrapped = Graph(True)
    with wrapped.session() as session:
        wrapped.train([BAD] * 99, session)
        assert session.run(wrapped.steps) == 0
        wrapped.train([BAD] * 3, session)
        assert session.run(wrapped.steps) == 3
        wrapped.train([GOOD[0], BAD], session)
        assert session.run(wrapped.steps) == 4


def test_case_31_and_32_a_saver_of_a_wrapped_graph_restores_into_wrapped_and_bare(tmp_path):
    wrapped = Graph(True, dynamic_growth_steps=2)
    again = Graph(True, dynamic_growth_steps=2)
    with wrapped.session() as session:
        wrapped.train([*GOOD[:3], BAD], session)
        path = wrapped.saver.save(session, str(tmp_path / "ckpt"))
        expected = wrapped.train(GOOD[3:], session)
        status = wrapped.optimizer.status(session)
    for other in (again, Graph(False)):
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
    wrapped = Graph(True, loss_dtype=tf.float16)
    with wrapped.session() as session:
        actual = wrapped.train(GOOD, session)
    np.testing.assert_allclose(actual, trained_alone(), rtol=2e-3)


def test_eager_execution_works_too():
    weight = v1.Variable([1.0, 2.0])
    optimizer = amp_tf.LossScaleOptimizer(v1.train.GradientDescentOptimizer(0.25))
    factor = tf.Variable(1.0)
    for value in (1.0, np.nan):
        factor.assign(value)
        optimizer.minimize(lambda: tf.reduce_sum(weight**2) * factor, var_list=[weight])
    assert weight.numpy().tolist() == [0.5, 1.0]
    assert optimizer.status().skipped == 1
    assert optimizer.status().nonfinite_losses_in_row == 1


def test_slots_are_those_of_the_inner_optimizer():
    wrapped = Graph(True)
    assert sorted(wrapped.optimizer.get_slot_names()) == ["m", "v"]
    assert wrapped.optimizer.get_slot(wrapped.weight, "m") is not None


def test_the_scale_refuses_to_work_in_another_wrapper():
    wrapped = amp_tf.LossScaleOptimizer(v1.train.GradientDescentOptimizer(0.1))
    told = r"only inside amp_tf's own wrapper. Wrap the optimizer with amp_tf"
    with pytest.raises(amp_tf.ConfigError, match=told):
        wrapped._loss_scale.update([])


SGD = v1.train.GradientDescentOptimizer


class InAnotherOrder(SGD):
    def apply_gradients(self, grads_and_vars, name=None, global_step=None):
        return super().apply_gradients(grads_and_vars, global_step=global_step, name=name)


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize(
    ("own", "counts"),
    [(InAnotherOrder, True), (OWN["pairs_alone"](SGD), False), (OWN["without_name"](SGD), True)],
)
def test_a_users_apply_gradients_is_called_with_what_it_takes(own, counts, enabled):
    with tf.Graph().as_default(), v1.Session() as session:
        weight = v1.get_variable("w", initializer=1.0)
        count = v1.train.get_or_create_global_step()
        optimizer = amp_tf.LossScaleOptimizer(own(0.5), enabled=enabled)
        gradients = optimizer.compute_gradients(2.0 * weight)
        counted = {"global_step": count} if counts else {}
        step = optimizer.apply_gradients(gradients, **counted)
        session.run(v1.global_variables_initializer())
        session.run(step)
        assert session.run([weight, count]) == [0.0, counts]


def test_further_arguments_are_passed_on():
    with tf.Graph().as_default(), v1.Session() as session:
        weight = v1.get_variable("w", initializer=1.0)
        optimizer = amp_tf.LossScaleOptimizer(SGD(0.5))
        pairs = optimizer.compute_gradients(2.0 * weight)
        step = optimizer.apply_gradients(pairs, skip_gradients_aggregation=True)
        session.run(v1.global_variables_initializer())
        session.run(step)
        assert session.run(weight) == 0.0
        with pytest.raises(TypeError, match="no_such"):
            optimizer.apply_gradients(pairs, no_such=1)


def test_synchronous_replicas_go_on_after_a_skipped_step():
    values = (1.0, np.inf, 1.0, 1.0)
    with tf.Graph().as_default():
        x = v1.placeholder(tf.float32, ())
        weight = v1.get_variable("w", initializer=1.0)
        count = v1.train.get_or_create_global_step()
        inner = amp_tf.LossScaleOptimizer(SGD(0.25))
        optimizer = v1.train.SyncReplicasOptimizer(inner, replicas_to_aggregate=1)
        step = optimizer.minimize(weight * x, global_step=count)
        # Without tokens at the start, each turn waits for its own step.
        hooks = [optimizer.make_session_run_hook(is_chief=True, num_tokens=0)]
        # A gradient that is dropped as too old would be waited for without an end.
        patience = v1.ConfigProto(operation_timeout_in_ms=20_000)
        options = {"config": patience, "stop_grace_period_secs": 1}  # for the queue of tokens
        with v1.train.MonitoredTrainingSession(hooks=hooks, **options) as session:
            for value in values:
                session.run(step, {x: value})
            assert session.run([weight, count]) == [0.25, 4]
            assert session.run(inner.loss_scale) < 2.0**15


def test_a_session_is_ready_whose_initializer_was_made_before_the_optimizer():
    with tf.Graph().as_default():
        weight = v1.get_variable("w", initializer=1.0)
        count = v1.train.get_or_create_global_step()
        initialize = v1.global_variables_initializer()
        optimizer = amp_tf.LossScaleOptimizer(SGD(0.25), 8.0)
        step = optimizer.minimize(1.0 * weight, global_step=count)
        creator = v1.train.ChiefSessionCreator(v1.train.Scaffold(init_op=initialize))
        with v1.train.MonitoredSession(creator) as session:
            assert session.run(optimizer.loss_scale) == 8.0
            session.run(step)
            assert session.run(weight) == 0.75


def test_a_step_of_gradients_that_the_program_accumulated_needs_no_batch():
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, ())
        weight = v1.get_variable("w", initializer=8.0)
        total = v1.get_variable("total", initializer=0.0, trainable=False)
        optimizer = amp_tf.LossScaleOptimizer(SGD(0.5))
        ((gradient, _),) = optimizer.compute_gradients(x * weight, [weight])
        accumulate = total.assign_add(gradient)
        step = optimizer.apply_gradients([(total / 2, weight)])
        session.run(v1.global_variables_initializer())
        for batches, expected in (((1.0, 3.0), 7.0), ((1.0, np.nan), 7.0), ((2.0, 2.0), 6.0)):
            for batch in batches:
                session.run(accumulate, {x: batch})
            session.run(step)
            session.run(total.initializer)
            assert session.run(weight) == expected
        status = optimizer.status(session)
        assert (status.scale, status.skipped, status.steps) == (2.0**14, 1, 3)


def test_a_program_may_set_all_variables_to_zero_but_those_it_trains():
    with tf.Graph().as_default(), v1.Session() as session:
        weight = v1.get_variable("w", initializer=1.0)
        optimizer = amp_tf.LossScaleOptimizer(SGD(0.25), 8.0)
        step = optimizer.minimize(1.0 * weight)
        others = [v for v in v1.global_variables() if v is not weight]
        reset = tf.group(*[variable.assign(tf.zeros_like(variable)) for variable in others])
        session.run(v1.global_variables_initializer())
        for before in (1.0, 0.75):
            session.run(reset)
            session.run(step)
            assert session.run(weight) == before - 0.25
            status = optimizer.status(session)
            assert (status.scale, status.skipped, status.steps) == (8.0, 0, 1)


@pytest.mark.parametrize("make", [SGD, v1.train.AdamOptimizer])
@pytest.mark.parametrize("value", [1.0, np.nan])
def test_reference_variables_train_where_conditions_are_functions(make, value):
    assert v1.control_flow_v2_enabled()
    with tf.Graph().as_default(), v1.Session() as session:
        weight = v1.get_variable("w", initializer=1.0, use_resource=False)
        optimizer = amp_tf.LossScaleOptimizer(make(0.5))
        step = optimizer.minimize(weight * value)
        session.run(v1.global_variables_initializer())
        session.run(step)
        assert session.run(weight) == pytest.approx(0.5 if value == 1.0 else 1.0)
        assert optimizer.status(session).steps == 1
    assert v1.control_flow_v2_enabled()


@pytest.fixture(params=["as functions", "of TF1"])
def conditions(request):
    if request.param == "of TF1":
        v1.disable_control_flow_v2()
    yield
    v1.enable_control_flow_v2()


def test_variables_that_conditions_make_have_the_names_that_a_bare_optimizer_gives_them(conditions):
    def names(wrap):
        with tf.Graph().as_default():
            weight = v1.get_variable("w", initializer=1.0)
            optimizer = wrap(v1.train.AdamOptimizer(0.5))
            pairs = optimizer.compute_gradients(weight * weight)
            steps = v1.train.get_or_create_global_step()

            def step():
                with tf.control_dependencies([optimizer.apply_gradients(pairs, steps)]):
                    return tf.identity(0)

            for _ in range(2):
                tf.cond(weight > 0, step, lambda: tf.constant(0))
            tf.cond(weight > 0, lambda: tf.Variable(lambda: 1.0) + 0.0, lambda: 0.0)
            return {variable.op.name for variable in v1.global_variables()}

    of_scale = {"current_loss_scale", "good_steps", "loss_scale_counters"}
    assert names(amp_tf.LossScaleOptimizer) - of_scale == names(lambda optimizer: optimizer)
