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
    """A TF1 training graph: minimized, or clipped between compute_gradients and apply_gradients."""

    def __init__(self, how="minimize", make=lambda: v1.train.AdamOptimizer(0.1)):
        self.graph = tf.Graph()
        with self.graph.as_default():
            self.x = v1.placeholder(tf.float32, (None, 3))
            self.weight = v1.get_variable("w", initializer=np.ones((3, 1), "float32"))
            self.steps = v1.train.get_or_create_global_step()
            self.optimizer = make()
            self.step = self._make_step(how, tf.reduce_mean((self.x @ self.weight - 1) ** 2))
            self.saver = v1.train.Saver()
            self.initialize = v1.global_variables_initializer()
            names = [variable.op.name for variable in v1.global_variables()]
            self.scales = [name for name in names if "loss_scale" in name]

    def _make_step(self, how, loss):
        if how == "minimize":
            return self.optimizer.minimize(loss, self.steps)
        gradients, variables = zip(*self.optimizer.compute_gradients(loss), strict=True)
        clipped, _ = tf.clip_by_global_norm(gradients, 0.5)
        pairs = list(zip(clipped, variables, strict=True))
        return self.optimizer.apply_gradients(pairs, self.steps)

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


BATCHES = [np.random.RandomState(i).randn(4, 3).astype("float32") for i in range(5)]
NANS = np.full((4, 3), np.nan, "float32")


def test_case_27_a_tf1_optimizer_that_is_wrapped_is_left_alone():
    wrap = v1.mixed_precision.MixedPrecisionLossScaleOptimizer
    with installed():
        theirs = Session(make=lambda: wrap(v1.train.AdamOptimizer(0.1), "dynamic"))
        ours = Session(make=lambda: amp_tf.LossScaleOptimizer(v1.train.AdamOptimizer(0.1)))
        np.testing.assert_array_equal(theirs.train(BATCHES)[0], ours.train(BATCHES)[0])
    assert len(theirs.scales) == 1
    assert len(ours.scales) == 2


@pytest.fixture(params=["TF1", "TF2"])
def control_flow(request):
    if request.param == "TF1":
        v1.disable_control_flow_v2()
    yield request.param
    v1.enable_control_flow_v2()


@pytest.mark.usefixtures("control_flow")
def test_case_32_and_k09_a_float32_saver_checkpoint_restores_into_the_scaled_graph(tmp_path, log):
    plain = Session()
    plain.train(BATCHES[:2], path=str(tmp_path / "plain"))
    with installed():
        weight, steps = Session().train(
            BATCHES[2:], restore=str(tmp_path / "plain"), path=str(tmp_path / "scaled")
        )
        again, _ = Session().train([], restore=str(tmp_path / "scaled"))
    expected, count = plain.train(BATCHES)
    np.testing.assert_array_equal(weight, expected)
    np.testing.assert_array_equal(again, expected)
    assert steps == count
    assert len(log("the loss scale starts at its initial value")) == 1


@pytest.mark.usefixtures("control_flow")
def test_a_partitioned_variable_is_restored_from_a_float32_checkpoint(tmp_path):
    def run(path, *, is_new):
        with tf.Graph().as_default(), v1.Session() as session:
            weight = v1.get_variable(
                "w",
                (4, 3),
                partitioner=v1.fixed_size_partitioner(2),
                use_resource=v1.control_flow_v2_enabled(),
            )
            loss = tf.reduce_sum(tf.convert_to_tensor(weight) ** 2)
            v1.train.GradientDescentOptimizer(0.1).minimize(loss)
            saver = v1.train.Saver()
            session.run(v1.global_variables_initializer())
            if is_new:
                saver.restore(session, path)
            else:
                saver.save(session, path)
            return session.run(tf.convert_to_tensor(weight))

    path = str(tmp_path / "plain")
    saved = run(path, is_new=False)
    with installed():
        np.testing.assert_array_equal(run(path, is_new=True), saved)


