"""Peak memory of training: float32, the Keras policy, amp_tf; and which tensors are live there.

    python -m benchmarks.memory [MODELS] [--modes float32,policy,memory]
    python -m benchmarks.memory convnet --batches 64 --rows 8

Each figure comes from a process of its own, which builds the model and makes some steps of Keras'
``fit`` without XLA. The mode ``memory`` is ``AMP_TF_FOR=memory``. Needs Linux.

- *resident*: MiB by which the peak of the resident memory in these steps exceeds the memory before
  them: variables, slots, activations, gradients and work space. It varies by a tenth from run to
  run, because TensorFlow's allocator keeps freed blocks of many sizes.
- *live*: MiB that nodes had asked for at the peak of further steps, without weights and slots. It
  comes from TensorFlow's profiler, which records each block that the CPU's allocator gives and
  takes back (with oneDNN, blocks of 256 KiB or more), and hardly varies.

``--rows N`` lists the N largest tensors that are live at the peak.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import gc
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import models
from benchmarks.results import table_head, table_row
from benchmarks.step_time import options
from benchmarks.step_time.modes import WAYS, Mode, environment, modes
from benchmarks.step_time.suite import answer_of, print_answer
from benchmarks.step_time.traces import Event, record

COMPARED = ("float32", "policy", "memory")
STEPS = 3
MIB = 2**20


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A block of memory.

    Attributes:
        node: the node that it is for.
        mib: MiB that the node asked for.
        dtype: its type, where the profiler knows it.
    """

    node: str
    mib: float
    dtype: str


@dataclasses.dataclass(frozen=True)
class Peak:
    """The moment of a run at which most memory was live.

    Attributes:
        live: MiB that nodes had asked for.
        tensors: the live blocks, the largest first.
        resident: MiB of resident memory that the steps took.
    """

    live: float
    tensors: tuple[Tensor, ...] = ()
    resident: float = 0.0


def resident(field: str) -> float:
    """``VmRSS`` (now) or ``VmHWM`` (the peak since it was reset) of this process, in MiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"/proc/self/status has no {field}: this benchmark needs Linux.")


def record_memory(run: Callable[[], object]) -> list[Event]:
    """Runs something under the profiler, which records allocations on every CPU.

    TensorFlow's allocator without oneDNN reports them only on request, and no Python function
    makes this request.
    """
    from tensorflow.python.platform import sysconfig

    framework = ctypes.CDLL(f"{sysconfig.get_lib()}/libtensorflow_framework.so.2")
    framework._ZN3tsl23EnableCPUAllocatorStatsEv()
    return record(run)


def find_peak(events: Iterable[Event]) -> Peak:
    """Finds the peak of a recorded run; blocks allocated before its first event do not count."""
    living: dict[int, dict[str, Any]] = {}
    at_peak: list[dict[str, Any]] = []
    live = 0
    most_live = 0
    for event in events:
        if event.name == "MemoryAllocation":
            living[event.details["addr"]] = event.details
            live += event.details["requested_bytes"]
        elif event.name == "MemoryDeallocation" and event.details["addr"] in living:
            live -= living.pop(event.details["addr"])["requested_bytes"]
        if live > most_live:
            most_live = live
            at_peak = list(living.values())
    at_peak.sort(key=lambda block: -block["requested_bytes"])
    return Peak(most_live / MIB, tuple(map(_tensor, at_peak)))


def _tensor(block: Mapping[str, Any]) -> Tensor:
    import tensorflow as tf

    kind = block.get("data_type", 0)
    dtype = tf.as_dtype(kind).name if kind else ""
    return Tensor(str(block.get("tf_op", "")), block["requested_bytes"] / MIB, dtype)


def work(job: dict[str, Any]) -> Peak:
    """Trains in this process: some steps for the resident memory, then some for the live one."""
    from benchmarks.step_time import worker

    worker.set_up(modes(job["precision"])[job["mode"]])
    runner = worker.new_runner(job, WAYS["fit"])
    gc.collect()
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak to the present size
    runner.steps(STEPS)
    taken = resident("VmHWM") - before
    peak = find_peak(record_memory(lambda: runner.steps(STEPS)))
    return dataclasses.replace(peak, resident=taken)


def measure(job: dict[str, Any], mode: Mode) -> Peak:
    """Measures one mode in a process of its own.

    Args:
        job: the model, its size and batch, and the 16-bit type of the policy.
        mode: what is compared.

    Raises:
        RuntimeError: the process failed; the message is the end of what it wrote to stderr.
    """
    found = answer_of("benchmarks.memory", {**job, "mode": mode.name}, environment(mode))
    found["tensors"] = tuple(Tensor(**tensor) for tensor in found["tensors"])
    return Peak(**found)


def row(title: str, batch: int, peaks: Sequence[Peak]) -> str:
    """One line of the table: resident memory, its ratio to the first mode's, live memory."""
    cells = [title, str(batch)]
    cells += [f"{peak.resident:.0f}" for peak in peaks]
    cells += [f"{peak.resident / peaks[0].resident:.2f}" for peak in peaks[1:]]
    cells += [f"{peak.live:.0f}" for peak in peaks]
    return table_row(cells)


def head(names: Sequence[str]) -> str:
    """The two lines above the rows."""
    columns = ["model", "batch"]
    columns += [f"resident: {name}" for name in names]
    columns += [f"{name} / {names[0]}" for name in names[1:]]
    columns += [f"live: {name}" for name in names]
    return table_head(columns)


def largest(peaks: Mapping[str, Peak], count: int) -> str:
    """The largest tensors at the peak of each mode, a line each."""
    lines = []
    for name, peak in peaks.items():
        for tensor in peak.tensors[:count]:
            node = "/".join(tensor.node.split("/")[-3:])
            lines.append(f"{name}: {tensor.mib:.1f} MiB {tensor.dtype} {node}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = options.new_parser(__doc__, modes=COMPARED)
    parser.add_argument("--batches", nargs="+", type=int, help="the model's own sweep by default")
    parser.add_argument("--rows", type=int, default=0, help="how many tensors to list")
    parser.add_argument("--work", type=json.loads, help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.work:
        print_answer(work(asked.work))
        return 0
    known = modes(asked.precision)
    compared = [known[name] for name in options.names_in(asked.modes)]
    print(head([mode.name for mode in compared]))
    listed = []
    for model in models.names(asked.models):
        benchmark = models.benchmark(model)
        for batch in asked.batches or benchmark.workload(asked.size).batches:
            job = {
                "model": model,
                "size": asked.size,
                "precision": asked.precision,
                "batch": batch,
            }
            peaks = {mode.name: measure(job, mode) for mode in compared}
            print(row(benchmark.title, batch, list(peaks.values())), flush=True)
            listed.append(largest(peaks, asked.rows))
    print(*filter(None, listed), sep="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
