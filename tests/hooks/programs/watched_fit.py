"""``watched_fit.py keras|tf_keras``: fits a layer that overflows in float16 in batch 5; batch 8 has
a nan.
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

import numpy as np

ROWS, WIDTH, STEPS = 16, 8, 10


def main(library: str) -> None:
    keras = importlib.import_module(library)

    class Weak(keras.layers.Layer):  # type: ignore[misc]
        def build(self, shape: Any) -> None:
            self.dense = keras.layers.Dense(WIDTH)
            self.dense.build((None, WIDTH))

        def call(self, x: Any) -> Any:
            gain = x[:, -1:]
            return self.dense(x[:, :-1] * gain) / gain

    keras.utils.set_random_seed(1)
    layers = [keras.Input((WIDTH + 1,)), Weak(name="weak"), keras.layers.BatchNormalization()]
    model = keras.Sequential([*layers, keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.01), "mse", metrics=["mae"])
    rng = np.random.default_rng(0)
    x = rng.normal(size=(STEPS * ROWS, WIDTH + 1)).astype("float32")
    y = x[:, :1].copy()
    x[:, -1] = 1.0
    x[4 * ROWS + ROWS - 1, -1] = 1e6
    x[7 * ROWS, 0] = np.nan
    losses = model.fit(x, y, batch_size=ROWS, shuffle=False, verbose=0).history["loss"]
    found = {
        "losses": losses,
        "steps": int(model.optimizer.iterations.numpy()),
        "weights": float(sum(np.abs(value).sum() for value in model.get_weights())),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
