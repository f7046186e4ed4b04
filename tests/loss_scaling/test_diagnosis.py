import pytest

from amp_tf.errors import AmpError
from amp_tf.loss_scaling import ledger as diagnosis
from amp_tf.loss_scaling.ledger import Cause, Status
from amp_tf.loss_scaling.schedule import FixedScale

FLOOR = 2.0**-24


def stuck(**changes):
    return Status(**{"scale": 4.0, "skipped": 120, "skipped_in_row": 100, "steps": 400, "min_scale": FLOOR, **changes})


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"skipped_in_row": 0}, None),
        ({}, Cause.OVERFLOW),
        ({"scale": FLOOR}, Cause.GRADIENT),
        ({"nonfinite_losses_in_row": 3}, Cause.LOSS),
        ({"nonfinite_losses_in_row": 3, "scale": FLOOR}, Cause.LOSS),
    ],
)
def test_the_cause_tells_overflow_from_nan_in_the_gradients_and_in_the_loss(changes, cause):
    assert stuck(**changes).cause is cause


def test_there_is_no_trouble_while_steps_are_taken_now_and_then():
    assert diagnosis.find_trouble(stuck(skipped_in_row=99)) is None
    assert diagnosis.find_trouble(stuck(skipped_in_row=9, scale=FLOOR)) is None
    assert diagnosis.find_trouble(stuck(skipped_in_row=20, scale=FLOOR, last_change=391)) is None  # 9 at the floor


def test_a_fixed_number_of_skips_in_a_row_is_trouble_and_so_is_the_floor():
    assert diagnosis.find_trouble(stuck(skipped_in_row=3), max_skips=3) is not None
    assert diagnosis.find_trouble(stuck(skipped_in_row=10, scale=FLOOR)) is not None


def test_the_step_that_brings_the_scale_to_its_floor_says_nothing_of_the_floor():
    assert stuck(skipped_in_row=5, scale=FLOOR, last_change=400).cause is Cause.OVERFLOW


def test_a_fixed_scale_that_is_too_large_is_told_as_that_and_not_as_a_floor():
    def after(skipped):
        return Status.of(2.0**15, [0, skipped, skipped, skipped, 0, 0], FixedScale(2.0**15))

    assert diagnosis.find_trouble(after(2)) is None  # the next gradients may be smaller
    text = str(diagnosis.find_trouble(after(100)))
    assert "floor" not in text
    assert "Start from a smaller scale" in text


def test_the_error_says_what_happened_where_and_what_to_do():
    names = tuple(f"dense_{i}/kernel" for i in range(7))
    error = diagnosis.find_trouble(stuck(scale=FLOOR, nonfinite_losses_in_row=9, nonfinite_variables=names))
    assert isinstance(error, AmpError)
    text = str(error)
    assert text.startswith("loss scaling: 100 steps in a row were skipped, 120 of 400 in all; the loss scale is 2^-24 ")
    assert "the loss itself is NaN or infinite before it is scaled" in text
    assert "dense_0/kernel" in text
    assert "dense_4/kernel and 2 more" in text
    assert "Look for NaN in the input data and labels" in text


def test_a_backoff_is_told_in_one_line():
    line = diagnosis.describe_backoff(Status(32768.0, skipped=1, steps=9), stuck(skipped=3, scale=8192.0, steps=12))
    assert line == ("skipped 2 steps (3 of 12 so far): the scaled gradients overflow float16; loss scale 2^15 -> 2^13")


@pytest.mark.parametrize(
    ("scale", "text"), [(32768.0, "2^15"), (2.0**-24, "2^-24"), (1.0, "2^0"), (1000.0, "1000"), (1e38, "1e+38")]
)
def test_scales_are_written_as_powers_of_two_where_they_are(scale, text):
    assert diagnosis.format_scale(scale) == text