@pytest.mark.usefixtures("control_flow")
@pytest.mark.parametrize("scope", [None, "training"])
def test_an_optimizers_variables_are_called_as_without_loss_scaling(scope):
    def names():
        with tf.Graph().as_default(), v1.name_scope(scope):
            weight = v1.get_variable("w", initializer=[1.0])
            v1.train.AdamOptimizer(0.1).minimize(tf.reduce_sum(weight**2))
            own = [v for v in v1.global_variables() if not loss_scaling_v1.is_scale(v)]
            return {variable.op.name for variable in own}

    expected = names()
    with installed():
        assert names() == expected


def test_a_tf1_optimizer_with_its_wrapper_is_garbage_when_nobody_uses_it():
    with installed():
        session = Session()
    gone = weakref.ref(session.optimizer)
    del session
    gc.collect()
    assert gone() is None


class Delegating(v1.train.Optimizer):
    """As Horovod's DistributedOptimizer does: averages between the two calls to another
    optimizer.
    """

    def __init__(self, inner=None):
        super().__init__(use_locking=False, name="Delegating")
        self._inner = inner or v1.train.AdamOptimizer(0.1)

    def compute_gradients(self, *args, **kwargs):
        return [(g * 1.0, v) for g, v in self._inner.compute_gradients(*args, **kwargs)]

    def apply_gradients(self, *args, **kwargs):
        return self._inner.apply_gradients(*args, **kwargs)


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
            moved = momentum.assign(0.9 * momentum + factor * gradient)
            updates.append(variable.assign_sub(self.rate * moved))
        return tf.group(*updates)


OPTIMIZERS = {
    "of TensorFlow": lambda: v1.train.AdamOptimizer(0.1),
    "delegating to another": Delegating,
    "replacing the base class's step": Replacing,
    "around one that does": lambda: Delegating(Replacing()),
}


@pytest.mark.parametrize("kind", [*OPTIMIZERS, "from before the switch"])
@pytest.mark.parametrize("how", ["minimize", "clip"])
def test_an_optimizer_is_scaled_by_itself_once_and_its_nonfinite_steps_are_skipped(
    how, kind, monkeypatch
):
    monkeypatch.setattr(ledger, "_ledger", ledger._Ledger())
    make = OPTIMIZERS.get(kind, Replacing)
    before = make()
    with installed():
        session = Session(how, make if kind in OPTIMIZERS else lambda: before)
        weight, steps = session.train([*BATCHES[:2], NANS, *BATCHES[2:], NANS])
    assert len(session.scales) == 2  # the scale and its counters
    assert loss_scaling.describe() == "loss scale 2^13, 2 of 7 steps skipped"
    expected, count = Session(how, make).train(BATCHES)
    np.testing.assert_array_equal(weight, expected)
    assert steps == count == 5


@pytest.fixture
def small():
    """A session with one weight and a placeholder that it is multiplied with."""
    with installed(), tf.Graph().as_default(), v1.Session() as session:
        weight = v1.get_variable("w", initializer=[1.0])
        yield session, weight, v1.placeholder(tf.float32, [1])


@pytest.mark.parametrize("by_name", [False, True])
def test_a_step_that_replaces_the_base_classs_gets_its_own_arguments(by_name, small):
    session, weight, _ = small
    optimizer = Replacing(0.25)
    pairs = optimizer.compute_gradients(tf.reduce_sum(weight))
    if by_name:
        step = optimizer.apply_gradients(grads_and_vars=pairs, global_step=None, factor=2.0)
    else:
        step = optimizer.apply_gradients(pairs, None, None, 2.0)
    session.run(v1.global_variables_initializer())
    session.run(step)
    assert session.run(weight).tolist() == [0.5]


def test_a_step_that_replaces_the_base_classs_on_gradients_of_its_own_is_warned_and_skipped(
    small, log
):
    session, weight, x = small
    (gradient,) = tf.gradients(tf.reduce_sum(weight * x), [weight])
    step = Replacing(0.25).apply_gradients([(gradient, weight)], None)
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


