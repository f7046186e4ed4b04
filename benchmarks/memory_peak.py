"""Which tensors are live where a training step takes the most memory: float32, the Keras policy,
amp_tf.

    python -m benchmarks.memory_peak convnet --batch 64 [--modes float32,policy,amp_tf] [--rows 8]

From TensorFlow's profiler, which notes each block that the CPU's allocator gives and takes back,
with the node that it is for; where TensorFlow computes with oneDNN, blocks of 256 KiB or more.
*Live* is the sum of what the nodes asked for, counted from the beginning of the steps, so without
weights and optimizer slots: it hardly differs between runs. *Given* is the size of the blocks:
oneDNN's allocator does not split a block for a small rest, so this depends on which blocks happened
to be free; the other one gives what is asked for. The resident memory (``python -m
benchmarks.memory``) varies even more: the process keeps what was given back, and two threads ask in
another order each time.

Resident memory decides what fits on a CPU; the search for the largest batch uses either
(``--cap``).
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from benchmarks.models import BENCHMARKS, names
from benchmarks.step_time import options
from benchmarks.step_time.modes import WAYS, environment, modes
from benchmarks.step_time.traces import Event, record

COMPARED = ("float32", "policy", "amp_tf")
STEPS = 3
MIB = 2**20


@dataclasses.dataclass(frozen=True)
class Tensor:
    """One block: the node that it is for, MiB that it asked for, its type where the profiler knows
    it.
    """

    node: str
    mib: float
    dtype: str


@dataclasses.dataclass(frozen=True)
class Peak:
    """The moment at which most was live.

    Attributes:
        live: MiB that the nodes had asked for.
        given: the most MiB that the allocator had given at any moment.
        tensors: what was live, the largest first.
    """

    live: float
    given: float
    tensors: tuple[Tensor, ...]


def find_peak(events: Iterable[Event]) -> Peak:
    """The peak in a recorded run; what was allocated before its first event does not count."""
    living: dict[int, dict[str, Any]] = {}
    at_peak: list[dict[str, Any]] = []
    live = given = most_live = most_given = 0
    for event in events:
        if event.name == "MemoryAllocation":
            block = living[event.details["addr"]] = event.details
            live, given = live + block["requested_bytes"], given + _given(block)
        elif event.name == "MemoryDeallocation" and event.details["addr"] in living:
            block = living.pop(event.details["addr"])
            live, given = live - block["requested_bytes"], given - _given(block)
        if live > most_live:
            most_live, at_peak = live, list(living.values())
        most_given = max(most_given, given)
    tensors = sorted(map(_tensor, at_peak), key=lambda tensor: -tensor.mib)
    return Peak(most_live / MIB, most_given / MIB, tuple(tensors))


def _given(block: dict[str, Any]) -> int:
    return int(
        block["allocation_bytes"] or block["requested_bytes"]
    )  # 0 where the system's malloc does not tell


def record_memory(run: Callable[[], object]) -> list[Event]:
    """Runs something under the profiler, its allocations told on every CPU.

    The allocator that TensorFlow has without oneDNN tells them only if it is asked to; no Python
    function does that.
    """
    from tensorflow.python.platform import sysconfig

    framework = ctypes.CDLL(f"{sysconfig.get_lib()}/libtensorflow_framework.so.2")
    framework._ZN3tsl23EnableCPUAllocatorStatsEv()
    return record(run)


def _tensor(block: dict[str, Any]) -> Tensor:
    import tensorflow as tf

    kind = block.get("data_type", 0)
    dtype = tf.as_dtype(kind).name if kind else ""
    return Tensor(str(block.get("tf_op", "")), block["requested_bytes"] / MIB, dtype)


def work(job: dict[str, Any]) -> Peak:
    """Trains in this process and finds the peak of some steps, after the first ones."""
    from benchmarks.step_time import worker

    worker.set_up(modes(job["precision"])[job["mode"]])
    runner, _ = worker.prepare(job, WAYS["fit"])
    return find_peak(record_memory(lambda: runner.steps(STEPS)))


def measure(job: dict[str, Any]) -> Peak:
    """The peak of one mode, from a process of its own.

    Raises:
        RuntimeError: the process failed; the message is the end of what it wrote to stderr.
    """
    command = [sys.executable, "-m", "benchmarks.memory_peak", "--work", json.dumps(job)]
    mode = modes(job["precision"])[job["mode"]]
    done = subprocess.run(
        command, env=environment(mode), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-1500:])
    found = json.loads(done.stdout.strip().splitlines()[-1])
    return Peak(
        found["live"], found["given"], tuple(Tensor(**tensor) for tensor in found["tensors"])
    )


def table(peaks: dict[str, Peak], rows: int) -> str:
    """A column for each mode: what was live, what was given, the largest tensors; as Markdown."""
    lines = ["| | " + " | ".join(peaks) + " |", "|---|" + "---|" * len(peaks)]
    lines.append(
        "| live, MiB | " + " | ".join(f"{peak.live:.0f}" for peak in peaks.values()) + " |"
    )
    lines.append(
        "| given, MiB | " + " | ".join(f"{peak.given:.0f}" for peak in peaks.values()) + " |"
    )
    for number in range(rows):
        cells = [
            _cell(peak.tensors[number]) if number < len(peak.tensors) else ""
            for peak in peaks.values()
        ]
        lines.append(f"| {number + 1} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(tensor: Tensor) -> str:
    name = "/".join(tensor.node.split("/")[-3:])
    return " ".join(filter(None, (f"{tensor.mib:.1f}", tensor.dtype, name)))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = options.new_parser(__doc__, modes=COMPARED)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--rows", type=int, default=8, help="how many tensors to show")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.work:
        print("\n" + json.dumps(dataclasses.asdict(work(json.loads(asked.work)))), flush=True)
        return 0
    for model in names(asked.models):
        job = {
            "model": model,
            "size": asked.size,
            "batch": asked.batch,
            "precision": asked.precision,
        }
        peaks = {mode: measure({**job, "mode": mode}) for mode in options.names_in(asked.modes)}
        batch = asked.batch or BENCHMARKS[model].workload(asked.size).batch
        print(
            f"**{BENCHMARKS[model].title}, fit, batch {batch}**",
            "",
            table(peaks, asked.rows),
            "",
            sep="\n",
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
