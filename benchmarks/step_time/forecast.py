"""The cost model's forecast beside the clock, and beside the limit.

    python -m benchmarks.step_time.forecast choosing --json forecast.json   measures, keeps figures
    python -m benchmarks.step_time.forecast --measured FILE                 of step_time --json FILE
    python -m benchmarks.step_time.forecast --read forecast.json            shows the table again

For each model and way, float32 and amp_tf take turns, a process each: first under TensorFlow's
profiler, then by the clock, until the standard error of the gain is below ``--error``. A process of
its own asks the cost model what it expects a step to save.

- *measured*: the geometric mean over the rounds of float32's step time by amp_tf's, ± its standard
  error.
- *forecast*: ``(step + saved / 2) / (step - saved / 2)``; ``step`` is the mean of both modes'
  median steps, so that a row in which float32 was slow by chance is not measured higher and
  expected lower.
- *op ms*: ms of a step in products, casts and all other kernels, by the profiler.
- *of the limit*: the share of amp_tf's op time that is no cast. If casts were free, a step would
  reach 1.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.models import GROUPS, names
from benchmarks.results import machine
from benchmarks.step_time import options, profile, results
from benchmarks.step_time.modes import WAYS, environment, modes
from benchmarks.step_time.suite import Row, Settings
from benchmarks.step_time.tables import (
    REFERENCE,
    SUBJECT,
    by_key,
    geometric_mean,
    speedups,
    standard_error,
)

MARK = "saved:"
PRECISION = "bfloat16"
CLASSES = ("products", "casts", "other ops")
OFF = 0.15  #: a forecast that is further from the clock than this is looked into


@dataclasses.dataclass(frozen=True)
class Saved:
    """Milliseconds that the cost model expects products and other ops of a step to be shorter, and
    casts to take.
    """

    products: float
    others: float
    casts: float

    @property
    def total(self) -> float:
        return self.products + self.others - self.casts


def saved_ms(report: Any) -> Saved:
    """The time that the cost model expects a step to save, over all graphs of a report.

    A step may run several graphs, as those of a recurrent layer of tf_keras; one that was traced or
    rewritten several times counts once.
    """
    from amp_tf.reporting.figures import GraphFigures, elements_of, times_before_and_now

    saved: dict[tuple[int, int], tuple[float, float, float]] = {}
    for graph in report.graphs:
        if graph.basis is None or graph.is_revisit:
            continue
        found = GraphFigures(graph)
        before, now = times_before_and_now(found.basis, found.figures, found.is_f16)
        is_product = found.figures.is_product
        casts = 0.0
        for cast in found.basis.casts:
            times = found.basis.resolution.costs.of_casts(
                elements_of(found.basis, cast.node, cast.port) or 0
            )
            casts += times[cast.to_f16] * float(found.figures.runs[cast.node])
        parts = (
            float((before - now)[is_product].sum()),
            float((before - now)[~is_product].sum()),
            casts,
        )
        saved[found.view.node_count, int(found.is_f16.sum())] = parts
    products, others, casts = (
        (sum(parts) / 1e6 for parts in zip(*saved.values(), strict=True)) if saved else (0.0,) * 3
    )
    return Saved(products, others, casts)


def worker(job: dict[str, Any]) -> None:
    """Runs two steps of one model and prints what the cost model expects to be saved."""
    from benchmarks.step_time.worker import new_runner, set_up

    set_up(modes(job["precision"])[job["mode"]])
    from amp_tf.reporting import reports

    new_runner(job, WAYS[job["way"]]).steps(2)
    print(MARK + json.dumps(dataclasses.asdict(saved_ms(reports.of_process()))), flush=True)


def expect(model: str, way: str) -> Saved:
    """Asks the cost model, in a process of its own, for the time that a step saves.

    Raises:
        RuntimeError: the process failed; the message is the end of what it wrote.
    """
    job = {
        "model": model,
        "way": way,
        "mode": SUBJECT,
        "precision": "bfloat16",
        "size": "small",
        "batch": None,
    }
    command = [sys.executable, "-m", "benchmarks.step_time.forecast", "--worker", json.dumps(job)]
    mode = modes("bfloat16")[SUBJECT]
    with (
        tempfile.TemporaryDirectory() as folder
    ):  # what a report is asked for keeps what the figures are found from
        env = {**environment(mode), "AMP_TF_REPORT": f"{folder}/report.json"}
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    if not lines:
        raise RuntimeError(done.stderr[-1500:])
    return Saved(**json.loads(lines[0][len(MARK) :]))


def gain(float32_ms: float, saved: float) -> float:
    """How many times faster a step becomes; what would save nearly all of it counts as twenty
    times.
    """
    return 1 / max(0.05, 1 - saved / float32_ms)


@dataclasses.dataclass(frozen=True)
class Found:
    """One model in one way: what was expected and what was measured.

    Attributes:
        model, way: what ran.
        saved: what the cost model expects, in ms a step.
        step_ms: the median step of each mode.
        gain, error: float32's step time by amp_tf's, and its standard error relative to it.
        op_ms: of each mode, ms a step in the kernels of each of :data:`CLASSES`; empty where
            nothing was profiled.
    """

    model: str
    way: str
    saved: Saved
    step_ms: Mapping[str, float]
    gain: float
    error: float
    op_ms: Mapping[str, Mapping[str, float]]

    @property
    def forecast(self) -> float:
        """The gain that the cost model expects."""
        step = statistics.fmean(self.step_ms.values())
        return gain(step + self.saved.total / 2, self.saved.total)

    @property
    def of_the_limit(self) -> float:
        """The share of amp_tf's op time that is no cast; 0 where nothing was profiled."""
        times = self.op_ms.get(SUBJECT, {})
        if not times:
            return 0.0
        return 1 - times["casts"] / sum(times.values())


