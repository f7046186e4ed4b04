"""What the cost model expects beside what was measured; the model is asked for real."""

import math

import pytest

from benchmarks.step_time import forecast


def test_a_wide_product_is_expected_to_save_time():
    saved = forecast.expect("autoencoder", "predict")
    assert 0.1 < saved.total < saved.products < 100
    assert saved.casts > 0


def test_what_saves_half_makes_a_step_twice_as_fast():
    assert forecast.gain(10.0, 5.0) == pytest.approx(2.0)
    assert forecast.gain(10.0, -5.0) == pytest.approx(2 / 3)
    assert math.isfinite(forecast.gain(10.0, 30.0))


def test_the_summary_names_the_furthest_first_and_gives_the_correlation():
    rows = [("autoencoder", "fit", 1.5, 1.5), ("vgg16", "fit", 2.0, 1.0), ("densenet", "fit", 1.1, 1.2)]
    text = forecast.summary(rows, worst=2)
    assert [line.split("|")[1].strip() for line in text.splitlines()[2:4]] == ["vgg16", "densenet"]
    assert "| vgg16 | fit | judging | 2.00 | 1.00 | 0.50 |" in text
    assert "correlation, all: " in text


def test_the_factors_of_what_is_expected_are_those_by_which_it_is_off():
    """Steps of 10 ms in which products save twice and casts take three times what is expected."""
    expected = [forecast.Saved(*parts) for parts in ((1.0, 0.5, 0.2), (2.0, -0.3, 0.1), (0.5, 1.0, 0.4), (1.5, 0, 0.3))]
    saved = [2 * parts.products + parts.others - 3 * parts.casts for parts in expected]
    rows = [(parts, 10.0, forecast.gain(10.0, ms)) for parts, ms in zip(expected, saved, strict=True)]
    assert forecast.off_by(rows) == pytest.approx((2.0, 1.0, 3.0))


def test_a_model_that_fails_says_why():
    with pytest.raises(RuntimeError, match="KeyError: 'no_such_model'"):
        forecast.expect("no_such_model", "fit")
