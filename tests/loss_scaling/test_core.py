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
    FAMILIES,
    MODES,
    accumulates_gradients,
    assert_same,
    eager_and_traced,
    gradients,
    in_mode,
    make_step,
    poisoned,
    run,
    sgd_of,
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
    optimizer = sgd_of(weights, 4.0)
    optimizer.scale_loss(0.0)

    @tf.function
    def step(*grads):
        optimizer.apply([tf.cast(g, dtype) for g in grads], weights)

    before = values(optimizer, weights)
    for bad, position in itertools.product((np.inf, -np.inf, np.nan), range(3)):
        optimizer.loss_scale = 4.0
        step(*poisoned(gradients(0), position, bad))
        assert optimizer.status().scale < 4.0
        assert optimizer.status().nonfinite_variables == (weights[position].path,)
        assert_same(values(optimizer, weights), before)
    assert optimizer.status().skipped == 9


def test_case_02_gradients_of_mixed_types_are_checked_together():
    dtypes = ("float16", "float32", "bfloat16")
    weights = [keras.Variable(np.ones(2), dtype=dtype) for dtype in dtypes]
    optimizer = sgd_of(weights, 2.0)
    optimizer.scale_loss(0.0)
    grads = [tf.ones(2, dtype) for dtype in dtypes]
    for last in (grads[-1], tf.constant([1, np.nan], dtypes[-1])):
        optimizer.apply([*grads[:2], last], weights)
        for weight in weights:
            assert weight.numpy().tolist() == [0.75, 0.75]


@eager_and_traced
def test_case_03_a_skipped_step_changes_nothing_but_the_scale_and_its_counters(mode):
    weights = variables()
    # It would change the weights if it were applied.
    weights[0].constraint = keras.constraints.MaxNorm(0.01)
    inner = OPTIMIZERS["adamw_ema"]()
    optimizer = amp_tf.LossScaleOptimizer(inner)
    optimizer.build(weights)
    step = make_step(optimizer, weights, mode)
    step(*gradients(1))
    before = values(optimizer, weights)
    rate = float(inner.learning_rate)
    step(*poisoned(gradients(2), 1, np.inf))
    assert_same(values(optimizer, weights), before)
    assert float(inner.learning_rate) == rate
    assert int(optimizer.iterations.numpy()) == 1
    assert optimizer.status().scale == 2.0**14
    assert optimizer.status().skipped == 1


FINITE = [False] * 7 + [True] * 9 + np.random.RandomState(3).randint(0, 4, 40).tolist()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("loss", [0.0, np.nan])
@pytest.mark.parametrize(
    "settings", [{}, {"dynamic_growth_steps": 2, "hysteresis": 3, "growth_factor": 1.7}], ids=str
)
def test_case_04_the_variables_follow_the_pure_schedule(settings, loss, mode):
    """If the loss is finite, a lower scale may help, and is searched for."""
    weight = keras.Variable([1.0])
    optimizer = sgd_of([weight], **settings)

    def take(loss, gradient):
        optimizer.scale_loss(loss)
        optimizer.apply([gradient], [weight])

    step = in_mode(take, mode)
    schedule = optimizer.schedule
    state = schedule.initial_state()
    for is_finite in FINITE:
        if is_finite:
            step(tf.constant(0.0), tf.constant([0.0]))
            state = schedule.after_finite(state)
        else:
            step(tf.constant(loss), tf.constant([np.inf]))
            state = schedule.after_nonfinite(state, is_loss_nonfinite=bool(np.isnan(loss)))
        status = optimizer.status()
        for name in ("scale", "good_steps", "skipped", "skipped_in_row", "steps", "last_change"):
            assert getattr(status, name) == getattr(state, name), name


def large(value):
    return [np.full((3,), value, "float32"), *gradients(0)[1:]]


@pytest.mark.parametrize("clip", [{"global_clipnorm": 1.0}, {"clipnorm": 1.0}, {}], ids=str)
def test_case_09_and_k04_a_norm_that_overflows_skips_only_where_a_clip_uses_it(clip):
    trace = [large(1e20)]
    optimizer, after = run(lambda: keras.optimizers.SGD(0.1, **clip), trace)
    if clip:
        trace = []
    _, expected = run(lambda: keras.optimizers.SGD(0.1), trace, wrapped=False)
    assert_same(after[:3], expected[:3])
    assert optimizer.status().skipped == bool(clip)


