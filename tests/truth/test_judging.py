"""The catalogue, the yardstick and the report: nothing exported is forgotten, and what a ratio and
a limit are.
"""

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
newest_alone = pytest.mark.skipif(
    not NEWEST, reason="the lists of names are TensorFlow 2.21's and Keras 3.15's"
)


def names_of(group):
    return {program.name.partition("/")[2] for program in catalogue.all_programs(f"^{group}/")}


@newest_alone
@pytest.mark.parametrize("module", functions.MODULES)
def test_every_function_is_a_program_or_left_out(module):
    left_out = {
        name.partition(".")[2] for name in arguments.LEFT_OUT if name.startswith(f"{module}.")
    }
    assert names_of(f"tf.{module}") | left_out == set(functions.public_functions(module))
    assert not names_of(f"tf.{module}") & left_out


@newest_alone
def test_every_layer_is_a_program_or_left_out():
    assert names_of("keras.layers") | set(layers.LEFT_OUT) == set(layers.public_layers())
    assert not names_of("keras.layers") & set(layers.LEFT_OUT)


@newest_alone
def test_every_loss_and_optimizer_is_a_program_or_left_out():
    for module, base, rows in (
        (keras.losses, keras.losses.Loss, losses),
        (keras.optimizers, keras.optimizers.Optimizer, optimizers),
    ):
        group = (
            module.__name__.replace("keras.src", "keras")
            .replace("keras.api", "keras")
            .replace("._tf_keras", "")
        )
        public = set(public_classes(module, base))
        assert public - names_of(group) <= set(rows.LEFT_OUT)


@newest_alone
def test_arguments_are_for_what_exists():
    assert set(layers.ARGUMENTS) <= set(layers.public_layers())
    assert set(layers.SHAPES) | set(layers.INPUTS) <= set(layers.public_layers())
    for module, rows in arguments.EXPLICIT.items():
        assert set(rows) <= set(functions.public_functions(module))


UNIT = 2.0**-8
TRUTH = np.random.default_rng(0).normal(size=(8, 100)).astype(np.float32)
ROUNDED = (TRUTH.view(np.uint32) + np.uint32(0x8000) & np.uint32(0xFFFF0000)).view(np.float32)
ZEROS = np.zeros(4, np.float32)


def off_by(share):
    return TRUTH * np.float32(1 + share)


def with_one(value):
    return np.where(np.arange(TRUTH.size).reshape(TRUTH.shape) == 305, np.float32(value), TRUTH)


def test_the_error_is_relative_to_the_whole_tensor():
    assert distance(off_by(0.01), TRUTH) == pytest.approx(0.01, rel=1e-3)
    assert distance(1e-30 * off_by(0.01), 1e-30 * TRUTH) == pytest.approx(0.01, rel=1e-3)
    assert (
        distance(with_one(-np.inf), with_one(np.inf)) == np.inf
    )  # of the other sign it is another value


