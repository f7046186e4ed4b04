"""Runs a script by ``srun`` with two tasks, on a Slurm of its own: munged, slurmctld and slurmd of this machine.

    python slurm.py train_distributed.py --steps 30

Needs root and Debian's packages slurmctld, slurmd, slurm-client and munge; everything that they write lies in a
temporary folder, and the daemons end with the script. Their environment is without amp_tf's variables: srun passes its
own to the tasks.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TASKS = 2
CONFIG = """\
ClusterName=test
SlurmctldHost={host}
SlurmUser=root
SlurmctldPort={controller}
SlurmdPort={daemon}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/linear
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
NodeName={host} CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""
READY_SECONDS = 120


def wait_until(is_so: object, what: str) -> None:
    """Waits for a condition.

    Raises:
        TimeoutError: it did not come about.
    """
    until = time.monotonic() + READY_SECONDS
    while not is_so():  # type: ignore[operator]
        if time.monotonic() > until:
            raise TimeoutError(f"{what} within {READY_SECONDS} s")
        time.sleep(0.5)


def main(arguments: list[str]) -> int:
    """The status of srun."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
    import loopback

    host = socket.gethostname().partition(".")[0]
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.chmod(0o755)
        (folder / "state").mkdir()
        (folder / "spool").mkdir()
        (folder / "munge.key").write_bytes(os.urandom(1024))
        (folder / "munge.key").chmod(0o400)
        controller, daemon = loopback.free_ports(2)
        names = {"host": host, "folder": folder, "controller": controller, "daemon": daemon, "cpus": os.cpu_count()}
        (folder / "slurm.conf").write_text(CONFIG.format(**names))
        environ = os.environ | {"SLURM_CONF": str(folder / "slurm.conf")}

        bare = {name: environ[name] for name in environ if "MIXED_PRECISION" not in name and "AMP_TF" not in name}

        def start(*command: str) -> None:
            log = stack.enter_context((folder / f"{Path(command[0]).name}.log").open("w"))
            process = subprocess.Popen(command, env=bare, stdout=log, stderr=subprocess.STDOUT)
            stack.callback(process.wait)
            stack.callback(process.send_signal, signal.SIGTERM)

        files = ("key-file", "socket", "pid-file", "seed-file", "log-file")
        start(
            "munged",
            "--foreground",
            "--force",
            *(f"--{file}={folder}/munge.{file.partition('-')[0]}" for file in files),
        )
        wait_until((folder / "munge.socket").exists, "munged has no socket")
        start("slurmctld", "-D")
        start("slurmd", "-D", "-N", host)

        def is_idle() -> bool:
            asked = subprocess.run(["sinfo", "-h", "-o", "%T"], env=environ, capture_output=True, text=True)
            return asked.stdout.strip() == "idle"

        try:
            wait_until(is_idle, "no node became idle")
        except TimeoutError:
            for name in ("slurmctld", "slurmd"):
                print((folder / f"{name}.log").read_text()[-2000:], file=sys.stderr)
            raise
        command = ["srun", f"--ntasks={TASKS}", "--overcommit", "--kill-on-bad-exit=1", sys.executable, *arguments]
        return subprocess.run(command, env=environ, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