@accumulates_gradients
def test_a_sum_over_accumulated_steps_that_would_overflow_is_skipped():
    def accumulating():
        return keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)

    optimizer, after = run(accumulating, [large(2e38)] * 2)
    assert optimizer.status().skipped == 2
    for value in after:
        assert np.isfinite(value).all()


@pytest.mark.parametrize(
    ("settings", "scale", "skipped"),
    [({"dynamic": False, "initial_scale": 128.0}, 128.0, 1), ({"enabled": False}, 1.0, 0)],
)
def test_case_11_fixed_and_disabled_are_the_bare_optimizer_but_fixed_skips(
    settings, scale, skipped
):
    trace = [gradients(i) for i in range(4)]
    poison = [poisoned(gradients(0), 0, np.nan)]
    optimizer, after = run(OPTIMIZERS["adam"], trace + poison, **settings)
    _, bare = run(OPTIMIZERS["adam"], trace + poison[skipped:], wrapped=False)
    assert_same(after, bare)
    assert optimizer.status().scale == scale
    assert optimizer.status().skipped == skipped


@pytest.mark.parametrize("scale", [2.0**-24, 1.0, 2.0**24, 2.0**40, 2.0**127])
def test_unscaling_is_exact_for_powers_of_two_and_goes_through_float32_for_16_bit(scale):
    values32 = np.float32([1.5, -3.0, 0.0]) * np.float32(min(scale, 2.0**100))
    found = finite.unscale(tf.constant(values32), scale)
    np.testing.assert_array_equal(found, values32 / np.float32(scale))
    largest = np.float32([1.0, 65504.0])
    half = finite.unscale(tf.constant(largest, tf.float16), scale)
    assert half.dtype == tf.float16
    np.testing.assert_array_equal(half, (largest / np.float32(scale)).astype("float16"))


def check(gradients, clip, jit=False):
    """Tells of each gradient whether it is not finite, or overflows in the norm of a clip."""
    find = tf.function(lambda *given: finite.find_nonfinite(given, clip), jit_compile=jit)
    return find(*gradients).numpy().tolist()


with_and_without_xla = pytest.mark.parametrize("jit", [False, True])
with_and_without_clip = pytest.mark.parametrize("clip", [False, True])


@with_and_without_xla
@with_and_without_clip
def test_gradients_that_fail_the_quick_test_get_the_exact_one(clip, jit):
    large = tf.fill((3,), 1e25)  # finite, but its squares are not
    assert check([large, tf.ones((2, 2))], clip, jit) == [clip, False]
    assert check([tf.ones(3), tf.ones((2, 2))], clip, jit) == [False, False]
    assert check([tf.ones(3), tf.constant([1, np.nan])], False, jit) == [False, True]


@with_and_without_xla
def test_the_quick_test_leaves_room_for_the_norm_that_the_optimizer_computes(jit):
    # Twice the sum of squares is half of what float32 holds at 1.
    for size in (2.0**-10, 0.25, 1.0, 2.0, 2.0**10):
        values = tf.fill((1000,), np.float32((tf.float32.max / 4000) ** 0.5 * size))
        (found,) = check([values], True, jit)
        assert found or np.isfinite(tf.linalg.global_norm([values]))
        assert found is (size > 1.0)


@with_and_without_xla
@with_and_without_clip
def test_complex_gradients_are_checked_in_both_parts(clip, jit):
    for value in (3j, complex(np.inf, 0), complex(0, np.inf)):
        gradient = tf.constant([1 + 2j, value], tf.complex64)
        found = check([gradient, tf.ones((2,))], clip, jit)
        assert found == [bool(np.isinf(value)), False]


def test_a_complex_variable_trains_in_a_wrapped_optimizer_as_in_a_bare_one():
    def trained(optimizer, factors):
        variable = tf.Variable(tf.constant([1 + 2j, 3j], tf.complex64))
        factor = tf.Variable(0.0)
        for value in factors:
            factor.assign(value)
            optimizer.minimize(lambda: tf.reduce_sum(tf.abs(variable) ** 2) * factor, [variable])
        return variable.numpy()

    inner = tf_keras.optimizers.legacy.SGD(0.5)
    wrapped = trained(amp_tf.LossScaleOptimizer(inner), (1.0, np.inf, 1.0))
    bare = trained(tf_keras.optimizers.legacy.SGD(0.5), (1.0, 1.0))
    np.testing.assert_array_equal(wrapped, bare)


@with_and_without_clip
def test_gradients_without_elements_are_finite_under_xla_too(clip):
    assert not any(check([tf.zeros((0, 3))], clip, jit=True))


