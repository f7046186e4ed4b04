"""Peak memory of training by batch size, and how much larger a batch fits: float32, the Keras
policy, amp_tf.

    python -m benchmarks.memory [--models convnet unet bert] [--batches 8 16 32] [--repeats 3]
    [--json memory.json]
                                [--modes float32,policy,memory] [--cap live]

Every figure is a process of its own that builds the model, notes its resident memory, and makes a
few training steps through Keras' fit without XLA. What counts is the peak of the resident memory in
these steps less the memory before them: variables, slots, activations, gradients and work space,
without TensorFlow itself. It differs from run to run by a tenth, because TensorFlow's allocator
keeps what was given back in blocks of many sizes; so it is the median of some runs, and beside it
stands what was live at the peak of further steps (:mod:`benchmarks.memory_peak`): activations,
gradients and work space alone, nearly the same in each run. The second table takes what float32's
largest batch needs as a cap, by one of these two figures, and looks for the largest batch of each
mode that stays below it: first on the line through the measured points, then by measuring there and
in proportion. By ``--cap resident`` two runs of one batch may decide differently, by ``--cap live``
they hardly do; weights and slots, which the latter leaves out, are as large in every mode. The mode
``memory`` is ``AMP_TF_FOR=memory``. Needs Linux (``/proc/self/clear_refs`` resets the peak).
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import models
from benchmarks.memory_peak import COMPARED, find_peak, record_memory
from benchmarks.step_time import worker
from benchmarks.step_time.modes import WAYS, Mode, environment, modes
from benchmarks.step_time.options import names_in

ROOT = Path(__file__).resolve().parents[1]
STEPS = 3
REFERENCE = "float32"
FIGURES: dict[str, Callable[[Point], float]] = {
    "resident": lambda point: point.mib,
    "live": lambda point: point.live,
}
_TITLES = {"policy": "Keras policy", "memory": "amp_tf for memory"}


@dataclasses.dataclass(frozen=True)
class Point:
    """One model in one mode at one batch size, medians of some processes.

    Attributes:
        mib: MiB of resident memory that the training steps took.
        live: MiB of what was live at the peak of a step, without weights and optimizer slots.
    """

    model: str
    mode: str
    batch: int
    mib: float
    live: float = 0.0


def resident(field: str) -> float:
    """``VmRSS`` (now) or ``VmHWM`` (the peak since it was reset) of this process, in MiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"/proc/self/status has no {field}: this benchmark needs Linux.")


def work(options: dict[str, Any]) -> tuple[float, float]:
    """Trains in this process; the MiB that the training steps took, and those that were live at the
    peak of others.
    """
    worker.set_up(modes(options["precision"])[options["mode"]])
    runner = worker.new_runner(options, WAYS["fit"])
    gc.collect()
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    runner.steps(STEPS)
    taken = resident("VmHWM") - before
    return taken, find_peak(record_memory(lambda: runner.steps(STEPS))).live


