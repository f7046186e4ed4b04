"""What is watched and what is not, each row of docs/watchdog.md by a run: healthy, the same with and without it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import amp_tf
from amp_tf.tools.watchdog import reverts

tf_keras = pytest.importorskip("tf_keras")
PAGE = Path(__file__).resolve().parents[3] / "docs" / "watchdog.md"
STEPS, ROWS, WIDTH = 6, 8, 4
DATA = np.random.default_rng(0)
X = DATA.normal(size=(STEPS * ROWS, WIDTH)).astype("float32")
Y = X.sum(1, keepdims=True)
FIT: dict[str, Any] = {"x": X, "y": Y, "batch_size": ROWS, "shuffle": False, "verbose": 0}
Made = tuple[Any, dict[str, Any]]


def made(*layers, inputs=None, library=keras, optimizer=None, **compiled):
    """A model of some layers between an input and a product."""
    kind = library.layers
    start = keras.Input((WIDTH,)) if library is keras else kind.InputLayer((WIDTH,))
    model = library.Sequential([start if inputs is None else inputs, *layers, kind.Dense(1)], name="net")
    if library is keras:
        compiled.setdefault("jit_compile", False)
    model.compile(optimizer or library.optimizers.SGD(0.01, momentum=0.9), "mse", **compiled)
    return model


def dense(library=keras, **compiled):
    return made(library.layers.Dense(8, activation="tanh"), library=library, **compiled)


def with_state(library):
    """Statistics of a normalization, and a seed."""
    kinds = library.layers
    if library is tf_keras:
        tf_keras.backend.experimental.enable_tf_random_generator()
    layers = kinds.Dense(8), kinds.BatchNormalization(), kinds.ReLU(), kinds.Dropout(0.3)
    tf_keras.backend.experimental.disable_tf_random_generator()
    return made(*layers, library=library, metrics=["mae"])


class Counting(keras.layers.Layer):
    """Counts its steps in a variable that Keras does not know."""

    def __init__(self):
        super().__init__()
        self.count = tf.Variable(0, trainable=False)

    def call(self, x, training=False):
        if training:
            self.count.assign_add(1)
        return x


class Noise(keras.layers.Layer):
    def call(self, x):
        return x + 0.1 * tf.random.normal(tf.shape(x))


class InPython(keras.layers.Layer):
    def call(self, x):
        return tf.reshape(tf.numpy_function(lambda value: value, [x], tf.float32), tf.shape(x))


class Lookup(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        values = tf.lookup.KeyValueTensorInitializer(tf.range(9), tf.range(9))
        self.table = tf.lookup.StaticHashTable(values, 0)

    def call(self, x):
        return x + tf.cast(self.table.lookup(tf.zeros((), tf.int32)), x.dtype)


class OwnStep(keras.Sequential):
    def train_step(self, data):
        return super().train_step(data)


class OwnOptimizers(OwnStep):
    """With two optimizers, which ``compile`` takes, as GANs do."""

    def compile(self, one, other):
        super().compile(one, "mse", jit_compile=False)
        self.optimizers = one, other


def own(kind, *compiled, **settings):
    model = kind([keras.Input((WIDTH,)), keras.layers.Dense(1)], name="net")
    model.compile(*compiled, **settings)
    return model


def under(strategy):
    with strategy.scope():
        return dense()


def once_again():
    """A model that trained and is compiled anew."""
    model = dense()
    model.fit(**FIT)
    model.compile(keras.optimizers.Adam(0.01), "mse", jit_compile=False)
    return model


def several_inputs():
    one, other = keras.Input((WIDTH,)), keras.Input((WIDTH,))
    joined = keras.layers.Dense(8)(keras.layers.Concatenate()([one, other]))
    outputs = [keras.layers.Dense(size, name=f"out_{size}")(joined) for size in (1, 2)]
    model = keras.Model([one, other], outputs, name="net")
    model.compile(keras.optimizers.SGD(0.01), ["mse", "mae"], jit_compile=False)
    return model, {"x": [X, X], "y": [Y, X[:, :2]]}


def recurrent():
    return made(keras.layers.LSTM(8), inputs=keras.Input((5, WIDTH))), {"x": np.repeat(X[:, None], 5, axis=1)}


SGD = keras.optimizers.SGD
KINDS: dict[str, Callable[[], Any]] = {
    "dense, Keras 3": dense,
    "batch by batch, Keras 3": lambda: (dense(), None),
    "batch by batch, tf_keras": lambda: (dense(tf_keras), None),
    "legacy optimizer of tf_keras": lambda: dense(tf_keras, optimizer=tf_keras.optimizers.legacy.Adam(0.01)),
    "statistics, metrics and dropout, Keras 3": lambda: with_state(keras),
    "statistics, metrics and dropout, tf_keras": lambda: with_state(tf_keras),
    "LSTM": recurrent,
    "several inputs and outputs": several_inputs,
    "sample weights": lambda: (dense(), {"sample_weight": np.linspace(0, 1, len(X))}),
    "validation and epochs": lambda: (dense(), {"validation_data": (X, Y), "epochs": 3}),
    "a dataset": lambda: (
        dense(),
        {"x": tf.data.Dataset.from_tensor_slices((X, Y)).batch(7), "y": None, "batch_size": None},
    ),
    "gradient accumulation": lambda: dense(optimizer=SGD(0.01, gradient_accumulation_steps=2)),
    "compiled anew": once_again,
    "a variable that Keras does not know": lambda: made(Counting()),
}
NOT_WATCHED: dict[str, tuple[Callable[[], Any], str]] = {
    "`steps_per_execution` above 1": (lambda: dense(steps_per_execution=3), "it makes several steps a call"),
    "`jit_compile=True`": (lambda: dense(jit_compile=True), "XLA compiles it"),
    "`run_eagerly=True`": (lambda: dense(run_eagerly=True), "it runs eagerly"),
    "a `train_step` or `make_train_function` of your own": (
        lambda: own(OwnStep, "sgd", "mse", jit_compile=False),
        "it has a train_step or make_train_function of",
    ),
    "optimizers of your own": (
        lambda: own(OwnOptimizers, SGD(0.01), SGD(0.02)),
        "it has a train_step or make_train_function of",
    ),
    "a `tf.distribute` strategy": (
        lambda: under(tf.distribute.MirroredStrategy(["CPU:0"])),
        "it trains under MirroredStrategy",
    ),
    "an optimizer whose loss scale is Keras' own": (
        lambda: dense(optimizer=keras.optimizers.LossScaleOptimizer(SGD(0.01), 4.0)),
        "its optimizer has a loss scale that is not amp_tf's",
    ),
    "random ops that keep their state in the graph: `tf.random.normal`, Dropout of tf_keras": (
        lambda: made(Noise()),
        "draws random numbers whose state is in the graph",
    ),
    "Dropout (tf_keras)": (
        lambda: made(tf_keras.layers.Dropout(0.3, name="drop"), library=tf_keras),
        "net/drop/dropout/random_uniform/RandomUniform draws random numbers whose state is in the graph",
    ),
    "`tf.numpy_function` and `tf.py_function`": (lambda: made(InPython()), "calls Python"),
    "lookup tables in the model": (lambda: made(Lookup()), "it uses resources that are not variables"),
}


@pytest.fixture(autouse=True)
def begin_anew():
    reverts.counts = reverts.Counts()
    yield
    vars(tf_keras.src.backend._SEED_GENERATOR).pop("generator", None)  # or later tests would draw from it
    reverts.counts = reverts.Counts()


def train(make, folder, precision, *, watchdog):
    """All numbers of a run."""
    keras.utils.set_random_seed(1)
    tf_keras.utils.set_random_seed(1)
    lock = str(folder / "a.lock") if watchdog else None
    with amp_tf.enable(precision=precision, ignore_performance=True, watchdog=watchdog, lock=lock):
        found = make()
        model, given = found if isinstance(found, tuple) else (found, {})
        losses: list[float] = []  # after each call of the train function, to the last bit
        seen = tf_keras if isinstance(model, tf_keras.Model) else keras
        note = seen.callbacks.LambdaCallback(on_train_batch_end=lambda _, logs: losses.append(float(logs["loss"])))
        reverts.counts.watched = 0
        if given is None:
            history = losses = [model.train_on_batch(X[n : n + ROWS], Y[n : n + ROWS]) for n in range(0, len(X), ROWS)]
        else:
            history = model.fit(**FIT | given, callbacks=[note]).history
    checkpoint = tf.train.Checkpoint(optimizer=model.optimizer).save(str(folder / "checkpoint"))
    return {
        "saved": [name for name, _ in tf.train.list_variables(checkpoint)],
        "losses": losses,
        "history": history,
        "weights": [np.asarray(value).tobytes() for value in model.get_weights()],
        "iterations": int(model.optimizer.iterations.numpy()),
        "optimizer": type(model.optimizer).__name__,
    }


def same(make, folder, precision):
    """A run under the watchdog, which is the one without."""
    plain = train(make, folder, precision, watchdog=False)
    found = train(make, folder, precision, watchdog=True)
    assert found == plain
    assert not (folder / "a.lock").exists()
    assert (reverts.counts.reverts, reverts.counts.bad_batches, reverts.counts.lost) == (0, 0, 0)
    return found


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] * (number > 6)) for number, kind in enumerate(KINDS)]
)
def test_a_healthy_run_is_watched_and_the_same_to_the_last_bit(kind, tmp_path):
    found = same(KINDS[kind], tmp_path, "float16" if len(kind) % 2 else "bfloat16")
    assert reverts.counts.watched == len(found["losses"])
    assert reverts.counts.not_watched == {}


@pytest.mark.parametrize("kind", NOT_WATCHED)
def test_what_is_not_watched_is_said_once_and_trains_as_without(kind, tmp_path, caplog):
    make, why = NOT_WATCHED[kind]
    same(make, tmp_path, "bfloat16")
    assert reverts.counts.watched == 0
    (line,) = [record.getMessage() for record in caplog.records if "is not watched" in record.getMessage()]
    assert line.startswith("amp_tf: watchdog: model 'net' is not watched: ")
    assert why in line
    assert why in reverts.describe()


def test_the_page_has_a_row_for_each_kind_that_is_not_watched():
    rows = re.findall(r"^\| (.*?) \| no:", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(rows) == sorted(kind for kind in NOT_WATCHED if not kind.endswith(")"))


def test_a_step_is_traced_as_often_as_without_the_watchdog(tmp_path):
    counts = []
    for watchdog in (False, True):
        traces = []

        class Traced(keras.layers.Layer):
            def call(self, x, seen=traces):
                seen.append(1)
                return x

        train(lambda layer=Traced: made(layer()), tmp_path, "bfloat16", watchdog=watchdog)
        counts.append(len(traces))
    assert counts[0] == counts[1]


def test_an_error_of_the_program_itself_is_its_own(tmp_path):
    with amp_tf.enable(precision="bfloat16", ignore_performance=True, watchdog=True, lock=str(tmp_path / "a.lock")):
        model = dense(tf_keras)
        with pytest.raises(ValueError, match="incompatible with the layer"):
            model.fit(X[:, :2], Y, verbose=0)
    assert reverts.counts.not_watched["net"].startswith("its step was not traced (ValueError: ")
