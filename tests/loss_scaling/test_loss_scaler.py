"""``amp_tf.LossScaler`` by the cases of a loss scaler, where they apply to a loop that writes its
own variables.
"""

import copy
import pickle

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.autograph.impl import api

import amp_tf
from tests.loss_scaling.steps import (
    MODES,
    assert_same,
    eager_and_traced,
    gradients,
    in_mode,
    poisoned,
)
from tests.small_graphs import all_nodes

v1 = tf.compat.v1


class Momentum:
    """An optimizer as Sonnet's: ``apply(updates, parameters)``, with state that it makes at its
    first step.
    """

    def __init__(self):
        self.sums = []

    def apply(self, updates, parameters):
        if not self.sums:
            self.build(parameters)
        for update, total, parameter in zip(updates, self.sums, parameters, strict=True):
            total.assign(0.5 * total + update)
            parameter.assign_sub(0.25 * total)

    def build(self, parameters):
        with tf.init_scope():
            self.sums = [tf.Variable(tf.zeros(parameter.shape)) for parameter in parameters]


class Bare:
    """Takes the scaler's place in a loop without one."""

    def scale(self, loss):
        return loss

    def unscale(self, grads):
        return grads

    def step(self, apply, grads, *args):
        apply(grads, *args)


def parameters():
    return [tf.Variable(value) for value in gradients(7)]


def make_step(scaler, weights, optimizer, mode="function"):
    def step(*grads):
        with tf.GradientTape() as tape:
            terms = [tf.reduce_sum(w * g) for w, g in zip(weights, grads, strict=True)]
            loss = scaler.scale(tf.add_n(terms))
        return scaler.step(optimizer.apply, scaler.unscale(tape.gradient(loss, weights)), weights)

    return in_mode(step, mode)


def run(scaler, trace, mode):
    weights = parameters()
    optimizer = Momentum()
    step = make_step(scaler, weights, optimizer, mode)
    for grads in trace:
        step(*grads)
    return [variable.numpy() for variable in (*weights, *optimizer.sums)]


def take_step(scaler, gradient, weight):
    """One eager step whose scaled gradient is given."""
    scaler.scale(tf.constant(1.0))
    return bool(scaler.step(weight.assign_sub, scaler.unscale(tf.constant(gradient))))


TRACE = [gradients(i) for i in range(4)]
NAN = poisoned(gradients(9), 0, np.nan)
INFINITY = poisoned(gradients(9), 2, -np.inf)
POISONED = [TRACE[0], NAN, TRACE[1], TRACE[2], INFINITY, TRACE[3]]


@pytest.mark.parametrize("mode", MODES)
def test_case_03_and_12_a_nonfinite_step_leaves_weights_and_state_in_every_mode(mode):
    scaler = amp_tf.LossScaler(dynamic_growth_steps=2)
    assert_same(run(scaler, POISONED, mode), run(Bare(), TRACE, mode))
    status = scaler.status()
    # down at the second step, up after two good ones, down at the fifth
    assert (status.scale, status.skipped, status.steps, status.good_steps) == (2.0**14, 2, 6, 1)


@pytest.mark.parametrize("mode", MODES)
def test_case_11_disabled_is_the_bare_loop_and_fixed_never_moves(mode):
    disabled = amp_tf.LossScaler(enabled=False)
    assert_same(run(disabled, TRACE, mode), run(Bare(), TRACE, mode))
    fixed = amp_tf.LossScaler(64.0, 1, dynamic=False)
    assert_same(run(fixed, POISONED, mode), run(Bare(), TRACE, mode))
    assert disabled.status().scale == 1.0
    assert disabled.status().steps == 4
    assert fixed.status().scale == 64.0
    assert fixed.status().skipped == 2


