"""A program with Keras' own mixed precision is told; test_ways_in.py shows what then happens to
it.
"""

import keras
import pytest

from amp_tf.hooks import conflicts
from tests.hooks.installing import install, uninstall

tf_keras = pytest.importorskip("tf_keras")


@pytest.fixture(autouse=True)
def unsaid():
    yield
    uninstall(conflicts)
    keras.mixed_precision.set_dtype_policy("float32")


def told(caplog):
    messages = [record.getMessage() for record in caplog.records]
    return [text.split(":")[1].strip() for text in messages if text.startswith("amp_tf: ")]


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: keras.mixed_precision.set_dtype_policy("mixed_bfloat16"), "mixed_bfloat16"),
        (lambda: keras.layers.Dense(2, dtype="mixed_float16"), "mixed_float16"),
        (lambda: keras.layers.Dense(2, dtype="bfloat16"), "bfloat16"),
        (lambda: tf_keras.layers.Dense(2, dtype="mixed_float16"), "mixed_float16"),
        (lambda: tf_keras.mixed_precision.Policy("mixed_bfloat16"), "mixed_bfloat16"),
    ],
)
def test_a_policy_of_the_program_or_of_one_layer_is_told_once(make, name, caplog):
    install(conflicts)
    make()
    make()
    assert told(caplog) == [f"Keras policy {name!r}"]


def test_a_policy_that_was_there_before_is_told(caplog):
    keras.mixed_precision.set_dtype_policy("mixed_float16")
    assert told(caplog) == []
    install(conflicts)
    assert told(caplog) == ["Keras policy 'mixed_float16'"]


def test_float32_is_not_worth_a_word(caplog):
    install(conflicts)
    keras.layers.Dense(2)
    keras.layers.Dense(2, dtype="float64")
    tf_keras.layers.Dense(2)
    assert told(caplog) == []
