"""The catalogue, the yardstick and the report: nothing exported is forgotten, and what a ratio and a limit are."""

from __future__ import annotations

import dataclasses
import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.truth import catalogue, limits, report
from tests.truth.bench import public_classes
from tests.truth.limits import Limit
from tests.truth.programs import arguments, functions, layers, losses, optimizers
from tests.truth.runner import Row
from tests.truth.yardstick import LIMIT, distance, judge

NEWEST = tf.__version__.startswith("2.21.") and keras.__version__.startswith("3.15.")
newest_alone = pytest.mark.skipif(not NEWEST, reason="the lists of names are TensorFlow 2.21's and Keras 3.15's")


def names_of(group: str) -> set[str]:
    return {program.name.partition("/")[2] for program in catalogue.all_programs(f"^{group}/")}


@newest_alone
@pytest.mark.parametrize("module", functions.MODULES)
def test_every_function_is_a_program_or_left_out(module: str) -> None:
    left_out = {name.partition(".")[2] for name in arguments.LEFT_OUT if name.startswith(f"{module}.")}
    assert names_of(f"tf.{module}") | left_out == set(functions.public_functions(module))
    assert not names_of(f"tf.{module}") & left_out


@newest_alone
def test_every_layer_is_a_program_or_left_out() -> None:
    assert names_of("keras.layers") | set(layers.LEFT_OUT) == set(layers.public_layers())
    assert not names_of("keras.layers") & set(layers.LEFT_OUT)


@newest_alone
def test_every_loss_metric_and_optimizer_is_a_program_or_left_out() -> None:
    for module, base, rows in (
        (keras.losses, keras.losses.Loss, losses),
        (keras.metrics, keras.metrics.Metric, losses),
        (keras.optimizers, keras.optimizers.Optimizer, optimizers),
    ):
        group = module.__name__.replace("keras.src", "keras").replace("keras.api", "keras").replace("._tf_keras", "")
        public = set(public_classes(module, base))
        assert public - names_of(group) <= set(rows.LEFT_OUT)


@newest_alone
def test_arguments_are_for_what_exists() -> None:
    assert set(layers.ARGUMENTS) <= set(layers.public_layers())
    assert set(layers.SHAPES) | set(layers.INPUTS) <= set(layers.public_layers())
    for module, rows in arguments.EXPLICIT.items():
        assert set(rows) <= set(functions.public_functions(module))


def test_the_quick_tier_is_a_share_of_every_group() -> None:
    quick = [program.name for program in catalogue.all_programs() if catalogue.in_quick_tier(program)]
    assert 30 <= len(quick) <= 70


UNIT = 2.0**-8
TRUTH = np.random.default_rng(0).normal(size=(8, 100)).astype(np.float32)


def off_by(share: float) -> np.ndarray:
    return TRUTH * np.float32(1 + share)


def test_the_error_is_relative_to_the_whole_tensor() -> None:
    assert distance(off_by(0.01), TRUTH) == pytest.approx(0.01, rel=1e-3)
    assert distance(1e-30 * off_by(0.01), 1e-30 * TRUTH) == pytest.approx(0.01, rel=1e-3)


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


GOOD = Row("group/one", "graph", "bfloat16", "1", "output", 1.0, 0.01, 0.01)
BAD = dataclasses.replace(GOOD, program="group/two", tensor="loss", ratio=7.5, error=0.03)
BROKEN = Row("group/three", "xla", "float16", "", "", math.inf, math.inf, 0.0, "ValueError: no")


@pytest.fixture
def no_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LIMITS", ())
    monkeypatch.setattr(report, "LIMITS", ())


def named(monkeypatch: pytest.MonkeyPatch, **fields: object) -> None:
    limit = Limit(**{"programs": "group/.*", "modes": ("bfloat16",), "worst": 10.0, "why": "so", **fields})
    for module in (limits, report):
        monkeypatch.setattr(module, "LIMITS", (limit,))


@pytest.mark.usefixtures("no_limits")
def test_a_ratio_above_the_limit_is_a_defect() -> None:
    assert [report.is_defect(row) for row in (GOOD, BAD, BROKEN)] == [False, True, True]


@pytest.mark.usefixtures("no_limits")
def test_a_named_limit_covers_its_figure_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    named(monkeypatch)
    assert not report.is_defect(BAD)
    assert report.is_defect(dataclasses.replace(BAD, ratio=11.0))
    assert report.is_defect(dataclasses.replace(BAD, mode="auto"))
    assert report.is_defect(dataclasses.replace(BAD, program="a group/two"))


@pytest.mark.usefixtures("no_limits")
def test_an_exception_is_covered_only_while_it_is_to_be_mended(monkeypatch: pytest.MonkeyPatch) -> None:
    named(monkeypatch, modes=("float16",), worst=math.inf)
    assert report.is_defect(BROKEN)
    named(monkeypatch, modes=("float16",), worst=math.inf, is_open=True)
    assert not report.is_defect(BROKEN)


@pytest.mark.usefixtures("no_limits")
def test_the_table_has_all_that_is_above_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    table = report.markdown([GOOD, BAD, BROKEN])
    assert "| bfloat16 | graph | 2 | 2 | 4.25 | 1.00 | 1 | 0 |" in table
    assert "| group/two | bfloat16 | graph | 1 | 1 | loss, 1 | 7.5 | 0.03 | 0.01 |" in table
    named(monkeypatch, programs="group/(two|four)")
    table = report.markdown([GOOD, BAD])
    assert "None." in table
    assert r"| `group/(two\|four)` | bfloat16 | `.*` | 7.5 | so |" in table
