"""Builds each model of the wide suite and trains a step, in one process, with batches of two.

python -m benchmarks.models.wide [MODELS]
"""

from __future__ import annotations

import sys
import time

import keras
import numpy as np

from benchmarks.models import benchmark, names
from benchmarks.models.wide.registry import FAMILIES, half


def try_one(name: str) -> float:
    """The loss of one step of a model.

    Raises:
        ValueError: it is not a number.
    """
    workload = benchmark(name).workload()
    workload.keras.backend.clear_session()
    keras.utils.set_random_seed(0)  # of tf_keras, too; its own function changes what later seeds do
    model = workload.model()
    model.compile(optimizer=workload.optimizer(), loss=workload.loss, jit_compile=False)
    x, y = workload.data(2, 0)
    loss = float(model.train_on_batch(x, y))
    if not np.isfinite(loss):
        raise ValueError(f"{name}: the loss is {loss}")
    return loss


def main() -> int:
    asked = "wide"
    if len(sys.argv) > 1:
        asked = sys.argv[1]
    failed = []
    for name in names(asked):
        begin = time.monotonic()
        try:
            loss = try_one(name)
        except Exception as error:
            failed.append(name)
            print(f"{name}: {type(error).__name__}: {error}", flush=True)
            continue
        seconds = time.monotonic() - begin
        print(f"{name:26}{half(name):10}{FAMILIES[name]:32}{loss:9.4f}{seconds:7.1f} s", flush=True)
    if failed:
        print(f"failed: {', '.join(failed)}")
        return 1
    print("every model trains a step")
    return 0


if __name__ == "__main__":
    sys.exit(main())
