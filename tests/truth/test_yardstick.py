from __future__ import annotations

import numpy as np
import pytest

from tests.truth.yardstick import LIMIT, distance, judge

UNIT = 2.0**-8
TRUTH = np.random.default_rng(0).normal(size=(8, 100)).astype(np.float32)


def off_by(share: float) -> np.ndarray:
    return TRUTH * np.float32(1 + share)


def test_the_error_is_relative_to_the_whole_tensor() -> None:
    assert distance(off_by(0.01), TRUTH) == pytest.approx(0.01, rel=1e-3)
    assert distance(1e-30 * off_by(0.01), 1e-30 * TRUTH) == pytest.approx(0.01, rel=1e-3)


def test_an_error_as_large_as_the_ideal_one_is_good() -> None:
    assert judge("output", off_by(0.05), off_by(-0.05), TRUTH, UNIT).ratio == pytest.approx(1, rel=1e-3)


def test_an_error_five_times_as_large_is_a_defect() -> None:
    verdict = judge("gradient of w", off_by(0.05), off_by(0.01), TRUTH, UNIT)
    assert verdict.ratio == pytest.approx(5, rel=1e-3)
    assert not verdict.is_good


def test_one_rounding_is_good_where_the_ideal_program_is_exact() -> None:
    rounded = (TRUTH.view(np.uint32) + np.uint32(0x8000) & np.uint32(0xFFFF0000)).view(np.float32)
    assert judge("output", rounded, TRUTH, TRUTH, UNIT).ratio < 1


def test_one_rounding_is_a_defect_in_a_number_that_a_user_reads() -> None:
    rounded = (TRUTH.view(np.uint32) + np.uint32(0x8000) & np.uint32(0xFFFF0000)).view(np.float32)
    assert judge("loss", rounded, TRUTH, TRUTH, UNIT).ratio > LIMIT
    assert judge("metric mean", rounded, TRUTH, TRUTH, UNIT).ratio > LIMIT


def test_what_nobody_asked_to_convert_is_not_excused_by_the_ideal_program() -> None:
    assert judge("untouched image", off_by(0.01), off_by(0.01), TRUTH, UNIT).ratio > 1000
    assert judge("untouched image", off_by(2.0**-22), off_by(0.01), TRUTH, UNIT).ratio < 1


@pytest.mark.parametrize("lost", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_a_defect_unless_the_ideal_program_has_one(lost: float) -> None:
    broken = TRUTH.copy()
    broken[3, 5] = lost
    assert judge("output", broken, off_by(0.01), TRUTH, UNIT).ratio == np.inf
    assert judge("output", broken, broken, TRUTH, UNIT).ratio == 1
    assert judge("output", off_by(0.01), broken, TRUTH, UNIT).ratio == 0
    assert judge("output", broken, broken, broken, UNIT).ratio == 0


def test_an_infinity_of_the_other_sign_is_another_value() -> None:
    truth, value = TRUTH.copy(), TRUTH.copy()
    truth[0, 0], value[0, 0] = np.inf, -np.inf
    assert distance(value, truth) == np.inf


def test_another_shape_is_infinitely_far() -> None:
    assert distance(TRUTH[:, :50], TRUTH) == np.inf


def test_a_value_where_the_truth_is_zero_is_infinitely_far() -> None:
    zeros = np.zeros(4, np.float32)
    assert judge("gradient of w", zeros + 1, zeros, zeros, UNIT).ratio == np.inf
    assert judge("gradient of w", zeros, zeros, zeros, UNIT).ratio == 0


def test_what_float32_itself_does_not_know_excuses_all_but_infinities() -> None:
    assert judge("gradient of b", off_by(3), off_by(0.01), TRUTH, UNIT, noise=0.5).ratio == 0
    assert judge("gradient of b", off_by(np.inf), off_by(0.01), TRUTH, UNIT, noise=0.5).ratio == np.inf


def test_float32s_own_noise_is_a_floor() -> None:
    assert judge("output", off_by(0.02), TRUTH, TRUTH, UNIT, noise=0.008).ratio == pytest.approx(2.5, rel=1e-3)


def test_complex_numbers_are_compared_part_by_part() -> None:
    truth = TRUTH + 1j * TRUTH
    assert distance(truth.real + 1.02j * truth.imag, truth) == pytest.approx(0.02 / 2**0.5, rel=1e-3)