def test_case_13_one_trace_nothing_on_the_host_and_nothing_for_autograph_to_complain_of(
    monkeypatch,
):
    left = []
    monkeypatch.setattr(api, "_attach_error_metadata", lambda e, f: left.append(f))
    weights = parameters()
    optimizer = Momentum()
    optimizer.build(weights)  # or TensorFlow itself traces twice
    step = make_step(amp_tf.LossScaler(), weights, optimizer)
    for grads in POISONED:
        step(*grads)
    assert step.experimental_get_tracing_count() == 1
    definition = step.get_concrete_function(*TRACE[0]).graph.as_graph_def()
    assert [node.name for node in all_nodes(definition) if node.op.endswith("PyFunc")] == []
    assert not left


def test_case_14_a_session_runs_the_step_or_skips_it():
    with tf.Graph().as_default(), v1.Session() as session:
        scaler = amp_tf.LossScaler(2.0**10)
        x = v1.placeholder(tf.float32, ())
        weight = v1.get_variable("w", initializer=1.0)
        grads = scaler.unscale(tf.gradients(scaler.scale(weight * x), [weight]))
        step = scaler.step(lambda grads: weight.assign_sub(grads[0]), grads)
        session.run(v1.global_variables_initializer())
        taken = [bool(session.run(step, {x: value})) for value in (0.25, np.nan, 0.25)]
        assert taken == [True, False, True]
        assert session.run([weight, scaler.loss_scale]) == [0.5, 2.0**9]


@eager_and_traced
def test_case_22_two_optimizers_of_one_loss_unscale_before_the_first_step(mode):
    scaler = amp_tf.LossScaler(4.0, 1)
    a = tf.Variable(1.0)
    b = tf.Variable(1.0)

    def step():
        with tf.GradientTape() as tape:
            loss = scaler.scale(a * 0.5 + b * 0.25)
        first, second = tape.gradient(loss, [a, b])
        first = scaler.unscale(first)
        second = scaler.unscale(second)
        scaler.step(a.assign_sub, first)
        scaler.step(b.assign_sub, second)

    in_mode(step, mode)()
    assert a.numpy() == 0.5
    assert b.numpy() == 0.75


def test_case_24_and_25_none_and_sparse_stay_so_in_any_nest_and_all_none_is_refused():
    scaler = amp_tf.LossScaler()
    handed = []
    for value in (2.0**15, np.inf):
        rows = tf.IndexedSlices(tf.constant([[value]]), tf.constant([1]), tf.constant([3, 1]))
        scaler.scale(1.0)
        grads = {"a": tf.constant(2.0**15), "b": None, "c": (tf.constant([0.0]),), "d": rows}
        scaler.step(handed.append, scaler.unscale(grads))
    (taken,) = handed
    assert taken["d"].values.numpy().tolist() == [[1.0]]
    assert taken["d"].indices.numpy().tolist() == [1]
    assert taken["a"] == 1.0
    assert taken["b"] is None
    assert isinstance(taken["c"], tuple)
    for nothing in ([None, None], []):
        scaler.scale(1.0)
        with pytest.raises(ValueError, match="No gradients provided for any variable"):
            scaler.step(handed.append, scaler.unscale(nothing))


def ignore(gradients):
    pass


def nothing_scaled(scaler, loss):
    scaler.unscale([loss])


def nothing_unscaled(scaler, loss):
    scaler.scale(loss)
    scaler.step(ignore, [loss])


def unscaled_twice(scaler, loss):
    scaler.scale(loss)
    scaler.unscale(scaler.unscale([loss]))


def scaled_ones(scaler, loss):
    scaler.scale(loss)
    scaler.unscale([loss])
    scaler.step(ignore, [loss])


def late(scaler, loss):
    scaler.scale(loss)
    scaler.step(ignore, scaler.unscale([loss]))
    scaler.unscale([loss])


def step_twice(scaler, loss):
    scaler.scale(loss)
    unscaled = scaler.unscale([loss])
    scaler.step(ignore, unscaled)
    scaler.step(ignore, unscaled)


