"""Nothing that TensorFlow or Keras exports is forgotten: what is no program is left out for a reason."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf

from tests.truth import catalogue
from tests.truth.bench import public_classes
from tests.truth.programs import arguments, functions, layers, losses, optimizers

NEWEST = tf.__version__.startswith("2.21.") and keras.__version__.startswith("3.15.")
newest_alone = pytest.mark.skipif(not NEWEST, reason="the lists of names are TensorFlow 2.21's and Keras 3.15's")


def names_of(group: str) -> set[str]:
    return {program.name.partition("/")[2] for program in catalogue.all_programs(f"^{group}/")}


def test_names_are_unique() -> None:
    names = [program.name for program in catalogue.all_programs()]
    assert len(names) == len(set(names)) > 500


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