#: A tensor's name, its value, the ideal program's, float32's, that one's noise, and the least and
#: largest ratio.
JUDGED = {
    "an error five times as large": (
        "gradient",
        off_by(0.05),
        off_by(0.01),
        TRUTH,
        0.0,
        4.99,
        5.01,
    ),
    "one rounding where the ideal program is exact": (
        "output",
        ROUNDED,
        TRUTH,
        TRUTH,
        0.0,
        0.0,
        1.0,
    ),
    "one rounding of a loss that a user reads": ("loss", ROUNDED, TRUTH, TRUTH, 0.0, LIMIT, 20.0),
    "one rounding of a metric": ("metric mean", ROUNDED, TRUTH, TRUTH, 0.0, LIMIT, 20.0),
    "what nobody asked to convert": (
        "untouched image",
        off_by(0.01),
        off_by(0.01),
        TRUTH,
        0.0,
        1000.0,
        1e9,
    ),
    "its last bits": ("untouched image", off_by(2.0**-22), off_by(0.01), TRUTH, 0.0, 0.0, 1.0),
    **{
        name: ("output", with_one(lost), ideal, truth, 0.0, ratio, ratio)
        for lost in (np.nan, np.inf, -np.inf)
        for name, ideal, truth, ratio in (
            (f"{lost} that the ideal program has not", off_by(0.01), TRUTH, np.inf),
            (f"{lost} that it has", with_one(lost), TRUTH, 1.0),
            (f"{lost} that float32 has", with_one(lost), with_one(lost), 0.0),
        )
    },
    "no infinity where the ideal program has one": (
        "output",
        off_by(0.01),
        with_one(np.inf),
        TRUTH,
        0.0,
        0.0,
        0.0,
    ),
    "a value where the truth is zero": ("gradient", ZEROS + 1, ZEROS, ZEROS, 0.0, np.inf, np.inf),
    "zero where the truth is zero": ("gradient", ZEROS, ZEROS, ZEROS, 0.0, 0.0, 0.0),
    "what float32 itself does not know": (
        "gradient",
        off_by(3),
        off_by(0.01),
        TRUTH,
        0.5,
        0.0,
        0.0,
    ),
    "an infinity even there": (
        "gradient",
        off_by(np.inf),
        off_by(0.01),
        TRUTH,
        0.5,
        np.inf,
        np.inf,
    ),
    "an error above float32's own noise": ("output", off_by(0.02), TRUTH, TRUTH, 0.008, 2.49, 2.51),
}


@pytest.mark.parametrize(
    ("name", "value", "ideal", "truth", "noise", "least", "most"), JUDGED.values(), ids=JUDGED
)
def test_a_ratio_is_the_error_over_what_is_inherent(
    name,
    value,
    ideal,
    truth,
    noise,
    least,
    most,
):
    verdict = judge(name, value, ideal, truth, UNIT, noise)
    exact = judge(name, value, truth, truth, UNIT)
    assert verdict.is_good or not exact.is_good  # as runner.rows_of takes it
    assert least <= verdict.ratio <= most
    assert verdict.is_good == (verdict.ratio <= LIMIT)


def test_complex_numbers_are_compared_part_by_part():
    truth = TRUTH + 1j * TRUTH
    assert distance(truth.real + 1.02j * truth.imag, truth) == pytest.approx(
        0.02 / 2**0.5, rel=1e-3
    )


GOOD = Row("group/one", "graph", "bfloat16", "1", "output", 1.0, 0.01, 0.01)
BAD = dataclasses.replace(GOOD, program="group/two", tensor="loss", ratio=7.5, error=0.03)
BROKEN = Row("group/three", "xla", "float16", "", "", math.inf, math.inf, 0.0, "ValueError: no")


@pytest.fixture
def named(monkeypatch):
    """There is no limit, and then the one that it is called for."""

    def name(*found):
        for module in (limits, report):
            monkeypatch.setattr(module, "LIMITS", found)

    name()
    return name


def test_a_ratio_above_the_limit_is_a_defect_and_a_named_limit_covers_its_figure_and_no_more(
    named,
):
    assert [report.is_defect(row) for row in (GOOD, BAD, BROKEN)] == [False, True, True]
    named(Limit("group/.*", ("bfloat16", "float16"), 10.0, "so"))
    assert not report.is_defect(BAD)
    for other in (
        {"ratio": 11.0},
        {"mode": "auto"},
        {"program": "a group/two"},
        {"problem": "ValueError: no"},
    ):
        assert report.is_defect(dataclasses.replace(BAD, **other))


def test_the_table_has_all_that_is_above_the_limit(named):
    table = report.markdown([GOOD, BAD, BROKEN])
    assert "| bfloat16 | graph | 2 | 2 | 4.25 | 1.00 | 1 | 0 |" in table
    assert "| group/two | bfloat16 | graph | 1 | 1 | loss, 1 | 7.5 | 0.03 | 0.01 |" in table
    named(Limit("group/(two|four)", ("bfloat16",), 10.0, "so"))
    table = report.markdown([GOOD, BAD])
    assert "None." in table
    assert r"| `group/(two\|four)` | bfloat16 | `.*` | 7.5 | so |" in table
