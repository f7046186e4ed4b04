"""A monitor reads the layers of models that train, and changes nothing of the training."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import amp_tf
from amp_tf.callbacks import LossScaleMonitor
from amp_tf.comparing import monitor, readings
from amp_tf.comparing.readings import MonitoredRun
from amp_tf.errors import ConfigError
from amp_tf.graph.layers import recorded
from amp_tf.hooks import layer_paths

tf_keras = pytest.importorskip("tf_keras")
LIBRARIES = {"keras": keras, "tf_keras": tf_keras}
X = np.random.RandomState(0).randn(44, 4).astype("float32")
Y = X.sum(1, keepdims=True)


@pytest.fixture(autouse=True)
def in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("AMP_TF_PRECISION", "bfloat16")
    monkeypatch.setattr(monitor, "_runs", [])
    recorded.forget()
    layer_paths.install(amp_tf.AmpConfig())
    yield
    vars(tf_keras.src.backend._SEED_GENERATOR).pop("generator", None)  # or later tests would draw from it
    layer_paths.uninstall()
    recorded.forget()


def make_model(library: Any = keras, **settings: Any) -> Any:
    keras.utils.set_random_seed(0)
    tf_keras.utils.set_random_seed(0)
    inputs = library.layers.Input((4,))
    hidden = library.layers.Dense(8, activation="tanh", name="hidden")(inputs)
    hidden = library.layers.Dropout(0.1, seed=1)(hidden)
    model = library.Model(inputs, library.layers.Dense(1, name="out")(hidden), name="net")
    model.compile(library.optimizers.SGD(0.01), "mse", **settings)
    return model


def train(model: Any, folder: Path | None, every: int = 4, **settings: Any) -> list[float]:
    callbacks = [] if folder is None else [LossScaleMonitor(ranges=folder, ranges_every=every)]
    arguments = {"x": X, "y": Y, "batch_size": 8, "epochs": 2, "verbose": 0, **settings}
    return [float(loss) for loss in model.fit(**arguments, callbacks=callbacks).history["loss"]]


def run_of(folder: Path) -> MonitoredRun:
    return readings.read(str(folder))


@pytest.mark.parametrize("library", LIBRARIES)
def test_layers_are_read_every_so_many_steps_and_training_is_the_same(library: str, tmp_path: Path) -> None:
    made = LIBRARIES[library]
    assert train(make_model(made), tmp_path) == train(make_model(made), None)
    run = run_of(tmp_path)
    steps = [reading.step for reading in run.readings]
    assert steps == [1, 4, 8, 12]  # of two epochs, whose last batches are smaller
    layers = {layer.layer.removeprefix("net/"): layer for layer in run.readings[0].layers if not layer.is_gradient}
    assert set(layers) >= {"hidden", "out"}
    hidden = layers["hidden"]
    assert 0 < hidden.distance < 0.02  # some roundings of bfloat16
    assert hidden.largest < 10
    assert any(layer.is_gradient for layer in run.readings[0].layers)
    assert list(tmp_path.rglob("events.out.tfevents.*"))
    assert [kept.name for kept in monitor.runs()] == ["net"]


def test_readings_follow_the_variables_and_the_batches(tmp_path: Path) -> None:
    model = make_model()
    model.optimizer.learning_rate = 0.0
    keras_monitor = LossScaleMonitor(ranges=tmp_path, ranges_every=1)
    model.fit(X[:8], Y[:8], batch_size=8, verbose=0, callbacks=[keras_monitor])
    model.get_layer("out").kernel.assign(model.get_layer("out").kernel * 100)
    model.fit(X[:8], Y[:8], batch_size=8, verbose=0, callbacks=[keras_monitor])
    first, second = (
        {layer.layer: layer.norm for layer in reading.layers if not layer.is_gradient}
        for reading in run_of(tmp_path).readings
    )
    assert second["out"] == pytest.approx(100 * first["out"], rel=0.3)  # other dropout
    assert second["hidden"] == pytest.approx(first["hidden"], rel=0.3)


def test_what_leaves_the_range_of_float16_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMP_TF_PRECISION", "float16")
    model = make_model()
    model.get_layer("out").kernel.assign(np.full((8, 1), 1e5, "float32"))
    model.optimizer.learning_rate = 0.0
    train(model, tmp_path, epochs=1)
    run = run_of(tmp_path)
    out = next(layer for layer in run.readings[0].nearest(run.precision) if layer.name == "out")
    assert out.overflow > 0
    assert out.largest > run.precision.max_finite


@pytest.mark.parametrize("settings", [{"steps_per_execution": 2}, {"jit_compile": True}])
def test_steps_of_several_batches_and_of_xla_are_read(settings: dict[str, Any], tmp_path: Path) -> None:
    assert train(make_model(**settings), tmp_path) == train(make_model(**settings), None)
    first = settings.get("steps_per_execution", 1)
    assert [reading.step for reading in run_of(tmp_path).readings] == [first, 4, 8, 12]


def test_weights_of_samples_are_fed(tmp_path: Path) -> None:
    weights = np.ones(44, "float32")
    assert train(make_model(), tmp_path, sample_weight=weights) == train(make_model(), None, sample_weight=weights)
    assert len(run_of(tmp_path).readings) == 4


class OwnStep(keras.Model):
    def train_step(self, data: Any) -> Any:
        return super().train_step(data)


def test_a_model_that_cannot_be_read_trains_on_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    inputs = keras.Input((4,))
    model = OwnStep(inputs, keras.layers.Dense(1)(inputs))
    model.compile("sgd", "mse")
    with caplog.at_level(logging.WARNING):
        train(model, tmp_path)
        assert not list(tmp_path.iterdir())
    assert [record.getMessage() for record in caplog.records if "ranges" in record.getMessage()] == [
        "amp_tf: LossScaleMonitor.ranges: the layers are not read (the model has a train_step of its own). Training "
        "goes on without."
    ]


def test_a_folder_that_cannot_be_written_is_told_and_training_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    losses = train(make_model(), tmp_path / "file")
    assert losses == train(make_model(), None)
    assert sum("the layers are not read" in record.getMessage() for record in caplog.records) == 1


def test_the_train_function_is_the_models_own_again_afterwards(tmp_path: Path) -> None:
    model = make_model()
    train(model, tmp_path)
    assert not isinstance(model.train_function, monitor.WatchedTrainFunction)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ranges": 3}, "LossScaleMonitor.ranges: 3 is not a path"),
        ({"ranges": "x", "ranges_every": 0}, "LossScaleMonitor.ranges_every: 0 is not a valid value"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}"):
        LossScaleMonitor(**settings)
