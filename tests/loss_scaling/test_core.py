"""Cases 1 to 13: what one step does, eagerly, traced or compiled, and which gradients spoil it."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import amp_tf
from amp_tf.loss_scaling import finite
from tests.loss_scaling.steps import (
    MODES,
    accumulates_gradients,
    assert_same,
    gradients,
    make_step,
    poisoned,
    run,
    values,
    variables,
)

OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "adamw_ema": lambda: keras.optimizers.AdamW(
        keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5),
        use_ema=True,
        ema_overwrite_frequency=3,
    ),
    "rmsprop_clip": lambda: keras.optimizers.RMSprop(0.01, global_clipnorm=0.3),
    "sgd_clipnorm": lambda: keras.optimizers.SGD(0.5, clipnorm=0.3),
    "sgd_clipvalue": lambda: keras.optimizers.SGD(0.5, clipvalue=0.2),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_case_01_and_20_finite_steps_equal_the_inner_optimizer_bit_for_bit(name):
    trace = [gradients(i) for i in range(6)]
    _, bare = run(OPTIMIZERS[name], trace, wrapped=False)
    _, wrapped = run(OPTIMIZERS[name], trace)
    assert_same(wrapped, bare)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_case_02_every_nonfinite_value_at_every_position_skips_the_step(dtype):
    weights = variables(dtype)
    optimizer = amp_tf.LossScaleOptimizer(keras.optimizers.SGD(0.1), 4.0)
    optimizer.build(weights)
    optimizer.scale_loss(0.0)

    @tf.function
    def step(*grads):
        optimizer.apply([tf.cast(g, dtype) for g in grads], weights)

    before = values(optimizer, weights)
    for bad, position in itertools.product((np.inf, -np.inf, np.nan), range(3)):
        optimizer.loss_scale = 4.0
        step(*[tf.constant(g) for g in poisoned(gradients(0), position, bad)])
        assert optimizer.status().scale < 4.0
        assert optimizer.status().nonfinite_variables == (weights[position].path,)
        assert_same(values(optimizer, weights), before)
    assert optimizer.status().skipped == 9


def test_case_02_gradients_of_mixed_types_are_checked_together():
    weights = [keras.Variable(np.ones(2), dtype=d) for d in ("float16", "float32", "bfloat16")]
    optimizer = amp_tf.LossScaleOptimizer(keras.optimizers.SGD(0.5), 2.0)
    optimizer.build(weights)
    optimizer.scale_loss(0.0)
    finite_grads = [tf.ones(2, d) for d in (tf.float16, tf.float32, tf.bfloat16)]
    optimizer.apply(finite_grads, weights)
    assert [w.numpy().astype("float32").tolist() for w in weights] == [[0.75, 0.75]] * 3
    optimizer.apply([*finite_grads[:2], tf.constant([1, np.nan], tf.bfloat16)], weights)
    assert [w.numpy().astype("float32").tolist() for w in weights] == [[0.75, 0.75]] * 3


@pytest.mark.parametrize("mode", ["eager", "function"])
def test_case_03_a_skipped_step_changes_nothing_but_the_scale_and_its_counters(mode):
    weights = variables()
    weights[0].constraint = keras.constraints.MaxNorm(
        0.01
    )  # would change the weights if it were applied
    inner = OPTIMIZERS["adamw_ema"]()
    optimizer = amp_tf.LossScaleOptimizer(inner)
    optimizer.build(weights)
    step = make_step(optimizer, weights, mode)
    step(*[tf.constant(g) for g in gradients(1)])
    before = values(optimizer, weights)
    rate = float(inner.learning_rate)
    step(*[tf.constant(g) for g in poisoned(gradients(2), 1, np.inf)])
    assert_same(values(optimizer, weights), before)
    assert float(inner.learning_rate) == rate
    assert int(optimizer.iterations.numpy()) == 1
    assert (optimizer.status().scale, optimizer.status().skipped) == (2.0**14, 1)


def test_case_04_the_variables_follow_the_pure_schedule():
    trace = [bool(b) for b in np.random.RandomState(3).randint(0, 4, 60)]
    for settings in (
        {"dynamic_growth_steps": 3},
        {"dynamic_growth_steps": 2, "hysteresis": 3, "growth_factor": 1.7},
    ):
        grads = [
            gradients(i) if ok else poisoned(gradients(i), 0, np.nan) for i, ok in enumerate(trace)
        ]
        optimizer, _ = run(OPTIMIZERS["sgd"], grads, **settings)
        state = optimizer.schedule.initial_state()
        for ok in trace:
            schedule = optimizer.schedule  # a NaN that a step is given is in its loss, too
            state = (
                schedule.after_finite(state)
                if ok
                else schedule.after_nonfinite(state, is_loss_nonfinite=True)
            )
        status = optimizer.status()
        assert (status.scale, status.good_steps, status.skipped) == (
            state.scale,
            state.good_steps,
            state.skipped,
        )
        assert (status.skipped_in_row, status.steps) == (state.skipped_in_row, state.steps)
        assert status.last_change == state.last_change


@pytest.mark.parametrize("mode", MODES)
def test_case_04_the_variables_follow_the_pure_schedule_while_it_searches(mode):
    """The loss is finite, so a lower scale may help."""
    weight = keras.Variable([1.0])
    optimizer = amp_tf.LossScaleOptimizer(keras.optimizers.SGD(0.5))
    optimizer.build([weight])

    def step(gradient):
        optimizer.scale_loss(tf.constant(0.0))
        optimizer.apply([gradient], [weight])

    step = step if mode == "eager" else tf.function(step, jit_compile=mode == "xla")
    state = optimizer.schedule.initial_state()
    for ok in [False] * 7 + [True] * 9 + [False] + [True] * 2:
        step(tf.constant([0.0 if ok else np.inf]))
        state = (optimizer.schedule.after_finite if ok else optimizer.schedule.after_nonfinite)(
            state
        )
        status = optimizer.status()
        assert (status.scale, status.good_steps) == (state.scale, state.good_steps)
    assert (state.scale, state.good_steps) == (2.0**-16, 2)


@pytest.mark.parametrize("clip", [{"global_clipnorm": 1.0}, {"clipnorm": 1.0}, {}], ids=str)
def test_case_09_and_k04_a_norm_that_overflows_skips_only_where_a_clip_uses_it(
    clip,
):
    big = [np.full((3,), 1e20, "float32"), *gradients(0)[1:]]
    optimizer, after = run(lambda: keras.optimizers.SGD(0.1, **clip), [big])
    _, expected = run(lambda: keras.optimizers.SGD(0.1), [] if clip else [big], wrapped=False)
    assert_same(after[:3], expected[:3])
    assert optimizer.status().skipped == bool(clip)


@accumulates_gradients
def test_a_sum_over_accumulated_steps_that_would_overflow_is_skipped():
    big = [np.full((3,), 2e38, "float32"), *gradients(0)[1:]]
    optimizer, after = run(
        lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2), [big, big]
    )
    assert optimizer.status().skipped == 2
    assert all(np.isfinite(value).all() for value in after)


@pytest.mark.parametrize(
    "settings", [{"dynamic": False, "initial_scale": 128.0}, {"enabled": False}]
)
def test_case_11_fixed_and_disabled_are_the_bare_optimizer_but_fixed_skips(settings):
    trace = [gradients(i) for i in range(4)]
    bad = poisoned(gradients(0), 0, np.nan)
    skips = "dynamic" in settings
    optimizer, after = run(OPTIMIZERS["adam"], [*trace, bad], **settings)
    _, bare = run(OPTIMIZERS["adam"], trace if skips else [*trace, bad], wrapped=False)
    assert_same(after, bare)
    assert (optimizer.status().scale, optimizer.status().skipped) == (
        settings.get("initial_scale", 1.0),
        int(skips),
    )


@pytest.mark.parametrize("scale", [2.0**-24, 1.0, 2.0**24, 2.0**40, 2.0**127])
def test_unscaling_is_exact_for_powers_of_two_and_goes_through_float32_for_16_bit(scale):
    values32 = tf.constant([1.5, -3.0, 0.0]) * tf.constant(min(scale, 2.0**100))
    np.testing.assert_array_equal(
        finite.unscale(values32, scale), values32.numpy() / np.float32(scale)
    )
    half = finite.unscale(tf.constant([1.0, 65504.0], tf.float16), scale)
    assert half.dtype == tf.float16
    expected = (np.array([1.0, 65504.0], "float32") / np.float32(scale)).astype("float16")
    np.testing.assert_array_equal(half, expected)


def check(gradients, clip, headroom=1.0, xla=False):
    found = tf.function(lambda: finite.find_nonfinite(gradients, clip, headroom), jit_compile=xla)
    ops = {node.op for node in found.get_concrete_function().graph.as_graph_def().node}
    return found().numpy().tolist(), ops


LARGE = [tf.fill((3,), 1e25), tf.ones((2, 2))]  # finite, but its squares are not


@pytest.mark.parametrize("xla", [False, True])
@pytest.mark.parametrize("clip", [False, True])
def test_gradients_that_fail_the_quick_test_get_the_exact_one(clip, xla):
    assert check(LARGE, clip, xla=xla)[0] == [clip, False]
    assert check([tf.ones(3), tf.ones((2, 2))], clip, xla=xla)[0] == [False, False]
    assert check([tf.ones(3), tf.constant([1, np.nan])], False, xla=xla)[0] == [False, True]


@pytest.mark.parametrize("xla", [False, True])
def test_the_quick_test_leaves_room_for_the_norm_that_the_optimizer_computes(xla):
    for size in (
        2.0**-10,
        0.25,
        1.0,
        2.0,
        2.0**10,
    ):  # twice the sum of squares is half of what float32 holds at 1
        values = tf.fill((1000,), np.float32((tf.float32.max / 4000) ** 0.5 * size))
        (found,), _ = check([values], True, xla=xla)
        assert found or np.isfinite(tf.linalg.global_norm([values]))
        assert found is (size > 1.0)


def test_the_quick_test_adds_squares_only_where_xla_does_not_compile():
    gradients = [tf.ones(3), tf.ones((2, 2))]
    for clip in (False, True):
        assert "L2Loss" in check(gradients, clip)[1]
        assert "L2Loss" not in check(gradients, clip, xla=True)[1]
    assert "L2Loss" not in check([tf.cast(g, tf.float16) for g in gradients], False)[1]


BAD = np.float32(np.inf)


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("clip", [False, True])
def test_complex_gradients_are_checked_in_both_parts(clip, jit):
    find = tf.function(lambda *gradients: finite.find_nonfinite(gradients, clip), jit_compile=jit)
    good, real, imaginary = (
        tf.constant([1 + 2j, value], tf.complex64)
        for value in (3j, complex(BAD, 0), complex(0, BAD))
    )
    assert not np.any(find(good, tf.ones((2,))))
    for bad in (real, imaginary):
        assert find(good, bad).numpy()[1]


def test_a_complex_variable_trains_in_a_wrapped_optimizer_as_in_a_bare_one():
    wrapped, bare = (tf.Variable(tf.constant([1 + 2j, 3j], tf.complex64)) for _ in range(2))
    optimizer, inner = (tf_keras.optimizers.legacy.SGD(0.5) for _ in range(2))
    optimizer = amp_tf.LossScaleOptimizer(optimizer)
    for factor in (1.0, BAD, 1.0):
        optimizer.minimize(
            lambda factor=factor: tf.reduce_sum(tf.abs(wrapped) ** 2) * factor, [wrapped]
        )
        if factor == 1.0:
            inner.minimize(lambda: tf.reduce_sum(tf.abs(bare) ** 2), [bare])
    np.testing.assert_array_equal(wrapped.numpy(), bare.numpy())


@pytest.mark.parametrize("clip", [False, True])
def test_gradients_without_elements_are_finite_under_xla_too(clip):
    find = tf.function(lambda gradient: finite.find_nonfinite([gradient], clip), jit_compile=True)
    assert not find(tf.zeros((0, 3))).numpy().any()


def test_a_global_norm_of_float64_gradients_may_be_larger_than_float32_holds():
    gradients = [tf.constant([1e30], tf.float64), tf.constant([1e25], tf.float64)]
    assert not np.any(finite.find_nonfinite(gradients, True))
    assert np.all(finite.find_nonfinite([tf.constant([1e200], tf.float64)], True))


@pytest.mark.parametrize("condition", [True, False])
def test_a_gradient_becomes_zeros_in_its_own_form(condition):
    values = tf.constant([[np.nan, 2.0]])

    def zero(value):
        return tf.where(condition, tf.zeros_like(value), value)

    dense = finite.map_values(zero, values)
    sparse = finite.map_values(zero, tf.IndexedSlices(values, [3], [8, 2]))
    expected = np.zeros((1, 2)) if condition else values
    np.testing.assert_array_equal(dense, expected)
    np.testing.assert_array_equal(sparse.values, expected)
    assert [int(sparse.indices[0]), *sparse.dense_shape] == [3, 8, 2]


FAMILIES = {
    "keras": keras.optimizers,
    "tf_keras": tf_keras.optimizers,
    "legacy": tf_keras.optimizers.legacy,
}


def trained(library, optimizer, x, y, **how):
    keras.utils.set_random_seed(
        1
    )  # tf_keras' own does not work on Python 3.12 up to 2.18; this seeds the same
    layers = library.layers
    model = library.Sequential(
        [layers.Input((4,)), layers.Dense(8, activation="tanh"), layers.Dense(1)]
    )
    model.compile(optimizer, "mse", **how)
    assert model.optimizer is optimizer
    model.fit(x, y, batch_size=8, verbose=0, shuffle=False)
    return model.get_weights()


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [
        {"run_eagerly": True},
        {"jit_compile": False},
        {"jit_compile": False, "steps_per_execution": 4},
        {
            "jit_compile": True,
            "steps_per_execution": 4,
        },  # in which Keras compiles the step that it compiles without
    ],
    ids=str,
)
@pytest.mark.parametrize("family", FAMILIES)
def test_case_12_fit_skips_poisoned_batches_whatever_way_it_runs(family, how):
    library = keras if family == "keras" else tf_keras
    x = np.random.RandomState(0).randn(64, 4).astype("float32")
    y = x.sum(1, keepdims=True)
    bad_x = np.concatenate([x[:16], x[:8] * np.nan, x[16:48], x[:8] * np.inf, x[48:]])
    bad_y = np.concatenate([y[:16], y[:8], y[16:48], y[:8], y[48:]])
    # powers of two, so that XLA's fused arithmetic rounds alike
    bare, inner = (FAMILIES[family].SGD(0.25, momentum=0.5, clipnorm=4.0) for _ in range(2))
    optimizer = amp_tf.LossScaleOptimizer(inner)
    plain = trained(library, bare, x, y, **how)
    for actual, expected in zip(
        trained(library, optimizer, bad_x, bad_y, **how), plain, strict=True
    ):
        np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=1e-6)
    assert int(optimizer.iterations.numpy()) == 8  # tf_keras' own wrapper counts skipped steps
    status = optimizer.status()
    assert (status.scale, status.skipped, status.steps) == (2.0**13, 2, 10)
    assert status.nonfinite_variables


@pytest.mark.slow
def test_get_scaled_loss_takes_a_callable():
    optimizer = amp_tf.LossScaleOptimizer(keras.optimizers.SGD(), 8.0)
    assert float(optimizer.get_scaled_loss(lambda: tf.constant(3.0))()) == 24.0
