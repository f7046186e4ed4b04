"""Planted errors are ranked first, and the line that is written fixes them."""

import dataclasses

import numpy as np
import pytest

import amp_tf
from tests.comparing.planted import PLANTED

CASES = [(name, precision) for name, planted in PLANTED.items() for precision in planted.precisions]


@pytest.mark.parametrize(("name", "precision"), CASES)
def test_the_planted_error_comes_first_and_the_line_mends_it(name, precision):
    planted = PLANTED[name]
    found = planted.compare(precision)
    assert not found.is_healthy
    first = found.findings[0]
    assert (first.node, first.kind) == (planted.node, planted.kind)
    assert found.mends
    assert found.first_divergence is not None
    text = str(found)
    assert f"1. {planted.kind}: {planted.node} (" in text
    assert f" products in float32):\n  amp_tf.enable(keep_float32={list(found.patterns)})" in text
    assert found.line in str(found.for_command())
    assert len(text.splitlines()) <= 40

    config = amp_tf.AmpConfig(precision=precision, target="cpu", force_f16=planted.force, keep_float32=found.patterns)
    rng = np.random.default_rng(3)
    mended = amp_tf.compare(planted.make(), [planted.batch(rng) for _ in range(2)], config)
    assert mended.is_healthy
    assert mended.findings == ()


def test_without_the_forced_nodes_the_rules_prevent_it():
    planted = dataclasses.replace(PLANTED["norm"], force=())
    assert planted.compare("bfloat16").is_healthy