class Wordless(Unconditional):
    """Its error has no text, as that of an assertion."""

    def apply_gradients(self, *args, **kwargs):
        try:
            return super().apply_gradients(*args, **kwargs)
        except Exception:
            raise AssertionError from None


@pytest.mark.parametrize("optimizer", [Unconditional, Wordless])
def test_a_step_that_fails_inside_a_condition_gets_zeros_for_nonfinite_gradients(
    optimizer, small, log
):
    session, weight, x = small
    steps = v1.train.get_or_create_global_step()
    step = optimizer().minimize(tf.reduce_sum(weight * x), steps)
    session.run(v1.global_variables_initializer())
    for value in (2.0, np.inf, 1.0):
        session.run(step, {x: [value]})
    (total,) = v1.global_variables("total")
    (scale,) = v1.global_variables("current_loss_scale")
    assert session.run([weight, total]) == [[0.25], [3.0]]
    assert session.run([scale, steps]) == [2.0**14, 3]
    assert len(log("the step cannot be built inside a condition")) == 1


def test_a_class_gets_its_own_step_back():
    original = vars(Replacing)["apply_gradients"]
    with installed():
        Replacing()
        assert vars(Replacing)["apply_gradients"] is not original
    assert vars(Replacing)["apply_gradients"] is original


@pytest.mark.parametrize("first", ["initializer", "optimizer"])
def test_a_session_need_not_initialize_what_the_program_does_not_know(first, small, tmp_path):
    session, weight, _ = small
    initialize = weight.initializer
    if first == "initializer":
        initialize = v1.global_variables_initializer()
    step = v1.train.GradientDescentOptimizer(0.25).minimize(tf.reduce_sum(weight**2))
    saver = v1.train.Saver()
    session.run(initialize)
    saver.save(session, str(tmp_path / "before"))
    for _ in range(2):
        session.run(step)
    assert session.run(weight).tolist() == [0.25]
    assert session.run(v1.global_variables("current_loss_scale")) == [2.0**15]
    saver.restore(session, str(tmp_path / "before"))
    assert session.run(weight).tolist() == [1.0]
    assert session.run(v1.global_variables("current_loss_scale")) == [2.0**15]


def test_an_error_of_restore_or_save_is_the_programs_own(small, tmp_path, log):
    session, weight, _ = small
    v1.train.GradientDescentOptimizer(0.25).minimize(tf.reduce_sum(weight**2))
    other = v1.get_variable("other", initializer=1.0)
    saver = v1.train.Saver()
    session.run(weight.initializer)
    for path in (None, str(tmp_path / "absent")):
        with pytest.raises(ValueError, match="save_path"):
            saver.restore(session, path)
    with pytest.raises(tf.errors.FailedPreconditionError, match="other"):
        saver.save(session, str(tmp_path / "uninitialized"))
    session.run(other.initializer)
    v1.train.Saver([weight]).save(session, str(tmp_path / "weight"))
    with pytest.raises(tf.errors.NotFoundError, match="missing"):
        saver.restore(session, str(tmp_path / "weight"))
    session.close()
    with pytest.raises(RuntimeError, match="closed"):
        saver.save(session, str(tmp_path / "closed"))
    assert not log("automatic loss scaling failed")


def test_a_saver_of_eager_variables_is_left_alone(tmp_path, log):
    one = tf.Variable([1.0])
    other = tf.Variable([1.0])
    with installed():
        saver = v1.train.Saver({"one": one})
        path = saver.save(None, str(tmp_path / "one"))
        one.assign([2.0])
        saver.restore(None, path)
        with pytest.raises(tf.errors.NotFoundError, match="other"):
            v1.train.Saver({"other": other}).restore(None, path)
    assert one.numpy().tolist() == [1.0]
    assert not log("automatic loss scaling failed")