def measure(model: str, size: str, precision: str, mode: Mode, batch: int) -> tuple[float, float]:
    """MiB of one process: taken, and live at the peak.

    Raises:
        RuntimeError: the process failed; the message is the end of what it wrote to stderr.
    """
    options = {
        "model": model,
        "size": size,
        "precision": precision,
        "mode": mode.name,
        "batch": batch,
    }
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.memory", "--work", json.dumps(options)],
        env=environment(mode) | {"PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode:
        raise RuntimeError(
            f"{model}, {mode.name}, batch {batch}: exit status "
            f"{ended.returncode}\n{ended.stderr[-2000:]}"
        )
    taken, live = json.loads(ended.stdout.strip().splitlines()[-1])
    return taken, live


def medians(model: str, mode: str, batch: int, runs: Sequence[tuple[float, float]]) -> Point:
    """The point of some processes."""
    taken, live = (statistics.median(values) for values in zip(*runs, strict=True))
    return Point(model, mode, batch, taken, live)


def largest_batch(
    points: Sequence[tuple[int, float]], cap: float, measured: Callable[[int], float]
) -> Point | None:
    """The largest batch whose training takes at most ``cap`` MiB, to a hundredth, as a few
    measurements can tell.

    Args:
        points: batch and MiB, of at least two different batches.
        cap: in MiB.
        measured: gives the MiB of a batch.

    Returns:
        Batch and its measured MiB (model and mode are left empty), ``None`` if even one example
        takes more.
    """
    slope, intercept = statistics.linear_regression([b for b, _ in points], [m for _, m in points])
    batch = int((cap - intercept) / slope) if slope > 0 else max(b for b, _ in points)
    found, too_large = Point("", "", 0, 0.0), batch + max(b for b, _ in points)
    while found.batch + found.batch // 100 < batch < too_large:
        mib = dict(points).get(batch)
        mib = measured(batch) if mib is None else mib
        if mib <= cap:
            found = Point("", "", batch, mib)
        else:
            too_large = batch
        batch = min(int(batch * cap / mib), too_large - max(1, too_large // 100))
    return found if found.batch else None


def memory_table(points: Sequence[Point], names: Sequence[str] = COMPARED) -> list[str]:
    """Markdown: a row for each model and batch, MiB of each mode, the ratio to float32, and what
    was live.

    Args:
        points: what was measured.
        names: the modes, float32 first.
    """
    found = {(p.model, p.batch, p.mode): p for p in points}
    heads = [_TITLES.get(name, name) for name in names]
    columns = [f"{head}, MiB" for head in heads] + [f"{head} / float32" for head in heads[1:]]
    lines = [f"| model | batch | {' | '.join(columns)} | live: {' | '.join(heads)} |"]
    lines.append("|---|" + "---:|" * (len(columns) + len(heads) + 1))
    for model, batch in dict.fromkeys((p.model, p.batch) for p in points):
        own = [found[model, batch, mode] for mode in names]
        cells = [models.BENCHMARKS[model].title, str(batch), *(f"{point.mib:.0f}" for point in own)]
        cells += [f"{point.mib / own[0].mib:.2f}" for point in own[1:]]
        lines.append("| " + " | ".join([*cells, *(f"{point.live:.0f}" for point in own)]) + " |")
    return lines


def batch_table(
    caps: dict[str, Point],
    largest: dict[tuple[str, str], Point | None],
    names: Sequence[str] = COMPARED,
) -> list[str]:
    """Markdown: for each model the cap and the largest batch of each mode, with its measured MiB.

    Args:
        caps: float32 at its largest batch, by model.
        largest: what was found.
        names: the modes, float32 first.
    """
    heads = [_TITLES.get(name, name) for name in names]
    lines = [
        f"| model | cap, MiB | {' | '.join(heads)} | {heads[-1]} / float32 |",
        "|---|" + "---:|" * (len(heads) + 2),
    ]
    for model, cap in caps.items():
        found = [largest[model, mode] for mode in names[1:]]
        cells = [f"{point.batch} ({point.mib:.0f} MiB)" if point else "none" for point in found]
        ratio = f"{found[-1].batch / cap.batch:.2f}" if found[-1] else "–"
        lines.append(
            f"| {models.BENCHMARKS[model].title} | {cap.mib:.0f} | {cap.batch} | "
            f"{' | '.join(cells)} | {ratio} |"
        )
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--models", nargs="+", choices=models.BENCHMARKS, default=["convnet", "unet", "bert"]
    )
    parser.add_argument(
        "--batches", nargs="+", type=int, help="by default those of the model's sweep"
    )
    parser.add_argument("--size", choices=models.SIZES, default="small")
    parser.add_argument(
        "--precision",
        choices=("bfloat16", "float16"),
        default="bfloat16",
        help="of the Keras policy",
    )
    parser.add_argument(
        "--repeats",
        type=int,
        default=1,
        help="processes for each figure, of which the median counts",
    )
    parser.add_argument(
        "--modes", default=",".join(COMPARED), help="comma-separated, float32 first; %(default)s"
    )
    parser.add_argument(
        "--cap", choices=FIGURES, default="resident", help="what the largest batch is held to"
    )
    parser.add_argument("--no-cap", action="store_true", help="leave out the second table")
    parser.add_argument("--json", type=Path, help="a file for the figures")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        print(json.dumps(work(json.loads(arguments.work))))
        return 0
    figure = FIGURES[arguments.cap]
    compared = {name: modes(arguments.precision)[name] for name in names_in(arguments.modes)}
    points: list[Point] = []
    caps: dict[str, Point] = {}
    largest: dict[tuple[str, str], Point | None] = {}
    for model in arguments.models:

        def of(mode: Mode, batch: int, model: str = model) -> Point:
            job = (model, arguments.size, arguments.precision, mode, batch)
            point = medians(
                model, mode.name, batch, [measure(*job) for _ in range(arguments.repeats)]
            )
            print(
                f"{model}, {mode.name}, batch {batch}: {point.mib:.0f} MiB, {point.live:.0f} live",
                file=sys.stderr,
                flush=True,
            )
            return point

        batches = sorted(
            arguments.batches or models.BENCHMARKS[model].workload(arguments.size).batches
        )
        own = [of(mode, batch) for batch in batches for mode in compared.values()]
        points += own
        cap = next(p for p in own if p.mode == REFERENCE and p.batch == batches[-1])
        caps[model] = dataclasses.replace(cap, mib=figure(cap))
        for name, mode in compared.items():
            if name != REFERENCE and not arguments.no_cap and len(batches) > 1:
                line = [(p.batch, figure(p)) for p in own if p.mode == name]
                largest[model, name] = largest_batch(
                    line, caps[model].mib, lambda batch, mode=mode, of=of: figure(of(mode, batch))
                )
    print("\n".join(memory_table(points, [*compared])))
    if largest:
        print("\n" + "\n".join(batch_table(caps, largest, [*compared])))
    if arguments.json:
        rows = [dataclasses.asdict(point) for point in points]
        best = [
            {"model": m, "mode": n, **({"batch": p.batch, "mib": p.mib} if p else {})}
            for (m, n), p in largest.items()
        ]
        arguments.json.write_text(json.dumps({"points": rows, "largest": best}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
