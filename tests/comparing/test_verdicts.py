"""The verdict on an output: what is too far off in one batch is judged by the ideal program in all of them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

import amp_tf
from amp_tf.tools.comparing.work import Work
from tests.comparing.planted import PLANTED

_RNG = np.random.default_rng(0)
_TURN = np.linalg.qr(_RNG.normal(size=(64, 64)))[0].astype(np.float32)
BATCHES = [(_RNG.normal(size=(8, 64)).astype(np.float32),) for _ in range(3)]


def deep(x):
    """Sixty products, one behind the other: each adds a rounding, so that 4 roundings are not enough."""
    for _ in range(60):
        x = tf.matmul(x, _TURN)
    return x


@pytest.fixture
def lucky(monkeypatch):
    """In the batch that is judged first the ideal program is as good as float32; gives what it is asked for then."""
    asked = []
    yardstick, in_any_batch = Work.yardstick, Work.in_any_batch

    def without_errors(*args):
        found = yardstick(*args)
        return dataclasses.replace(found, ideal=found.noise)

    def noted(*args):
        asked.append(in_any_batch(*args))
        return asked[-1]

    monkeypatch.setattr(Work, "yardstick", without_errors)
    monkeypatch.setattr(Work, "in_any_batch", noted)
    return asked


def test_an_ideal_program_that_is_lucky_in_one_batch_is_asked_for_its_largest_error_in_any(lucky):
    found = amp_tf.compare(deep, BATCHES, amp_tf.AmpConfig(precision="bfloat16", target="cpu"))
    assert found.is_healthy
    assert 0.5 < found.outputs[0].ratio < 2
    ((statistics,),) = [yardstick.ideal for yardstick in lucky]
    assert statistics.error > 4 * 2.0**-8


def test_what_is_wrong_by_all_batches_stays_so(lucky):
    found = PLANTED["sum"].compare("bfloat16")
    assert len(lucky) == 1
    assert not found.is_healthy
    assert found.findings[0].node == "long_sum"
