"""A TensorFlow cluster of processes on this machine's loopback, for the scripts that train on
several machines.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_NOTICE_SECONDS = 5  # what the others get to notice a lost task by themselves
_END_SECONDS = 30


def run_cluster(
    jobs: Mapping[str, int],
    command: Sequence[str],
    *,
    served: Sequence[str] = (),
    start: Callable[..., Any] = subprocess.Popen,
) -> int:
    """Start one process for each task, each with its ``TF_CONFIG``, and wait for them.

    Args:
        jobs: job name to number of tasks.
        command: a script and its arguments.
        served: jobs that wait for work and never end by themselves: they get SIGTERM when the
            others are done.
        start: what starts a process, given a command and ``env``, as ``subprocess.Popen`` does.

    Returns:
        The status of the first task that failed, else 0.
    """
    ports = iter(free_ports(sum(jobs.values())))
    cluster = {
        job: [f"127.0.0.1:{next(ports)}" for _ in range(count)] for job, count in jobs.items()
    }
    processes: dict[tuple[str, int], Any] = {}
    # An evaluator is a task of its own, which no cluster knows.
    known = {job: addresses for job, addresses in cluster.items() if job != "evaluator"}
    for job, addresses in cluster.items():
        for index in range(len(addresses)):
            config = {"cluster": known, "task": {"type": job, "index": index}}
            environment = {**os.environ, "TF_CONFIG": json.dumps(config)}
            processes[job, index] = start([sys.executable, *command], env=environment)
    servers = []
    trainers = []
    for (job, _), process in processes.items():
        if job in served:
            servers.append(process)
        else:
            trainers.append(process)
    while any(trainer.poll() is None for trainer in trainers):
        time.sleep(0.2)
        if any(process.poll() for process in processes.values()):
            time.sleep(_NOTICE_SECONDS)
            break
    for process in trainers:
        process.kill()
    for process in servers:
        process.send_signal(signal.SIGTERM)
    for process in processes.values():
        try:
            process.wait(timeout=_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    # A task that failed by itself says more than those that were killed because of it.
    statuses = [process.returncode for process in processes.values()]
    by_itself = [status for status in statuses if status > 0]
    killed = [abs(status) for status in statuses if status < 0]
    return [*by_itself, *killed, 0][0]


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens at now."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
