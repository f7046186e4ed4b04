"""What TensorBoard's own reader finds in the event files."""

from __future__ import annotations

import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import amp_tf
from amp_tf.callbacks import LossScaleMonitor
from amp_tf.errors import ConfigError
from amp_tf.reporting import process
from tests.reporting.reported_graphs import reported, traced, use_own_ledger

event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")

X = np.random.RandomState(0).randn(64, 4).astype("float32")


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    found = event_accumulator.EventAccumulator(str(folder), size_guidance={"tensors": 0})
    found.Reload()
    from tensorboard.util import tensor_util

    return {
        tag: [(event.step, float(tensor_util.make_ndarray(event.tensor_proto))) for event in found.Tensors(tag)]
        for tag in found.Tags()["tensors"]
    }


@pytest.mark.parametrize("library", [keras, tf_keras], ids=["keras", "tf_keras"])
def test_the_loss_scale_and_skipped_steps_are_curves_over_batches(library, tmp_path):
    x = X.copy()
    x[3 * 8] = np.nan
    inputs = library.layers.Input((4,))
    model = library.Model(inputs, library.layers.Dense(1)(inputs))
    model.compile(amp_tf.LossScaleOptimizer(library.optimizers.SGD(0.01), initial_scale=1024.0), "mse")
    monitor = LossScaleMonitor(every=1, log_dir=tmp_path)
    model.fit(x, X.sum(1), batch_size=8, verbose=0, shuffle=False, callbacks=[monitor])
    found = scalars(tmp_path)
    skipped = dict(found["amp_tf/skipped_steps"])
    assert [skipped[step] for step in (1, 3, 4, 8)] == [0, 0, 1, 1]
    scale = dict(found["amp_tf/loss_scale"])
    assert scale[1] == 1024
    assert scale[8] < 1024


def test_without_a_loss_scale_the_share_is_written_each_epoch(tmp_path, monkeypatch):
    use_own_ledger(monkeypatch)
    product = traced(lambda x, w: tf.matmul(tf.exp(tf.matmul(x, w)), w), (64, 64), (64, 64))
    process.record(reported(product, keep_float32=("^MatMul_1$",)), way="grappler")
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(X, X.sum(1), batch_size=8, epochs=2, verbose=0, callbacks=[LossScaleMonitor(log_dir=tmp_path)])
    found = scalars(tmp_path)
    assert [step for step, _ in found["amp_tf/nodes_in_16_bit"]] == [8, 16]
    assert [share for _, share in found["amp_tf/products_in_16_bit"]] == [0.5, 0.5]
    assert "amp_tf/loss_scale" not in found


def test_nothing_is_written_without_a_folder_and_a_bad_one_is_refused(tmp_path):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(X, X.sum(1), verbose=0, callbacks=[LossScaleMonitor()])
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConfigError, match=r"LossScaleMonitor\.log_dir"):
        LossScaleMonitor(log_dir=3)


def trained(folder):
    """The loss of a model that trains with a monitor that writes to a folder."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(amp_tf.LossScaleOptimizer(keras.optimizers.SGD(0.01), initial_scale=1024.0), "mse")
    monitor = [] if folder is None else [LossScaleMonitor(every=1, log_dir=folder)]
    return model.fit(X, X.sum(1), batch_size=8, verbose=0, callbacks=monitor).history["loss"]


def test_what_is_written_needs_no_tensorboard(tmp_path, monkeypatch):
    """TensorFlow 2.21 does not install it, and without it tf.summary.scalar is an error."""
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "tensorboard.summary.v2", None)
        with pytest.raises(Exception, match="TensorBoard is not installed"):
            tf.summary.scalar("loss", 1.0, step=0)
        assert trained(tmp_path) == trained(None)
    assert dict(scalars(tmp_path)["amp_tf/loss_scale"])[8] == 1024


def test_a_folder_that_cannot_be_written_is_warned_about_once_and_training_goes_on(tmp_path, caplog):
    (tmp_path / "file").touch()
    assert trained(tmp_path / "file" / "logs") == trained(None)
    (line,) = [record.getMessage() for record in caplog.records if "log_dir" in record.getMessage()]
    assert line.startswith(f"amp_tf: LossScaleMonitor.log_dir: {tmp_path}/file/logs is not written (")
    assert line.endswith("ot a directory). Training goes on.")
    assert "{{" not in line
