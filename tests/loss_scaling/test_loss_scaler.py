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
from tests.loss_scaling.steps import MODES, assert_same, gradients, poisoned

v1 = tf.compat.v1


class Momentum:
    """An optimizer as Sonnet's: ``apply(updates, parameters)``, with state that it makes at its
    first step.
    """

    def __init__(self, rate=0.25, momentum=0.5):
        self.rate, self.momentum, self.sums = rate, momentum, []

    def apply(self, updates, parameters):
        if not self.sums:
            with tf.init_scope():
                self.sums = [tf.Variable(tf.zeros(p.shape)) for p in parameters]
        for update, total, parameter in zip(updates, self.sums, parameters, strict=True):
            if update is not None:
                total.assign(self.momentum * total + update)
                parameter.assign_sub(self.rate * total)


class Bare:
    """Takes the scaler's place in a loop without one."""

    def scale(self, loss):
        return loss

    def unscale(self, grads):
        return grads

    def step(self, apply, grads, *args):
        apply(grads, *args)


def parameters():
    rng = np.random.RandomState(7)
    return [tf.Variable(np.asarray(rng.randn(*shape), "float32")) for shape in ((3,), (2, 2), ())]


def make_step(scaler, weights, optimizer, mode="function"):
    def step(*grads):
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(w * g) for w, g in zip(weights, grads, strict=True)])
            loss = scaler.scale(loss)
        return scaler.step(optimizer.apply, scaler.unscale(tape.gradient(loss, weights)), weights)

    return step if mode == "eager" else tf.function(step, jit_compile=mode == "xla")


def run(scaler, trace, mode="function"):
    weights = parameters()
    optimizer = Momentum()
    step = make_step(scaler, weights, optimizer, mode)
    for grads in trace:
        step(*[tf.constant(g) for g in grads])
    return [v.numpy() for v in (*weights, *optimizer.sums)]


def take_step(scaler, gradient, weight):
    """One eager step whose scaled gradient is given."""
    scaler.scale(tf.constant(1.0))
    return bool(
        scaler.step(
            lambda grads: weight.assign_sub(grads[0]), scaler.unscale([tf.constant(gradient)])
        )
    )


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
    assert (disabled.status().scale, disabled.status().steps) == (1.0, 4)
    assert (fixed.status().scale, fixed.status().skipped) == (64.0, 2)


def test_case_13_one_trace_nothing_on_the_host_and_nothing_for_autograph_to_complain_of(
    monkeypatch,
):
    left = []
    monkeypatch.setattr(api, "_attach_error_metadata", lambda e, f: left.append(f))
    scaler = amp_tf.LossScaler()
    weights = parameters()
    optimizer = Momentum()
    optimizer.sums = [
        tf.Variable(tf.zeros(w.shape)) for w in weights
    ]  # or TensorFlow itself traces twice
    step = make_step(scaler, weights, optimizer)
    for grads in POISONED:
        step(*[tf.constant(g) for g in grads])
    assert step.experimental_get_tracing_count() == 1
    definition = step.get_concrete_function(
        *[tf.constant(g) for g in TRACE[0]]
    ).graph.as_graph_def()
    ops = {node.op for f in definition.library.function for node in f.node_def} | {
        n.op for n in definition.node
    }
    assert not {op for op in ops if op.endswith("PyFunc")}
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


@pytest.mark.parametrize("traced", [False, True])
def test_case_22_two_optimizers_of_one_loss_unscale_before_the_first_step(traced):
    scaler = amp_tf.LossScaler(4.0, 1)
    a = tf.Variable(1.0)
    b = tf.Variable(1.0)

    def step():
        with tf.GradientTape() as tape:
            loss = scaler.scale(a * 0.5 + b * 0.25)
        first, second = (scaler.unscale(g) for g in tape.gradient(loss, [a, b]))
        scaler.step(a.assign_sub, first)
        scaler.step(b.assign_sub, second)

    (tf.function(step) if traced else step)()
    assert (a.numpy(), b.numpy()) == (0.5, 0.75)


def test_case_24_and_25_none_and_sparse_stay_so_in_any_nest_and_all_none_is_refused():
    scaler = amp_tf.LossScaler()
    handed = []
    for value in (2.0**15, np.inf):
        rows = tf.IndexedSlices(tf.constant([[value]]), tf.constant([1]), tf.constant([3, 1]))
        scaler.scale(1.0)
        grads = scaler.unscale(
            {"a": tf.constant(2.0**15), "b": None, "c": (tf.constant([0.0]),), "d": rows}
        )
        scaler.step(handed.append, grads)
    assert len(handed) == 1
    assert (handed[0]["d"].values.numpy().tolist(), handed[0]["d"].indices.numpy().tolist()) == (
        [[1.0]],
        [1],
    )
    assert float(handed[0]["a"]) == 1.0
    assert handed[0]["b"] is None
    assert isinstance(handed[0]["c"], tuple)
    for nothing in ([None, None], []):
        scaler.scale(1.0)
        with pytest.raises(ValueError, match="No gradients provided for any variable"):
            scaler.step(handed.append, scaler.unscale(nothing))


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize(
    ("calls", "text"),
    [
        (
            lambda s, g: s.unscale([g]),
            "unscale() was called, but no loss was scaled since the last step",
        ),
        (
            lambda s, g: s.step(print, [g]),
            "step() was called, but no gradients were unscaled since the last step",
        ),
        (
            lambda s, g: (s.scale(g), s.step(print, [g])),
            "step() was called, but no gradients were unscaled",
        ),
        (
            lambda s, g: (s.scale(g), s.unscale(s.unscale([g]))),
            "unscale() got gradients that it unscaled already",
        ),
        (
            lambda s, g: (s.scale(g), s.unscale([g]), s.step(lambda g: None, [g])),
            "step() got gradients as unscale() was given them",
        ),
        (
            lambda s, g: (s.scale(g), s.step(lambda g: None, s.unscale([g])), s.unscale([g])),
            "unscale() was called, but no loss was scaled since the last step",
        ),
        (
            lambda s, g: (
                s.scale(g),
                u := s.unscale([g]),
                s.step(lambda g: None, u),
                s.step(lambda g: None, u),
            ),
            "step() was called, but no gradients were unscaled since the last step",
        ),
    ],
    ids=["unscale", "step", "scale-step", "unscale twice", "scaled ones", "late", "step twice"],
)
def test_case_28_a_wrong_order_is_an_error_that_says_what_to_write(calls, text, traced):
    scaler = amp_tf.LossScaler()

    def loop(g):
        calls(scaler, g)

    with pytest.raises(amp_tf.CallOrderError) as error:
        (tf.function(loop, autograph=False) if traced else loop)(tf.constant(1.0))
    assert str(error.value).startswith(f"LossScaler: {text}")
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
    assert (float(scaler.loss_scale), float(other.loss_scale)) == (4.0, 2.0)
