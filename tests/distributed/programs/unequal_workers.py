"""Workers that each have variables of their own: ``unequal_workers.py '[{...}, {...}]' script
arguments``.

With ``"LATE": "1"`` among them a worker sets its variables when it is connected to the others, as a
script may; with ``"SLOW": "1"`` it reads what the others publish 1.5 seconds late; with
``"REGISTERED": "deny"`` it registers an op for that list.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import time
from typing import Any

import amp_tf
from amp_tf.hooks import workers


def set_when_connected(variables: dict[str, str]) -> None:
    import tensorflow as tf

    strategy_class = tf.distribute.MultiWorkerMirroredStrategy

    def make(*arguments: Any) -> Any:
        strategy = strategy_class(*arguments)
        os.environ.update(variables)
        return strategy

    tf.distribute.MultiWorkerMirroredStrategy = make


def read_late() -> None:
    read = workers._read

    def read_later(*arguments: Any) -> Any:
        time.sleep(1.5)
        return read(*arguments)

    workers._read = read_later


if __name__ == "__main__":
    variables = json.loads(sys.argv[1])[json.loads(os.environ["TF_CONFIG"])["task"]["index"]]
    workers._PRESENCE_SECONDS = 10.0  # in place of a minute
    if name := variables.pop("REGISTERED", ""):
        amp_tf.register_op("RGBToHSV", list=name, why="is an example")
    if variables.pop("SLOW", ""):
        read_late()
    if variables.pop("LATE", ""):
        set_when_connected(variables)
    else:
        os.environ.update(variables)
    sys.argv[:] = sys.argv[2:]
    runpy.run_path(sys.argv[0], run_name="__main__")
