"""Automatic loss scaling of ``tf.compat.v1.train`` optimizers, and the checkpoints that they
restore.
"""

import gc
import weakref

import numpy as np
import pytest
import tensorflow as tf

import amp_tf
from amp_tf.hooks import loss_scaling, loss_scaling_v1
from amp_tf.loss_scaling import ledger
from tests.hooks.loss_scaling.setup import installed

v1 = tf.compat.v1


class Session:
    """A TF1 training graph: Adam, clipped between compute_gradients and apply_gradients or
    minimized.
    """

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
                self.graph.finalize()  # as a MonitoredSession does
                self.saver.restore(session, restore)
            for batch in batches:
                session.run(self.step, {self.x: batch})
            if path:
                self.saver.save(session, path)
            return session.run([self.weight, self.steps])

    @property
    def scales(self):
        return [
            v.op.name for v in self.graph.get_collection("variables") if "loss_scale" in v.op.name
        ]


BATCHES = [np.random.RandomState(i).randn(4, 3).astype("float32") for i in range(5)]
NANS = np.full((4, 3), np.nan, "float32")


def test_case_27_a_tf1_optimizer_that_is_wrapped_is_left_alone():
    def make():
        return v1.mixed_precision.MixedPrecisionLossScaleOptimizer(
            v1.train.AdamOptimizer(0.1), "dynamic"
        )

    with installed():
        theirs = Session(make=make)
        ours = Session(make=lambda: amp_tf.LossScaleOptimizer(v1.train.AdamOptimizer(0.1)))
        np.testing.assert_array_equal(theirs.train(BATCHES)[0], ours.train(BATCHES)[0])
    assert len(theirs.scales) == 1
    assert len(ours.scales) == 2


class Delegating(v1.train.Optimizer):
    """As Horovod's DistributedOptimizer does: averages between the two calls to another
    optimizer.
    """

    def __init__(self):
        super().__init__(use_locking=False, name="Delegating")
        self._inner = v1.train.AdamOptimizer(0.1)

    def compute_gradients(self, *args, **kwargs):
        return [(g * 1.0, v) for g, v in self._inner.compute_gradients(*args, **kwargs)]

    def apply_gradients(self, *args, **kwargs):
        return self._inner.apply_gradients(*args, **kwargs)


@pytest.fixture(params=["TF1", "TF2"])
def control_flow(request):
    if request.param == "TF1":
        v1.disable_control_flow_v2()
    yield request.param
    v1.enable_control_flow_v2()


def test_case_32_and_k09_a_float32_saver_checkpoint_restores_into_the_scaled_graph(
    tmp_path, log, control_flow
):
    plain = Session()
    plain.train(BATCHES[:2], path=str(tmp_path / "plain"))
    with installed():
        scaled = Session()
        weight, steps = scaled.train(
            BATCHES[2:], restore=str(tmp_path / "plain"), path=str(tmp_path / "scaled")
        )
        again = Session().train([], restore=str(tmp_path / "scaled"))
    expected, count = plain.train(BATCHES)
    np.testing.assert_array_equal(weight, expected)
    assert steps == count
    np.testing.assert_array_equal(again[0], weight)
    assert len(log("the loss scale starts at its initial value")) == 1


class MakingVariables(v1.train.Optimizer):
    """Makes a variable of its own in each of its steps' graphs, whose name follows the name
    scope.
    """

    def __init__(self):
        super().__init__(use_locking=False, name="MakingVariables")

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        count = v1.Variable(0.0, name="count", trainable=False)
        return tf.group(
            count.assign_add(1.0),
            *[variable.assign_sub(gradient) for gradient, variable in grads_and_vars],
        )


@pytest.mark.parametrize("scope", [None, "training"])
@pytest.mark.parametrize("make", [lambda: v1.train.AdamOptimizer(0.1), MakingVariables])
def test_an_optimizers_variables_are_called_as_without_loss_scaling(make, scope, control_flow):
    def names():
        with tf.Graph().as_default(), v1.name_scope(scope):
            weight = v1.get_variable("w", initializer=[1.0])
            make().minimize(tf.reduce_sum(weight**2))
            return {v.op.name for v in v1.global_variables() if not loss_scaling_v1.is_scale(v)}

    expected = names()
    with installed():
        assert names() == expected


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


class Replacing(v1.train.Optimizer):
    """As BERT's optimizers do: an ``apply_gradients`` that makes variables and never calls the base
    class's.
    """

    def __init__(self, rate=0.01):
        super().__init__(use_locking=False, name="Replacing")
        self.rate = rate

    def apply_gradients(self, grads_and_vars, global_step, name=None, factor=1.0):
        updates = [] if global_step is None else [global_step.assign_add(1)]
        for gradient, variable in grads_and_vars:
            momentum = v1.get_variable(
                f"{variable.op.name}/momentum",
                shape=variable.shape,
                initializer=tf.zeros_initializer(),
            )
            updates.append(
                variable.assign_sub(self.rate * momentum.assign(0.9 * momentum + factor * gradient))
            )
        return tf.group(*updates)


class Around(Delegating):
    """Horovod around BERT's optimizer."""

    def __init__(self):
        super().__init__()
        self._inner = Replacing()


