"""Starts a script as Kubeflow's training operator starts the pods of a TFJob: one process here for
each replica.

    main(["Chief=1,Worker=1", "train_distributed.py", "--steps", "30"])

Each pod has ``TF_CONFIG`` as the operator's ``genTFConfigJSONStr`` writes it
(kubeflow/training-operator, pkg/controller.v1/tensorflow/tensorflow.go): replica types in small
letters, ``"environment": "cloud"``, and no evaluator in the cluster, although an evaluator's own
task is one. A pod's host is its service's name there and 127.0.0.1 here, so ports differ. Workers
and parameter servers that serve for ever are ended once the chief is done, as ``cleanPodPolicy:
Running`` does.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
GRACE = 30  # seconds between SIGTERM and SIGKILL, as Kubernetes' default


def configs(replicas: dict[str, int], ports: list[int]) -> dict[tuple[str, int], str]:
    """``TF_CONFIG`` of each pod, by replica type and index."""
    free = iter(ports)
    cluster = {
        kind.lower(): [f"127.0.0.1:{next(free)}" for _ in range(count)]
        for kind, count in replicas.items()
        if kind != "Evaluator"
    }
    return {
        (kind, index): json.dumps(
            {
                "cluster": cluster,
                "task": {"type": kind.lower(), "index": index},
                "environment": "cloud",
            }
        )
        for kind, count in replicas.items()
        for index in range(count)
    }


def main(arguments: list[str], start: Callable[..., Any] = subprocess.Popen) -> int:
    """Runs the job; the status of its chief, or of the first worker where there is none, or of a
    pod that failed.

    Args:
        arguments: the replicas, the script and its arguments.
        start: what starts a process, given a command and ``env``, as ``subprocess.Popen`` does.
    """
    sys.path.insert(0, str(SCRIPTS))
    import loopback

    replicas = {
        kind: int(count) for kind, count in (pair.split("=") for pair in arguments[0].split(","))
    }
    pods = {
        pod: start([sys.executable, *arguments[1:]], env=os.environ | {"TF_CONFIG": config})
        for pod, config in configs(replicas, loopback.free_ports(sum(replicas.values()))).items()
    }
    first = pods["Chief" if "Chief" in replicas else "Worker", 0]
    while first.poll() is None and not any(pod.poll() for pod in pods.values()):
        time.sleep(0.2)
    failed = [pod.returncode for pod in pods.values() if pod.poll()]
    if not failed and "PS" not in replicas:  # all workers of one strategy end by themselves
        failed = [status for pod in pods.values() if (status := pod.wait(timeout=GRACE))]
    for pod in pods.values():
        if pod.poll() is None:
            pod.send_signal(signal.SIGTERM)
    for pod in pods.values():
        try:
            pod.wait(timeout=GRACE)
        except subprocess.TimeoutExpired:
            pod.kill()
    return abs(failed[0]) if failed else 0
