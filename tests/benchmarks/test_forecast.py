"""What the cost model expects beside what was measured; the model is asked for real."""

import math
import statistics

import pytest

from amp_tf.oplists.hardware import Hardware
from benchmarks.step_time import forecast
from benchmarks.step_time.suite import Row


@pytest.mark.skipif(not Hardware.detect_cpu().cpu_gains, reason="auto converts nothing on this CPU")
def test_a_wide_product_is_expected_to_save_time():
    saved = forecast.expect("autoencoder", "predict")
    assert 0.1 < saved.total < saved.products < 100
    assert saved.casts > 0


def test_what_saves_half_makes_a_step_twice_as_fast():
    assert forecast.gain(10.0, 5.0) == pytest.approx(2.0)
    assert forecast.gain(10.0, -5.0) == pytest.approx(2 / 3)
    assert math.isfinite(forecast.gain(10.0, 30.0))


def test_a_slow_float32_makes_the_expected_gain_neither_higher_nor_lower_than_a_slow_amp_tf():
    def expected(float32_ms, amp_tf_ms):
        rows = {"float32": Row("bert", "fit", "float32", ms=(float32_ms,)), "amp_tf": Row("", "", "", ms=(amp_tf_ms,))}
        return forecast.expected_gain(rows, 5.0)

    assert expected(10.0, 5.0) == pytest.approx(2.0)
    assert expected(11.0, 5.0) == pytest.approx(expected(10.0, 6.0))
    assert expected(11.0, 5.0) < 2.0 < expected(9.0, 5.0)


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


def test_what_is_reachable_is_less_where_the_rounds_disagree():
    def measured(*gains):
        ours = Row("bert", "fit", "amp_tf", ms=tuple(6 / gain for gain in gains))
        return {"float32": Row("bert", "fit", "float32", ms=(6.0,) * len(gains)), "amp_tf": ours}

    agreed = [measured(gain, gain) for gain in (1.0, 2.0, 3.0)]
    assert forecast.reachable(agreed) == pytest.approx(1.0)
    noisy = [measured(1.0, 2.0), measured(2.0, 1.0), measured(3.0, 3.0), measured(1.5, 2.5)]
    firsts, seconds = [0.0, math.log(2), math.log(3), math.log(1.5)], [math.log(2), 0.0, math.log(3), math.log(2.5)]
    agreement = statistics.correlation(firsts, seconds)
    assert 0 < agreement < 1
    assert forecast.reachable(noisy) == pytest.approx(math.sqrt(2 * agreement / (1 + agreement)))
    assert forecast.reachable([measured(1.0, 3.0), measured(2.0, 2.0), measured(3.0, 1.0)]) == 0.0


def test_a_model_that_fails_says_why():
    with pytest.raises(RuntimeError, match="KeyError: 'no_such_model'"):
        forecast.expect("no_such_model", "fit")
