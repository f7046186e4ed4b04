"""Fits a model with a layer that overflows in float16 on one example: ``watched_fit.py LIBRARY [one|two|workers]``.

The library is ``keras`` or ``tf_keras``; one device, two replicas, or two workers train. Batch 5 has the example (of
the second replica), batch 8 a nan. Prints losses, the steps that were made, and the sum of
all sizes of weights.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

ROWS, WIDTH, STEPS = 16, 8, 10


def main(library: str, kind: str) -> None:
    import tensorflow as tf

    keras = importlib.import_module(library)
    worker = json.loads(os.environ["TF_CONFIG"])["task"]["index"] if kind == "workers" else None
    if kind == "two":
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    elif kind == "workers":
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
    else:
        strategy = tf.distribute.get_strategy()

    class Weak(keras.layers.Layer):  # type: ignore[misc]
        def build(self, shape: Any) -> None:
            self.dense = keras.layers.Dense(WIDTH)
            self.dense.build((None, WIDTH))

        def call(self, x: Any) -> Any:
            gain = x[:, -1:]
            return self.dense(x[:, :-1] * gain) / gain

    keras.utils.set_random_seed(1)
    with strategy.scope():
        layers = [keras.Input((WIDTH + 1,)), Weak(name="weak"), keras.layers.BatchNormalization()]
        model = keras.Sequential([*layers, keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.01), "mse", metrics=["mae"])
    rng = np.random.default_rng(0)
    x = rng.normal(size=(STEPS * ROWS, WIDTH + 1)).astype("float32")
    y = x[:, :1].copy()
    x[:, -1] = 1.0
    x[4 * ROWS + ROWS - 1, -1] = 1e6
    x[7 * ROWS, 0] = np.nan
    if worker is not None:  # each worker's halves of the batches
        x, y = (data.reshape(STEPS, 2, ROWS // 2, -1)[:, worker].reshape(STEPS * ROWS // 2, -1) for data in (x, y))
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(ROWS if worker is None else ROWS // 2, drop_remainder=True)
    steps = {}
    if worker is not None:
        steps, own = {"steps_per_epoch": STEPS}, data
        data = strategy.distribute_datasets_from_function(lambda _: own)
    losses = model.fit(data, epochs=1, verbose=0, **steps).history["loss"]
    found = {
        "losses": losses,
        "steps": int(model.optimizer.iterations.numpy()),
        "weights": float(sum(np.abs(value).sum() for value in model.get_weights())),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    library, kind = sys.argv[1:]
    if kind == "workers" and "TF_CONFIG" not in os.environ:
        sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "scripts"))
        import loopback

        sys.exit(loopback.run_cluster({"worker": 2}, [__file__, *sys.argv[1:]]))
    main(library, kind)
