"""Cases 35 to 37, small: float16 with loss scaling trains as float32 does where float16 alone does not."""

import pytest

pytest.importorskip("sklearn")

from benchmarks.accuracy.demonstrations import bare, dynamic, floor_of_one, train

TINY, HUGE = 2.0**-24, 2.0**24
EPOCHS = 6
CHANCE = 0.2


@pytest.fixture(scope="module")
def float32():
    return train("float32", 1.0, bare, seed=0, epochs=EPOCHS)[0]


def test_case_35_float16_with_scaling_trains_as_float32_does(float32):
    assert float32 > 0.9
    accuracy, scale = train("float16", 1.0, dynamic, seed=0, epochs=EPOCHS)
    assert accuracy == pytest.approx(float32, abs=0.03)
    assert scale > 1.0


def test_case_36_tiny_gradients_are_lost_in_float16_and_kept_by_scaling(float32):
    alone, _ = train("float16", TINY, bare, seed=0, epochs=EPOCHS)
    scaled, scale = train("float16", TINY, dynamic, seed=0, epochs=EPOCHS)
    assert alone < float32 - 0.05
    assert scaled == pytest.approx(float32, abs=0.03)
    assert scale > 2.0**15


def test_case_37_huge_gradients_need_a_scale_below_one(float32):
    alone, _ = train("float16", HUGE, bare, seed=0, epochs=1)
    floored, floor = train("float16", HUGE, floor_of_one, seed=0, epochs=1)
    scaled, scale = train("float16", HUGE, dynamic, seed=0, epochs=EPOCHS)
    assert alone < CHANCE
    assert (floored < CHANCE, floor) == (True, 1.0)
    assert scaled == pytest.approx(float32, abs=0.03)
    assert scale < 1.0