NO_LOSS = "unscale() was called, but no loss was scaled since the last step"
NO_GRADIENTS = "step() was called, but no gradients were unscaled since the last step"
WRONG = {
    nothing_scaled: NO_LOSS,
    nothing_unscaled: NO_GRADIENTS,
    unscaled_twice: "unscale() got gradients that it unscaled already",
    scaled_ones: "step() got gradients as unscale() was given them",
    late: NO_LOSS,
    step_twice: NO_GRADIENTS,
}


@eager_and_traced
@pytest.mark.parametrize("calls", WRONG)
def test_case_28_a_wrong_order_is_an_error_that_says_what_to_write(calls, mode):
    scaler = amp_tf.LossScaler()

    @tf.autograph.experimental.do_not_convert
    def loop(loss):
        calls(scaler, loss)

    with pytest.raises(amp_tf.CallOrderError) as error:
        in_mode(loop, mode)(tf.constant(1.0))
    assert str(error.value).startswith(f"LossScaler: {WRONG[calls]}")
    assert "scaled_loss = scaler.scale(loss)" in str(error.value)


def test_case_28_a_trace_that_failed_does_not_spoil_the_next_one():
    scaler = amp_tf.LossScaler()
    weight = tf.Variable(1.0)

    @tf.function
    def fails():
        scaler.unscale([scaler.scale(weight)])
        raise ValueError("no data")

    with pytest.raises(ValueError, match="no data"):
        fails()
    assert take_step(scaler, 1.0, weight)


def test_case_31_a_run_that_goes_on_from_a_checkpoint_equals_one_that_was_not_interrupted(tmp_path):
    scaler = amp_tf.LossScaler(dynamic_growth_steps=2)
    weight = tf.Variable(0.0)
    for gradient in (1.0, np.nan, 1.0):
        take_step(scaler, gradient, weight)
    path = tf.train.Checkpoint(scaler=scaler).write(str(tmp_path / "half"))
    again = amp_tf.LossScaler(dynamic_growth_steps=2)
    tf.train.Checkpoint(scaler=again).read(path).assert_consumed()
    for each in (scaler, again):
        take_step(each, 1.0, weight)
    assert again.status() == scaler.status()
    assert again.status().scale == 2.0**15


@pytest.mark.parametrize(
    "clone", [copy.deepcopy, lambda scaler: pickle.loads(pickle.dumps(scaler))]
)
def test_case_33_a_copy_has_the_state_and_goes_its_own_way(clone):
    scaler = amp_tf.LossScaler(8.0)
    weight = tf.Variable(0.0)
    take_step(scaler, np.inf, weight)
    other = clone(scaler)
    assert other.status() == scaler.status()
    take_step(other, np.inf, weight)
    assert float(scaler.loss_scale) == 4.0
    assert float(other.loss_scale) == 2.0


class Exported(tf.Module):
    """A module whose training step can be called from a SavedModel."""

    def __init__(self):
        super().__init__()
        self.weight = tf.Variable(1.0)
        self.scaler = amp_tf.LossScaler()

    @tf.function(input_signature=[tf.TensorSpec([])])
    def train(self, gradient):
        scaled = self.scaler.unscale([self.scaler.scale(gradient)])
        self.scaler.step(lambda gradients: self.weight.assign_sub(gradients[0]), scaled)
        return self.weight.read_value(), self.scaler.loss_scale.read_value()


def test_a_step_is_exported_with_its_scale(tmp_path):
    trainer = Exported()
    trainer.train(tf.constant(np.nan))
    tf.saved_model.save(trainer, str(tmp_path))
    exported = tf.saved_model.load(str(tmp_path))
    assert list(map(float, exported.train(tf.constant(0.25)))) == [0.75, 2.0**14]
    assert list(map(float, exported.train(tf.constant(np.inf)))) == [0.75, 2.0**13]
