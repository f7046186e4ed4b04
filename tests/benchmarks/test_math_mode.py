from __future__ import annotations

import pytest

from benchmarks import math_mode


def test_products_are_measured_with_the_mode_and_without_it() -> None:
    rows = math_mode.measure(rounds=1)
    assert [name for name, *_ in rows] == list(math_mode.products())
    for _, ratio, without, with_mode in rows:
        assert ratio > 0
        assert 0 < without < 1e-6  # float32's own error
        # The mode does nothing, or rounds operands to 8 bits.
        assert with_mode == pytest.approx(without, rel=0.5) or 1e-4 < with_mode < 1e-2
