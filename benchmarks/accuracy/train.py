"""Trains tasks for some seeds and prints one JSON line per run. ``python -m benchmarks.accuracy`` starts it per mode.

The precision comes from outside: ``--policy`` sets a Keras policy; with amp_tf the variable alone does it.
"""

from __future__ import annotations

import argparse
import json
import time

import keras

from benchmarks.accuracy.tasks import TASKS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="+", default=[task.name for task in TASKS])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--policy", default="float32")
    arguments = parser.parse_args()
    for task in TASKS:
        for seed in range(arguments.seeds if task.name in arguments.tasks else 0):
            keras.config.set_dtype_policy(arguments.policy)  # clear_session forgets it
            start = time.perf_counter()
            value = task.run(seed)
            keras.backend.clear_session()
            row = {"task": task.name, "seed": seed, "value": value, "seconds": time.perf_counter() - start}
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
