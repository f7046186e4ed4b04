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
import itertools
import json
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.models import names, wide
from benchmarks.results import machine, print_facts, table_head, table_row
from benchmarks.step_time import options, profile, results
from benchmarks.step_time.modes import WAYS, environment, modes
from benchmarks.step_time.suite import Row, Settings, answer_of, print_answer
from benchmarks.step_time.tables import (
    REFERENCE,
    SUBJECT,
    by_key,
    geometric_mean,
    speedups,
    standard_error,
)

_NS = 1e6  # in a millisecond
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

    def __add__(self, other: Saved) -> Saved:
        return Saved(
            self.products + other.products, self.others + other.others, self.casts + other.casts
        )


def saved_ms(report: Any) -> Saved:
    """The time that the cost model expects a step to save, over all graphs of a report.

    A step may run several graphs, as those of a recurrent layer of tf_keras; one that was traced or
    rewritten several times counts once.
    """
    from amp_tf.reporting.figures import elements_of, times_before_and_now

    saved: dict[tuple[int, int], Saved] = {}
    for graph in report.graphs:
        if graph.basis is None or graph.is_revisit:
            continue
        before, now = times_before_and_now(graph.basis, graph.figures, graph.is_f16)
        gained = (before - now) / _NS
        is_product = graph.figures.is_product
        casts = 0.0
        for cast in graph.basis.casts:
            elements = elements_of(graph.basis, cast.node, cast.port) or 0
            times = graph.basis.resolution.costs.of_casts(elements)
            casts += times[cast.to_f16] * float(graph.figures.runs[cast.node])
        products = float(gained[is_product].sum())
        others = float(gained[~is_product].sum())
        key = (graph.view.node_count, int(graph.is_f16.sum()))
        saved[key] = Saved(products, others, casts / _NS)
    total = Saved(0.0, 0.0, 0.0)
    for one in saved.values():
        total += one
    return total


def work(job: dict[str, Any]) -> Saved:
    """Runs two steps of one model; returns what the cost model expects to be saved."""
    from benchmarks.step_time.worker import new_runner, set_up

    set_up(modes(PRECISION)[SUBJECT])
    from amp_tf.reporting import reports

    new_runner(job, WAYS[job["way"]]).steps(2)
    return saved_ms(reports.of_process())


def expect(model: str, way: str) -> Saved:
    """Asks the cost model, in a process of its own, for the time that a step saves.

    Raises:
        RuntimeError: the process failed; the message is the end of what it wrote.
    """
    job = {
        "model": model,
        "way": way,
        "mode": SUBJECT,
        "precision": PRECISION,
        "size": "small",
        "batch": None,
    }
    env = environment(modes(PRECISION)[SUBJECT])
    with tempfile.TemporaryDirectory() as folder:
        # A rewrite keeps the basis of the figures where a report is asked for.
        env["AMP_TF_REPORT"] = f"{folder}/report.json"
        return Saved(**answer_of("benchmarks.step_time.forecast", job, env))


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
    rows = {}
    op_ms = {}
    for mode, found in profiles.items():
        rows[mode] = found.row
        op_ms[mode] = _by_class(found.ops)
    return compare(model, way, rows, op_ms)


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
    step_ms = {REFERENCE: statistics.median(reference.ms), SUBJECT: statistics.median(ours.ms)}
    measured = geometric_mean(speedups(ours, reference))
    error = standard_error(ours, reference)
    return Found(model, way, expect(model, way), step_ms, measured, error, op_ms)


def _by_class(ops: Mapping[str, profile.Figure]) -> dict[str, float]:
    from amp_tf.oplists import table as op_table

    found = dict.fromkeys(CLASSES, 0.0)
    for kernel, figure in ops.items():
        # oneDNN's kernels have names of their own.
        op = kernel.replace("_MklNative", "_").replace("_Mkl", "_")
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
    for kind in CLASSES:
        head.append(f"op ms: {kind}")
    head.append("of the limit")
    lines = [table_head(head, texts=3)]
    off = 0
    noisy = []
    for row in rows:
        half = wide.half(row.model) if row.model in wide.MODELS else "–"
        cells = [row.model, row.way, half, f"{row.forecast:.2f}"]
        cells += [f"{row.gain:.2f} ± {row.gain * row.error:.2f}", f"{row.gain / row.forecast:.2f}"]
        lines.append(table_row([*cells, *_op_cells(row)]))
        if abs(row.gain / row.forecast - 1) > OFF:
            off += 1
        if row.error > 0.03:
            noisy.append(f"{row.model} {row.way}")
    lines += ["", f"forecasts off by more than {OFF:.0%}: {off} of {len(rows)}"]
    lines.append(f"standard error above 3 %: {', '.join(noisy) or 'none'}")
    return "\n".join(lines)


def _op_cells(row: Found) -> list[str]:
    """The op times in each class before and now, and the share of the limit."""
    if not row.op_ms:
        return ["–"] * (len(CLASSES) + 1)
    cells = []
    for kind in CLASSES:
        before = row.op_ms[REFERENCE][kind]
        now = row.op_ms[SUBJECT][kind]
        cells.append(f"{before:.1f} → {now:.1f}")
    return [*cells, f"{row.of_the_limit:.2f}"]


def read(path: Path) -> tuple[dict[str, Any], list[Found]]:
    """Reads the facts of the machine and the rows of a file of ``--json``."""
    written = json.loads(path.read_text())
    found = []
    for row in written["rows"]:
        row["saved"] = Saved(**row["saved"])
        found.append(Found(**row))
    return written["machine"], found


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
    parser.add_argument("--work", type=json.loads, help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.work:
        print_answer(work(asked.work))
        return 0
    if asked.read:
        facts, rows = read(asked.read)
    else:
        facts, rows = _measure_all(asked)
    print_facts(facts)
    print(table(rows))
    return 0


def _measure_all(asked: argparse.Namespace) -> tuple[dict[str, Any], list[Found]]:
    facts = machine("python -m benchmarks.step_time.forecast")
    rows: list[Found] = []
    if asked.json and asked.json.exists():
        facts, rows = read(asked.json)
    settings = Settings(asked.size, PRECISION, asked.turns, asked.seconds, error=asked.error)
    # The rounds of each job, where they are not to be measured anew.
    jobs: dict[tuple[str, str], Mapping[str, Row]] = {}
    if asked.measured:
        for (model, way, _), by_mode in by_key(results.read(asked.measured).rows).items():
            jobs.setdefault((model, way), by_mode)
    else:
        for job in itertools.product(names(asked.models), options.names_in(asked.ways)):
            jobs[job] = {}
    known = {(row.model, row.way) for row in rows}
    for (model, way), rounds in jobs.items():
        if (model, way) in known:
            continue
        if rounds:
            rows.append(compare(model, way, rounds, {}))
        else:
            rows.append(measure(model, way, settings))
        print(f"{model}, {way}: done", file=sys.stderr, flush=True)
        if asked.json:
            written = {"machine": facts, "rows": [dataclasses.asdict(row) for row in rows]}
            asked.json.write_text(json.dumps(written, indent=1))
    return facts, rows


if __name__ == "__main__":
    sys.exit(main())
