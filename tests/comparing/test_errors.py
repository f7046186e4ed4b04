"""Some programs cannot be compared, and an interrupted search keeps what it found."""

import os
import signal

import keras
import numpy as np
import pytest
import tensorflow as tf

import amp_tf
from amp_tf.tools.comparing.calls import Calls
from tests.comparing.planted import PLANTED

CONFIG = amp_tf.AmpConfig(precision="bfloat16", target="cpu")
X = np.ones((4, 6), np.float32)
SPREAD = np.random.default_rng(0).normal(size=(300, 6)).astype(np.float32)


def _square(x):
    return tf.matmul(x, x, transpose_b=True)


def _error(subject=_square, batches=(X,), config=CONFIG, **arguments):
    with pytest.raises(amp_tf.AmpError) as caught:
        amp_tf.compare(subject, batches, config, **arguments)
    return str(caught.value)


def singular(x):
    """Computes zero, which no optimizer of TensorFlow's finds out before it runs."""
    zeros = tf.cast(x[:, : x.shape[0]] > 1e30, tf.float32)
    return tf.linalg.inv(zeros), tf.matmul(x, x, transpose_b=True)


def kept(x):
    """Computes numbers that pass a threshold: how many do depends on rounding."""
    y = tf.matmul(x, 1 + x / 300, transpose_b=True)
    return tf.boolean_mask(y, y > y[0, 1]), y


def compiled_model():
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"batches": []}, "there are no batches"),
        ({"batches": 3}, "expected batches, got int"),
        ({"batches": {"x": X}}, "expected batches, got dict"),
        ({"batches": [keras.Input((6,))]}, "has no values that can be fed"),
        ({"batches": [np.array([object()])]}, "has no values that can be fed"),
        ({"batches": [X, (X, X)]}, "batches differ in structure from the first one"),
        ({"batches": [(X, X)]}, "the step cannot be traced with the batches"),
        ({"batches": [X[0, 0]]}, "the step cannot be traced with the batches"),
        (
            {"subject": compiled_model()},
            "a batch of a compiled model is (x, y) or (x, y, sample_weight)",
        ),
        ({"subject": 3}, "expected a Keras model or a function, got int"),
        (
            {"subject": lambda x: tf.cast(x, tf.int32)},
            "it returns no floating-point numbers and writes no variables",
        ),
        ({"subject": singular}, "a batch cannot be run (Input is not invert"),
        ({"subject": kept, "batches": [SPREAD]}, "the shape of '[0]' depends on values: it was ("),
        ({"subject": tf.exp}, "nothing would be converted, so there is nothing to compare"),
        ({"batches": [X.astype(float)]}, "converted; NumPy's own type is float64."),
        ({"steps": 0}, "steps: 0 is not a number of batches"),
        ({"config": "bfloat16"}, "compare(config): expected an AmpConfig"),
    ],
)
def test_what_cannot_be_compared_is_told(given, words):
    assert words in _error(**given)


@pytest.mark.parametrize("argument", [tf.ragged.constant([[1.0], []]), tf.sparse.eye(2)])
def test_an_argument_of_a_program_that_is_not_dense(argument):
    calls = Calls("step", _square, jit_compile=None, most=8)
    with pytest.raises(amp_tf.AmpError, match="and only dense tensors can be fed") as refused:
        calls.keep(X, argument)
    assert f"an argument is a {type(argument).__name__}, " in str(refused.value)


def test_a_node_whose_shape_depends_on_values_is_not_measured():
    compared = amp_tf.compare(lambda x: tf.reduce_sum(kept(x)[0]), [SPREAD], CONFIG)
    assert any(node.op == "MatMul" for node in compared.nodes)


def test_a_step_that_amp_tf_has_rewritten_already():
    inner = tf.function(_square, jit_compile=True)
    with amp_tf.enable(CONFIG):
        assert amp_tf.compare(tf.function(lambda x: inner(x) + 1), [(X,)], CONFIG).is_healthy


def test_a_model_that_amp_tf_has_converted(tmp_path):
    model = tf.Module()
    model.square = tf.function(_square, input_signature=[tf.TensorSpec(X.shape, tf.float32)])
    tf.saved_model.save(model, str(tmp_path / "model"))
    amp_tf.convert_saved_model(tmp_path / "model", tmp_path / "converted", CONFIG)
    words = _error(tf.saved_model.load(str(tmp_path / "converted")).square)
    assert "functions of the step are in 16 bit already" in words
    assert words.endswith("Compare the model that was converted.")


def test_a_step_that_does_something_else_each_time():
    generator = np.random.default_rng(0)

    def noisy(x):
        noise = tf.numpy_function(
            lambda: generator.normal(size=(4, 4)).astype(np.float32), [], tf.float32, name="drawn"
        )
        return _square(x) + tf.reshape(noise, (4, 4))

    words = _error(noisy)
    assert "the same batch gives two different values of 'result' in float32" in words
    assert words.endswith("Draw random numbers with tf.random, not in Python, or feed them.")


IN_FLOAT16 = amp_tf.AmpConfig(precision="float16", target="cpu")


@pytest.fixture(autouse=True)
def with_the_usual_handler():
    """A shell's background jobs, which pytest may be one of, ignore Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def _compare(at=None, batches=4):
    """Compares a program that goes wrong; interrupts it where the progress begins with a text."""
    told = []

    def progress(text):
        told.append(text)
        if (
            at is not None
            and text.startswith(at)
            and [t.startswith(at) for t in told].count(True) == 1
        ):
            os.kill(os.getpid(), signal.SIGINT)

    planted = PLANTED["inputs"]
    rng = np.random.default_rng(3)
    rows = [planted.batch(rng) for _ in range(batches)]
    return amp_tf.compare(planted.make(), rows, IN_FLOAT16, steps=batches, progress=progress), told


def test_progress_is_told():
    found, told = _compare()
    assert not found.is_cut
    batches = [text for text in told if text.startswith("float32 and float16: batch ")]
    numbers = [text.rpartition(" batch ")[2].partition(",")[0] for text in batches]
    assert numbers == [f"{number} of 4" for number in range(1, 5)]
    left = [" left if all is well" in text for text in batches]
    assert left == [False, True, True, True]  # once a batch has run in 16 bit
    assert told[0] == "tracing the step"
    assert told[-1] == ""


def test_interrupted_in_a_trial_it_has_the_verdict_and_the_places():
    found, _ = _compare("a trial with")
    assert (found.is_cut, found.batches, found.patterns) == (True, 4, ())
    assert found.findings[0].node == "first"
    assert str(found).endswith("It was interrupted before a setting was found that fixes it.")
    with pytest.raises(KeyboardInterrupt):  # before the verdict there is nothing to say
        _compare("float32 and float16: batch 3")