OPTIMIZERS = {
    "of TensorFlow": lambda: v1.train.AdamOptimizer(0.1),
    "delegating to another": Delegating,
    "overriding": lambda: Overriding(0.01),
    "replacing the base class's step": Replacing,
    "around one that does": Around,
}


@pytest.mark.parametrize("kind", [*OPTIMIZERS, "from before the switch"])
@pytest.mark.parametrize("how", ["minimize", "clip"])
def test_an_optimizer_is_scaled_by_itself_once_and_its_nonfinite_steps_are_skipped(how, kind):
    make = OPTIMIZERS.get(kind, Replacing)
    before = make()
    vars(ledger).update(_ledger=ledger._Ledger())
    with installed():
        session = Session(how, make=make if kind in OPTIMIZERS else lambda: before)
        weight, steps = session.train([*BATCHES[:2], NANS, *BATCHES[2:], NANS])
    assert len(session.scales) == 2  # the scale and its counters
    assert loss_scaling.describe() == "loss scale 2^13, 2 of 7 steps skipped"
    expected, count = Session(how, make=make).train(BATCHES)
    np.testing.assert_array_equal(weight, expected)
    assert steps == count == 5


@pytest.mark.parametrize("by_name", [False, True])
def test_a_step_that_replaces_the_base_classs_gets_its_own_arguments(by_name):
    with installed(), tf.Graph().as_default(), v1.Session() as session:
        weight = v1.get_variable("w", initializer=[1.0])
        optimizer = Replacing(0.25)
        pairs = optimizer.compute_gradients(tf.reduce_sum(weight))
        if by_name:
            step = optimizer.apply_gradients(grads_and_vars=pairs, global_step=None, factor=2.0)
        else:
            step = optimizer.apply_gradients(pairs, None, None, 2.0)
        session.run(v1.global_variables_initializer())
        session.run(step)
        assert session.run(weight).tolist() == [0.5]


def test_a_step_that_replaces_the_base_classs_on_gradients_of_its_own_is_warned_and_skipped(log):
    with installed(), tf.Graph().as_default(), v1.Session() as session:
        weight = v1.get_variable("w", initializer=[1.0])
        x = v1.placeholder(tf.float32, [1])
        step = Replacing(0.25).apply_gradients(
            list(zip(tf.gradients(tf.reduce_sum(weight * x), [weight]), [weight], strict=True)),
            None,
        )
        session.run(v1.global_variables_initializer())
        session.run(step, {x: [2.0]})
        session.run(step, {x: [np.nan]})
        assert session.run(weight).tolist() == [0.5]
    (warning,) = log("the loss was never scaled")
    assert "optimizer.compute_gradients(loss, variables)" in warning
    assert "TF_ENABLE_AUTO_MIXED_PRECISION_LOSS_SCALING=0" in warning


class Unconditional(v1.train.Optimizer):
    """An ``apply_gradients`` that fails inside a condition: its variables begin with the value of a
    tensor.
    """

    def __init__(self):
        super().__init__(use_locking=False, name="Unconditional")

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        (gradient, variable), *_ = grads_and_vars
        total = v1.get_variable("total", initializer=tf.zeros_like(variable))
        with tf.control_dependencies(
            [variable.assign_sub(0.25 * gradient), total.assign_add(gradient)]
        ):
            return tf.no_op() if global_step is None else global_step.assign_add(1)


def test_a_step_that_fails_inside_a_condition_gets_zeros_for_nonfinite_gradients(log):
    with installed(), tf.Graph().as_default(), v1.Session() as session:
        weight = v1.get_variable("w", initializer=[1.0])
        x = v1.placeholder(tf.float32, [1])
        step = Unconditional().minimize(
            tf.reduce_sum(weight * x), v1.train.get_or_create_global_step()
        )
        scale = next(v for v in v1.global_variables() if v.op.name == "current_loss_scale")
        session.run(v1.global_variables_initializer())
        for value in (2.0, np.inf, 1.0):
            session.run(step, {x: [value]})
        assert session.run([weight, v1.global_variables("total")[0]]) == [[0.25], [3.0]]
        assert session.run([scale, v1.train.get_global_step()]) == [2.0**14, 3]
    assert len(log("the step cannot be built inside a condition")) == 1


def test_a_class_gets_its_own_step_back():
    original = vars(Replacing)["apply_gradients"]
    with installed():
        Replacing()
        assert vars(Replacing)["apply_gradients"] is not original
    assert vars(Replacing)["apply_gradients"] is original


@pytest.mark.parametrize("first", ["initializer", "optimizer"])
def test_a_session_need_not_initialize_what_the_program_does_not_know(first):
    with installed(), tf.Graph().as_default():
        weight = v1.get_variable("w", initializer=[1.0, 2.0])
        initialize = (
            v1.global_variables_initializer() if first == "initializer" else weight.initializer
        )
        optimizer = v1.train.GradientDescentOptimizer(0.25)
        step = optimizer.minimize(tf.reduce_sum(weight**2))
        with v1.Session() as session:
            session.run(initialize)
            for _ in range(2):
                session.run(step)
            assert session.run(weight).tolist() == [0.25, 0.5]
            assert session.run(v1.global_variables()[-3:])[0] == 2.0**15