def measure(model: str, way: str, settings: Settings) -> Found:
    """Measures one model in one way.

    Raises:
        RuntimeError: a process failed; the message is the end of what it wrote.
    """
    known = modes(PRECISION)
    profiles = profile.measure(model, way, None, [known[REFERENCE], known[SUBJECT]], settings)
    op_ms = {mode: _by_class(found.ops) for mode, found in profiles.items()}
    return compare(model, way, {mode: found.row for mode, found in profiles.items()}, op_ms)


def compare(
    model: str, way: str, rows: Mapping[str, Row], op_ms: Mapping[str, Mapping[str, float]]
) -> Found:
    """Asks the cost model about a model that was measured.

    Args:
        model, way: what ran.
        rows: the rounds of float32 and of amp_tf.
        op_ms: see :class:`Found`.
    """
    ours = rows[SUBJECT]
    reference = rows[REFERENCE]
    return Found(
        model,
        way,
        expect(model, way),
        {mode: statistics.median(rows[mode].ms) for mode in (REFERENCE, SUBJECT)},
        geometric_mean(speedups(ours, reference)),
        standard_error(ours, reference),
        op_ms,
    )


def _by_class(ops: Mapping[str, profile.Figure]) -> dict[str, float]:
    from amp_tf.oplists import table as op_table

    found = dict.fromkeys(CLASSES, 0.0)
    for kernel, figure in ops.items():
        op = kernel.replace("_MklNative", "_").replace(
            "_Mkl", "_"
        )  # TensorFlow's names of oneDNN's kernels
        if {op, op.removeprefix("_")} & op_table.PRODUCTS:
            found["products"] += figure.ms
        elif op in op_table.CASTS:
            found["casts"] += figure.ms
        else:
            found["other ops"] += figure.ms
    return found


def table(rows: Sequence[Found]) -> str:
    """One line for each model and way, and the number of forecasts that are off by over 15 %."""
    head = ["model", "way", "half", "forecast", "measured", "measured / forecast"]
    head += [f"op ms: {kind}" for kind in CLASSES]
    lines = ["| " + " | ".join([*head, "of the limit"]) + " |", "|---|---|---|" + "---:|" * 7]
    off = 0
    noisy = []
    for row in rows:
        half = next((half for half in ("choosing", "judging") if row.model in GROUPS[half]), "–")
        cells = [row.model, row.way, half, f"{row.forecast:.2f}"]
        cells += [f"{row.gain:.2f} ± {row.gain * row.error:.2f}", f"{row.gain / row.forecast:.2f}"]
        for kind in CLASSES:
            if row.op_ms:
                before = row.op_ms[REFERENCE][kind]
                cells.append(f"{before:.1f} → {row.op_ms[SUBJECT][kind]:.1f}")
            else:
                cells.append("–")
        cells.append(f"{row.of_the_limit:.2f}" if row.op_ms else "–")
        lines.append("| " + " | ".join(cells) + " |")
        off += abs(row.gain / row.forecast - 1) > OFF
        if row.error > 0.03:
            noisy.append(f"{row.model} {row.way}")
    lines += ["", f"forecasts off by more than {OFF:.0%}: {off} of {len(rows)}"]
    lines.append(f"standard error above 3 %: {', '.join(noisy) or 'none'}")
    return "\n".join(lines)


def read(path: Path) -> tuple[dict[str, Any], list[Found]]:
    """Reads the facts of the machine and the rows of a file of ``--json``."""
    written = json.loads(path.read_text())
    return written["machine"], [
        Found(**{**row, "saved": Saved(**row["saved"])}) for row in written["rows"]
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = options.new_parser(__doc__, modes=())
    options.add_ways(parser, "fit,predict")
    options.add_turns(parser)
    parser.add_argument(
        "--error", type=float, default=0.03, help="standard error to reach; %(default)s by default"
    )
    parser.add_argument(
        "--json", type=Path, help="keep the figures here; what it has already is not measured again"
    )
    parser.add_argument(
        "--measured",
        type=Path,
        metavar="JSON",
        help="rounds of step_time --json, not measured anew",
    )
    parser.add_argument(
        "--read", type=Path, metavar="JSON", help="show these figures, measure nothing"
    )
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.worker:
        worker(json.loads(asked.worker))
        return 0
    facts, rows = read(asked.read) if asked.read else _measure_all(asked)
    print(*(f"{key}: {value}" for key, value in facts.items()), "", table(rows), sep="\n")
    return 0


def _measure_all(asked: argparse.Namespace) -> tuple[dict[str, Any], list[Found]]:
    facts = machine("python -m benchmarks.step_time.forecast")
    rows: list[Found] = []
    if asked.json and asked.json.exists():
        facts, rows = read(asked.json)
    settings = Settings(asked.size, PRECISION, asked.turns, asked.seconds, error=asked.error)
    measured = by_key(results.read(asked.measured).rows) if asked.measured else {}
    ways = options.names_in(asked.ways)
    jobs = [key[:2] for key in measured] or [
        (model, way) for model in names(asked.models) for way in ways
    ]
    known = {(row.model, row.way) for row in rows}
    for model, way in jobs:
        if (model, way) in known:
            continue
        found = [by_mode for key, by_mode in measured.items() if key[:2] == (model, way)]
        rows.append(compare(model, way, found[0], {}) if found else measure(model, way, settings))
        print(f"{model}, {way}: done", file=sys.stderr, flush=True)
        if asked.json:
            written = {"machine": facts, "rows": [dataclasses.asdict(row) for row in rows]}
            asked.json.write_text(json.dumps(written, indent=1))
    return facts, rows


if __name__ == "__main__":
    sys.exit(main())
