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
    loss = float(model.train_on_batch(*workload.data(2, 0)))
    if not np.isfinite(loss):
        raise ValueError(f"{name}: the loss is {loss}")
    return loss


def main() -> int:
    failed = []
    for name in names(sys.argv[1] if len(sys.argv) > 1 else "wide"):
        begin = time.monotonic()
        try:
            loss = try_one(name)
        except Exception as error:
            failed.append(name)
            print(f"{name}: {type(error).__name__}: {error}", flush=True)
            continue
        seconds = time.monotonic() - begin
        print(f"{name:26}{half(name):10}{FAMILIES[name]:32}{loss:9.4f}{seconds:7.1f} s", flush=True)
    print(f"failed: {', '.join(failed)}" if failed else "every model trains a step")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
