"""A comparison judges a program, and names first what is wrong in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import amp_tf
from amp_tf.config import AmpConfig
from amp_tf.tools.comparing.pipeline import compare
from amp_tf.tools.comparing.work import Work
from tests.comparing.planted import PLANTED, normal
from tests.truth.yardstick import distance

_RNG = np.random.default_rng(0)
_TURN = np.linalg.qr(_RNG.normal(size=(64, 64)))[0].astype(np.float32)
BATCHES = [(_RNG.normal(size=(8, 64)).astype(np.float32),) for _ in range(3)]


def deep(x):
    """Sixty products, one behind the other: each adds a rounding, so that 4 roundings are not
    enough.
    """
    for _ in range(60):
        x = tf.matmul(x, _TURN)
    return x


@pytest.fixture
def lucky(monkeypatch):
    """In the batch that is judged first the ideal program is as good as float32; gives what it is
    asked for then.
    """
    asked = []
    yardstick = Work.yardstick
    in_any_batch = Work.in_any_batch

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


FLOAT16 = AmpConfig(precision="float16", target="cpu")


def batches() -> list[tuple[np.ndarray]]:
    return [(np.full((4, 8), 100.0, np.float32),)]


def test_an_infinity_that_a_minimum_hides_is_named_though_all_is_healthy():
    first = tf.fill((8, 16), 1.0)
    second = tf.fill((16, 4), 10.0)

    def step(x):
        large = tf.matmul(tf.matmul(x, first), second, name="large")  # 128,000
        return tf.minimum(large, 1000.0, name="bounded") * 0.5

    found = compare(step, batches(), FLOAT16)
    assert found.is_healthy
    told = (
        "100 % of the numbers of large (MatMul) are inf or nan in float16 alone; no output shows it"
    )
    assert found.notes[0] == told


def test_an_overflow_that_reaches_an_output_is_told_once():
    weights = tf.fill((8, 4), 100.0)
    found = compare(
        lambda x: tf.reshape(tf.matmul(x, weights, name="large"), (16,)), batches(), FLOAT16
    )
    assert [(finding.node, finding.kind) for finding in found.findings] == [("large", "overflow")]
    lines = [line for line in str(found).splitlines() if "large" in line]
    assert lines[0].startswith("1. overflow: large (MatMul")
    assert lines[1:] == ["  AMP_TF_KEEP_FLOAT32=node:large"]


def test_nothing_is_said_where_float32_has_the_same_infinities():
    weights = tf.fill((8, 4), 1e38)
    found = compare(
        lambda x: tf.minimum(tf.matmul(x, weights), 1.0) * 0.5,
        batches(),
        AmpConfig(precision="bfloat16"),
    )
    assert found.is_healthy
    assert not any("no output shows it" in note for note in found.notes)


PRECISIONS = [
    (name, precision) for name, planted in PLANTED.items() for precision in planted.precisions
]


@pytest.mark.parametrize(("name", "precision"), PRECISIONS)
def test_the_planted_error_comes_first_and_the_line_mends_it(name, precision):
    planted = PLANTED[name]
    found = planted.compare(precision)
    assert not found.is_healthy
    first = found.findings[0]
    assert (first.node, first.kind) == (planted.node, planted.kind)
    assert found.has_fix
    text = str(found)
    assert f"1. {planted.kind}: {planted.node} (" in text
    assert f" products in float32):\n  {found.line}" in text
    assert len(text.splitlines()) <= 40

    config = amp_tf.AmpConfig(
        precision=precision, target="cpu", force_f16=planted.force, keep_float32=found.patterns
    )
    rng = np.random.default_rng(3)
    mended = amp_tf.compare(planted.make(), [planted.batch(rng) for _ in range(2)], config)
    assert mended.is_healthy
    assert mended.findings == ()


_DENSE = normal(0, 16, 16)
Run = Callable[..., dict[str, Any]]


def composed() -> tuple[Run, tuple[np.ndarray, ...]]:
    """A difference that is negated and exponentiated: on CPUs TensorFlow makes one op of both."""

    def step(x: Any, base: Any) -> dict[str, Any]:
        near = base * (1.0 + 0.001 * tf.matmul(x, _DENSE))
        return {"out": tf.matmul(tf.exp(-(near - base)), _DENSE)}

    rng = np.random.default_rng(1)
    x = rng.normal(size=(16, 16)).astype(np.float32)
    base = rng.normal(100.0, size=(16, 16)).astype(np.float32)
    return step, (x, base)


def tiny_loss() -> tuple[Run, tuple[np.ndarray, ...]]:
    """A loss that is weighted down: TensorFlow multiplies the weight with other constants."""
    planted = PLANTED["loss"]
    return planted.make(), (planted.batch(np.random.default_rng(3)),)


@pytest.fixture(autouse=True)
def unfused() -> Iterator[None]:
    """Nothing is fused in the runs, as in comparisons: what is fused depends on the machine, and
    rounds once less.
    """
    before = tf.config.optimizer.get_experimental_options().get("remapping", True)
    tf.config.optimizer.set_experimental_options({"remapping": False})
    yield
    tf.config.optimizer.set_experimental_options({"remapping": before})


@pytest.mark.parametrize("program", [composed, tiny_loss])
@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_the_errors_are_those_of_the_run(program: Any, precision: Any) -> None:
    step, batch = program()
    config = amp_tf.AmpConfig(precision=precision, target="cpu")
    truth = tf.function(step)(*map(tf.constant, batch))
    with amp_tf.enable(config):
        run = tf.function(step)(*map(tf.constant, batch))
    outputs = amp_tf.compare(step, [batch], config).outputs
    assert {output.name for output in outputs} == truth.keys()
    for output in outputs:
        error = distance(run[output.name].numpy(), truth[output.name].numpy())
        # The same but for orders of sums.
        assert output.error == pytest.approx(error, rel=0.02, abs=2**-14), output.name