def test_a_global_norm_of_float64_gradients_may_be_larger_than_float32_holds():
    for size, is_beyond in ((1e30, False), (1e200, True)):
        found = check([tf.constant([size], tf.float64), tf.ones(2, tf.float64)], True)
        assert found == [is_beyond, False]


def trained(library, optimizer, x, y, **how):
    # tf_keras' own does not work on Python 3.12 up to 2.18; this seeds the same.
    keras.utils.set_random_seed(1)
    dense = library.layers.Dense
    model = library.Sequential([library.layers.Input((4,)), dense(8, activation="tanh"), dense(1)])
    model.compile(optimizer, "mse", **how)
    assert model.optimizer is optimizer
    model.fit(x, y, batch_size=8, verbose=0, shuffle=False)
    return model.get_weights()


EAGER = {"run_eagerly": True}
TRACED = {"jit_compile": False}
IN_LOOPS = {"jit_compile": False, "steps_per_execution": 4}
COMPILED = {"jit_compile": True, "steps_per_execution": 4}  # Keras compiles a step as without


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "how"),
    [
        *(("keras", how) for how in (EAGER, IN_LOOPS, COMPILED)),
        # Both have the fit of tf_keras' models.
        *(("tf_keras", how) for how in (TRACED, COMPILED)),
        *(("legacy", how) for how in (EAGER, IN_LOOPS)),
    ],
    ids=str,
)
def test_case_12_fit_skips_poisoned_batches_whatever_way_it_runs(family, how):
    library = keras if family == "keras" else tf_keras
    x = np.random.RandomState(0).randn(64, 4).astype("float32")
    y = x.sum(1, keepdims=True)
    bad_x = np.concatenate([x[:16], x[:8] * np.nan, x[16:48], x[:8] * np.inf, x[48:]])
    bad_y = np.concatenate([y[:16], y[:8], y[16:48], y[:8], y[48:]])

    def sgd():
        # Powers of two, so that XLA's fused arithmetic rounds alike.
        return FAMILIES[family].SGD(0.25, momentum=0.5, clipnorm=4.0)

    optimizer = amp_tf.LossScaleOptimizer(sgd())
    plain = trained(library, sgd(), x, y, **how)
    found = trained(library, optimizer, bad_x, bad_y, **how)
    for actual, expected in zip(found, plain, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=1e-6)
    assert int(optimizer.iterations.numpy()) == 8  # tf_keras' own wrapper counts skipped steps
    status = optimizer.status()
    assert status.scale == 2.0**13
    assert status.skipped == 2
    assert status.steps == 10
    assert status.nonfinite_variables


@eager_and_traced
def test_an_optimizer_that_was_built_before_it_is_wrapped_knows_its_variables(mode):
    weight = keras.Variable([1.0])
    inner = keras.optimizers.SGD(0.5)
    inner.build([weight])
    optimizer = amp_tf.LossScaleOptimizer(inner, 4.0)

    def take(gradient):
        optimizer.apply([optimizer.scale_loss(gradient)])

    step = in_mode(take, mode)
    for gradient in (1.0, np.inf):
        step(tf.constant([gradient]))
        assert weight.numpy().tolist() == [0.5]
    assert optimizer.status().skipped == 1


class Anchored(keras.optimizers.SGD):
    """Keeps the weights that it begins with, as ScheduleFreeAdamW does."""

    def build(self, variables):
        if not self.built:
            super().build(variables)
            self.anchors = [self.add_variable_from_reference(each, "anchor") for each in variables]
            for anchor, variable in zip(self.anchors, variables, strict=True):
                self.assign(anchor, keras.ops.copy(variable))


def test_an_optimizer_may_begin_with_weights_that_its_first_step_makes():
    optimizer = Anchored()
    model = keras.Sequential([keras.layers.Dense(2)])
    model.compile(amp_tf.LossScaleOptimizer(optimizer, 4.0), "mse")
    model.fit(np.ones((4, 3), "float32"), np.ones((4, 2), "float32"), verbose=0)
    assert int(optimizer.iterations) == 1
    assert [anchor.shape for anchor in optimizer.anchors] == [(3, 2), (2,)]


@pytest.mark.slow
def test_get_scaled_loss_takes_a_callable():
    optimizer = amp_tf.LossScaleOptimizer(keras.optimizers.SGD(), 8.0)
    assert float(optimizer.get_scaled_loss(lambda: tf.constant(3.0))()) == 24.0
