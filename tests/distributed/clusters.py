"""Runs a script as the tasks of a cluster on this machine, forked where tests fork."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests import processes
from tests.hooks import running

sys.path.insert(0, str(running.ROOT / "scripts"))

import loopback


def run(launch: Callable[[Any], int], site_folder: Path, variables: dict[str, str]) -> running.Ended:
    """Runs a launcher of several processes; what they wrote is put together.

    Args:
        launch: is given what starts a process, in place of ``subprocess.Popen``, and returns the status.
        site_folder, variables: as for :func:`tests.hooks.running.run`.
    """
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:

        def start(command: Sequence[str], env: dict[str, str]) -> Any:
            environ = running.environment(site_folder, {**variables, "TF_CONFIG": env["TF_CONFIG"]})
            return processes.start(command, env=environ, cwd=site_folder, stdout=out, stderr=err)

        status = launch(start)
        for stream in (out, err):
            stream.seek(0)
        return running.Ended(status, out.read(), err.read())


def train(jobs: Mapping[str, int], command: Sequence[str], *more: Any, served: Sequence[str] = ()) -> running.Ended:
    """Runs a script with its arguments as each task of a cluster."""
    return run(lambda start: loopback.run_cluster(jobs, command, served=served, start=start), *more)
