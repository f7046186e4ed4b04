"""Trains by Ray Train's ``TensorflowTrainer``, two workers on this machine; takes train_distributed.py's arguments.

Ray sets ``TF_CONFIG`` and restarts the workers once, after one has died. With ``--runtime-env`` the workers get the
variables from Ray, as on a cluster whose machines were started without them.
"""

from __future__ import annotations

import os
import pathlib
import sys
import tempfile

import ray
import ray.train
from ray.train.tensorflow import TensorflowTrainer

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"


def train(settings: dict[str, object]) -> None:
    """What each worker does: the script, which finds the others by TF_CONFIG. Its result is reported to Ray, too."""
    sys.path.insert(0, str(SCRIPTS))
    import train_distributed

    died = pathlib.Path(str(settings["folder"]), "died")
    arguments = [str(argument) for argument in settings["arguments"]]
    if died.exists():
        arguments += ["--die-at", "-1"]
    elif "--die-at" in arguments and ray.train.get_context().get_world_rank() == 1:
        died.touch()
    sys.argv = ["train_distributed.py", *arguments]
    train_distributed.main()


def main() -> None:
    arguments, variables = sys.argv[1:], {}
    if "--runtime-env" in arguments:
        arguments.remove("--runtime-env")
        names = [name for name in os.environ if "MIXED_PRECISION" in name or "AMP_TF" in name]
        variables = {name: os.environ.pop(name) for name in names}
    os.environ.setdefault("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", "600")  # of a busy machine
    ray.init(num_cpus=2, include_dashboard=False, runtime_env={"env_vars": variables})
    with tempfile.TemporaryDirectory() as folder:
        trainer = TensorflowTrainer(
            train,
            train_loop_config={"folder": folder, "arguments": arguments},
            scaling_config=ray.train.ScalingConfig(num_workers=2),
            run_config=ray.train.RunConfig(storage_path=folder, failure_config=ray.train.FailureConfig(max_failures=1)),
        )
        trainer.fit()


if __name__ == "__main__":
    main()
