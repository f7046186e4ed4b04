"""Measures the time and memory of a comparison beside those of a training step, in one run.

    python -m benchmarks.compare_cost resnet50,bert,gnmt [--size small] [--precision bfloat16]
    [--batch N]

Two processes a model, one after the other: one trains some steps in float32 as ``fit`` does (Keras'
own train function, without XLA), the other trains one step, compares eight batches, and times
training steps after that, with which its times are compared:

- *a batch*: the median batch, in float32 and in 16 bit with the reductions.
- *judging*: the yardstick's runs, for all batches.
- *nodes*: the look at single nodes, which is done for one batch.
- *all*: from the call to the answer.

The last three are mostly TensorFlow's preparation of graphs, and do not grow with the batches.
Memory is the most that was resident, of the whole process, before the look at nodes and in the end.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.memory import resident
from benchmarks.models import BENCHMARKS, SIZES, names
from benchmarks.results import table_head, table_row
from benchmarks.step_time.suite import answer_of, print_answer

STEPS = 7
BATCHES = 8
JUDGING = ("float32, disturbed", "float32 once more", "products alone")
COLUMNS = (
    "model",
    "a step",
    "a batch",
    "judging",
    "nodes",
    "all",
    "its memory",
    "outputs",
    "with nodes",
    "healthy, ratio",
)


@dataclasses.dataclass(frozen=True)
class Cost:
    """The seconds and the MiB of resident memory that one process took.

    All but the first two are of a comparison alone.
    """

    step_s: float
    peak_mib: float
    batch_s: float = 0.0
    judging_s: float = 0.0
    nodes_s: float = 0.0
    all_s: float = 0.0
    outputs_mib: float = 0.0
    is_healthy: bool = True
    ratio: float = 0.0


def work(job: dict[str, Any]) -> Cost:
    """Trains in this process, and compares if the job says so."""
    import keras

    workload = BENCHMARKS[job["model"]].workload(job["size"])
    keras.utils.set_random_seed(0)
    model = workload.model()
    model.compile(workload.optimizer(), workload.loss, jit_compile=False)
    size = job["batch"] or workload.batch
    x, y = workload.data(size * BATCHES, 0)
    batches = []
    for number in range(BATCHES):
        rows = slice(number * size, (number + 1) * size)
        given = tuple(part[rows] for part in x) if isinstance(x, tuple) else x[rows]
        batches.append((given, y[rows]))
    model.train_on_batch(*batches[0])
    if job["compares"]:
        return _compare(model, batches, job["precision"])
    return Cost(_step_s(model, batches), resident("VmHWM"))


def _step_s(model: Any, batches: Sequence[Any]) -> float:
    """The median time of a training step."""
    times = []
    for number in range(STEPS):
        x, y = batches[number % BATCHES]
        begin = time.perf_counter()
        model.train_on_batch(x, y)
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def _compare(model: Any, batches: Sequence[Any], precision: str) -> Cost:
    import amp_tf

    told: list[tuple[float, str, float]] = []

    def tell(text: str) -> None:
        told.append((time.perf_counter(), text, resident("VmHWM")))

    config = amp_tf.AmpConfig(precision=precision, target="cpu")
    found = amp_tf.compare(model, batches, config, progress=tell)
    begin, *_ = told[0]
    end, _, peak = told[-1]
    # The beginning of a text tells which part it is of.
    outputs_mib = peak
    batch_s = []
    judging_s = 0.0
    nodes_s = 0.0
    for (at, text, mib), (after, _, _) in itertools.pairwise(told):
        if text.startswith(f"float32 and {precision}: batch"):
            batch_s.append(after - at)
        elif text.startswith(JUDGING):
            judging_s += after - at
        elif text.startswith("looking"):
            nodes_s += after - at
            outputs_mib = min(outputs_mib, mib)
    return Cost(
        step_s=_step_s(model, batches),
        peak_mib=peak,
        batch_s=statistics.median(batch_s[1:]),
        judging_s=judging_s,
        nodes_s=nodes_s,
        all_s=end - begin,
        outputs_mib=outputs_mib,
        is_healthy=found.is_healthy,
        ratio=max(output.ratio for output in found.outputs),
    )


def row(model: str, trained: Cost, compared: Cost) -> str:
    """A row of the table: times in steps, memory as a multiple of the training's."""
    cells = [model, f"{1e3 * compared.step_s:.0f} ms"]
    for seconds in (compared.batch_s, compared.judging_s, compared.nodes_s, compared.all_s):
        cells.append(f"{seconds / compared.step_s:.1f}")
    cells.append(f"{trained.peak_mib:.0f} MiB")
    for mib in (compared.outputs_mib, compared.peak_mib):
        cells.append(f"{mib / trained.peak_mib:.2f}")
    cells.append(f"{'yes' if compared.is_healthy else 'no'}, {compared.ratio:.1f}")
    return table_row(cells)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("models", nargs="?", default="resnet50,bert,gnmt")
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--precision", default="bfloat16")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--work", type=json.loads, help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.work:
        print_answer(work(asked.work))
        return 0
    print(table_head(COLUMNS))
    for model in names(asked.models):
        job = {
            "model": model,
            "size": asked.size,
            "batch": asked.batch,
            "precision": asked.precision,
        }
        costs = []
        for compares in (False, True):
            answer = answer_of("benchmarks.compare_cost", {**job, "compares": compares})
            costs.append(Cost(**answer))
        print(row(BENCHMARKS[model].title, *costs), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
