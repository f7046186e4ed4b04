"""Messages about skipped steps name the cause, found by training or from a status."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import amp_tf
from amp_tf.callbacks import LossScaleMonitor
from amp_tf.errors import AmpError
from amp_tf.loss_scaling import ledger
from amp_tf.loss_scaling.ledger import Cause, LossScaleError, Status

X = np.random.RandomState(0).randn(40, 4).astype("float32")
Y = X.sum(1, keepdims=True)


def make_model(library, **settings):
    model = library.Sequential([library.layers.Input((4,)), library.layers.Dense(1)])
    model.compile(amp_tf.LossScaleOptimizer(library.optimizers.SGD(0.01, **settings)), "mse")
    return model


def fit_until_it_is_told(model, x, y):
    monitor = LossScaleMonitor(max_skips=3, every=1)
    with pytest.raises(LossScaleError) as error:
        model.fit(x, y, batch_size=8, epochs=5, verbose=0, callbacks=[monitor])
    return str(error.value)


def test_labels_beyond_float16_are_named_where_the_loss_is_infinite(library):
    text = fit_until_it_is_told(make_model(library), X, np.full_like(Y, 1e37))
    assert "hold values beyond float16's 65504" in text
    assert "Scale the data and labels down" in text


def test_data_that_is_finite_is_not_suspected(library):
    x = library.layers.Input((4,))
    y = library.layers.Lambda(lambda t: tf.math.log(t - t))(library.layers.Dense(1)(x))
    model = library.Model(x, y)
    model.compile(amp_tf.LossScaleOptimizer(library.optimizers.SGD(0.01)), "mse")
    text = fit_until_it_is_told(model, X, Y)
    assert "the loss itself is NaN or infinite before it is scaled" in text
    assert "The input data of that step is finite. Look for log(0)" in text
    suspected = "the input data or the labels hold NaN"
    assert suspected not in text
    assert suspected in fit_until_it_is_told(make_model(library), X * np.nan, Y)


def test_a_norm_that_overflows_is_told_from_gradients_that_do():
    optimizer = amp_tf.LossScaleOptimizer(keras.optimizers.SGD(0.1, global_clipnorm=1.0), 1.0)
    weight = keras.Variable([1.0, 1.0])
    optimizer.build([weight])
    for gradient, cause in (([3e30, 3e30], Cause.SUM), ([np.inf, 1.0], Cause.OVERFLOW)):
        optimizer.scale_loss(weight.value)
        optimizer.apply([tf.constant(gradient)], [weight])
        assert optimizer.status().cause is cause


def step_of(scaler, weight):
    """A step on the weighted sum of what it is given."""

    def step(x):
        loss = scaler.scale(tf.reduce_sum(weight * x))
        scaler.step(weight.assign_sub, scaler.unscale(tf.gradients(loss, weight)[0]))

    return step


@pytest.mark.parametrize("jit", [False, True])
def test_a_loop_of_its_own_is_told_the_same(jit):
    scaler = amp_tf.LossScaler(8.0)
    step = tf.function(step_of(scaler, tf.Variable(1.0)), jit_compile=jit)
    for value in (np.nan, np.inf, 1.0):
        step(tf.constant([value, 1.0]))
        # The last one remembers why the step before it was skipped.
        assert scaler.status().last_cause is Cause.DATA


def test_the_data_of_a_traced_loop_over_a_dataset_is_what_the_iterator_gives():
    scaler = amp_tf.LossScaler(8.0)
    data = tf.data.Dataset.from_tensors(tf.constant([np.nan, 1.0])).repeat(3)
    step = step_of(scaler, tf.Variable(1.0))

    @tf.function
    def train():
        for x in data:
            step(x)

    train()
    assert scaler.status().skipped == 3
    assert scaler.status().cause is Cause.DATA


FLOOR = 2.0**-24


def stuck(skipped_in_row=100, **changes):
    settings = {"scale": 4.0, "steps": 400, "min_scale": FLOOR, **changes}
    return Status(skipped=120, skipped_in_row=skipped_in_row, **settings)


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"skipped_in_row": 0}, None),
        ({}, Cause.OVERFLOW),
        ({"scale": FLOOR}, Cause.GRADIENT),
        ({"nonfinite_losses_in_row": 3}, Cause.LOSS),
        ({"nonfinite_losses_in_row": 3, "scale": FLOOR}, Cause.LOSS),
        (
            {"skipped_in_row": 5, "scale": FLOOR, "last_change": 400},
            Cause.OVERFLOW,
        ),  # the step that brought it there
    ],
)
def test_the_cause_tells_overflow_from_nan_in_the_gradients_and_in_the_loss(changes, cause):
    assert stuck(**changes).cause is cause


def test_many_skips_in_a_row_are_trouble_and_ten_at_the_floor():
    assert ledger.find_trouble(stuck(99)) is None
    assert ledger.find_trouble(stuck(9, scale=FLOOR)) is None
    nine_at_the_floor = stuck(20, scale=FLOOR, last_change=391)
    assert ledger.find_trouble(nine_at_the_floor) is None
    assert ledger.find_trouble(stuck(3), max_skips=3) is not None
    assert ledger.find_trouble(stuck(10, scale=FLOOR)) is not None


def test_a_fixed_scale_that_is_too_large_is_told_as_that_and_not_as_a_floor():
    def after(skipped):
        return Status(2.0**15, 0, skipped, skipped, skipped)

    assert ledger.find_trouble(after(2)) is None  # the next gradients may be smaller
    text = str(ledger.find_trouble(after(100)))
    assert "floor" not in text
    assert "floor" in str(ledger.find_trouble(stuck(skipped_in_row=10, scale=FLOOR)))
    assert "Start from a smaller scale" in text


def test_the_error_says_what_happened_where_and_what_to_do():
    names = tuple(f"dense_{i}/kernel" for i in range(7))
    error = ledger.find_trouble(
        stuck(scale=FLOOR, nonfinite_losses_in_row=9, nonfinite_variables=names)
    )
    assert isinstance(error, AmpError)
    text = str(error)
    assert text.startswith(
        "loss scaling: 100 steps in a row were skipped, 120 of 400 in all; the loss scale is 2^-24 "
    )
    assert "the loss itself is NaN or infinite before it is scaled" in text
    assert "dense_0/kernel" in text
    assert "dense_4/kernel and 2 more" in text
    assert "Look for NaN in the input data and labels" in text


@pytest.mark.parametrize(
    ("scale", "text"),
    [(32768.0, "2^15"), (2.0**-24, "2^-24"), (1.0, "2^0"), (1000.0, "1000"), (1e38, "1e+38")],
)
def test_scales_are_written_as_powers_of_two_where_they_are(scale, text):
    assert ledger.format_scale(scale) == text
