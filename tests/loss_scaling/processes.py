"""Starts the programs of these tests, each in a process of its own, and reads the JSON that they print."""

import json
import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from loopback import free_ports

from tests import processes

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).resolve().parent / "programs"


def start(program, *arguments, **environment):
    environ = {name: value for name, value in os.environ.items() if "MIXED_PRECISION" not in name}
    environ |= {"PYTHONPATH": str(ROOT), **processes.EVERYWHERE, **environment}
    return processes.start(
        [sys.executable, str(PROGRAMS / program), *arguments],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process, seconds=400):
    try:
        out, err = process.communicate(timeout=seconds)
    finally:
        process.kill()
    assert process.returncode == 0, err[-3000:]
    return json.loads(out)


def start_workers(program, *arguments):
    """Two workers of a MultiWorkerMirroredStrategy; arguments are the same for both, or one tuple for each."""
    cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(2)]}
    each = arguments if arguments and isinstance(arguments[0], tuple) else (arguments, arguments)
    return [
        start(program, *each[i], TF_CONFIG=json.dumps({"cluster": cluster, "task": {"type": "worker", "index": i}}))
        for i in range(2)
    ]
