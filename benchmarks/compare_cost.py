"""What a comparison costs beside a training step: time and memory, in one run.

    python -m benchmarks.compare_cost resnet50,bert,gnmt [--size small] [--precision bfloat16]
    [--batch N]

Two processes a model, one after the other: one trains some steps in float32 as ``fit`` does (Keras'
own train function, without XLA), the other trains one step, compares eight batches, and times
training steps after that, with which its times are compared. *A batch* is one in float32 and in 16
bit with the reductions, the median; *judging* is the yardstick's runs, for all batches; *nodes* is
the look at single nodes, which is done for one batch; *all* is from the call to the answer. The
last three are mostly TensorFlow's preparation of graphs, and do not grow with the batches. Memory
is the most that was resident, of the whole process, before the look at nodes and in the end.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.models import BENCHMARKS, SIZES, names

STEPS, BATCHES = 7, 8
_MIB = 1024  # of the KiB that the kernel tells


def peak_mib() -> float:
    """The most memory that this process has had resident, in MiB."""
    status = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in status if line.startswith("VmHWM")).split()[1]) / _MIB


def work(job: dict[str, Any]) -> dict[str, Any]:
    import keras

    workload = BENCHMARKS[job["model"]].workload(job["size"])
    keras.utils.set_random_seed(0)
    model = workload.model()
    model.compile(workload.optimizer(), workload.loss, jit_compile=False)
    size = job["batch"] or workload.batch
    x, y = workload.data(size * BATCHES, 0)
    batches = [
        (_rows(x, number, size), y[number * size : (number + 1) * size])
        for number in range(BATCHES)
    ]
    model.train_on_batch(*batches[0])
    return _compare(model, batches, job["precision"]) if job["compares"] else _train(model, batches)


def _rows(x: Any, number: int, size: int) -> Any:
    rows = slice(number * size, (number + 1) * size)
    return tuple(part[rows] for part in x) if isinstance(x, tuple) else x[rows]


def _train(model: Any, batches: Sequence[Any]) -> dict[str, Any]:
    return {"step_s": _step_s(model, batches), "peak_mib": peak_mib()}


def _step_s(model: Any, batches: Sequence[Any]) -> float:
    times = []
    for number in range(STEPS):
        begin = time.perf_counter()
        model.train_on_batch(*batches[number % BATCHES])
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def _compare(model: Any, batches: Sequence[Any], precision: str) -> dict[str, Any]:
    import amp_tf

    told: list[tuple[float, str, float]] = []

    def tell(text: str) -> None:
        told.append((time.perf_counter(), text, peak_mib()))

    found = amp_tf.compare(
        model, batches, amp_tf.AmpConfig(precision=precision, target="cpu"), progress=tell
    )
    lasted = [(text, after - at) for (at, text, _), (after, _, _) in itertools.pairwise(told)]
    main = f"float32 and {precision}: batch"
    judging = ("float32, disturbed", "float32 once more", "products alone")
    return {
        "step_s": _step_s(model, batches),
        "batch_s": statistics.median(
            [seconds for text, seconds in lasted if text.startswith(main)][1:]
        ),
        "judging_s": sum(seconds for text, seconds in lasted if text.startswith(judging)),
        "nodes_s": sum(seconds for text, seconds in lasted if text.startswith("looking")),
        "all_s": told[-1][0] - told[0][0],
        "outputs_mib": next(
            (peak for _, text, peak in told if text.startswith("looking")), told[-1][2]
        ),
        "peak_mib": told[-1][2],
        "is_healthy": found.is_healthy,
        "ratio": max(output.ratio for output in found.outputs),
    }


def measure(job: dict[str, Any]) -> dict[str, Any]:
    """What one process says.

    Raises:
        RuntimeError: it failed; the message is the end of what it wrote to stderr.
    """
    command = [sys.executable, "-m", "benchmarks.compare_cost", "--work", json.dumps(job)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-1500:])
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def row(model: str, trained: dict[str, Any], compared: dict[str, Any]) -> str:
    """A row of the table: times in steps, memory as a multiple of the training's."""
    steps = [
        compared[name] / compared["step_s"] for name in ("batch_s", "judging_s", "nodes_s", "all_s")
    ]
    memory = [compared[name] / trained["peak_mib"] for name in ("outputs_mib", "peak_mib")]
    cells = [
        f"{1e3 * compared['step_s']:.0f} ms",
        *(f"{value:.1f}" for value in steps),
        f"{trained['peak_mib']:.0f} MiB",
        *(f"{value:.2f}" for value in memory),
        f"{'yes' if compared['is_healthy'] else 'no'}, {compared['ratio']:.1f}",
    ]
    return " | ".join(["", model, *cells, ""]).strip()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("models", nargs="?", default="resnet50,bert,gnmt")
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--precision", default="bfloat16")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.work:
        print("\n" + json.dumps(work(json.loads(asked.work))), flush=True)
        return 0
    print(
        "| model | a step | a batch | judging | nodes | all | its memory | outputs | with nodes | "
        "healthy, ratio |"
    )
    print("|---" * 10 + "|")
    for model in names(asked.models):
        job = {
            "model": model,
            "size": asked.size,
            "batch": asked.batch,
            "precision": asked.precision,
        }
        trained, compared = (measure({**job, "compares": compares}) for compares in (False, True))
        print(row(BENCHMARKS[model].title, trained, compared), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
