"""What the cost model expects of each model's step beside what was measured: correlation, and where it is furthest off.

    python -m benchmarks.step_time.forecast wide.json [--json forecast.json]

Takes the figures of ``python -m benchmarks.step_time --json wide.json``. For each model and way it runs two steps under
amp_tf in a process of its own and asks the cost model, for every graph that was rewritten, what the converted nodes
take in both types and what the casts take. The gain that it expects comes from the time saved and the length of a step:
``(step + saved / 2) / (step - saved / 2)``, where the step is the mean of float32's and amp_tf's medians; measured is
the ratio of these medians, as in the suite's tables. With float32's step alone, ``1 / (1 - saved / float32)``, a row in
which float32 was slow by chance would have a higher measured gain and a lower expected one; the correlation that this
gives is printed, too.

What was measured is noisy, so that a forecast without error would not reach 1: how near it would come follows from how
the first half of the rounds agrees with the second (Spearman and Brown's formula, and the square root, as the
correlation of a noisy measure with what it measures). Two files that measured the same, an hour apart, say it best.

Last comes by how much the model is off in each part: the factors of what it expects products and other ops to save, and
casts to take, with which it would come nearest to the shares of a step that the choosing half saved (least squares).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.models import GROUPS
from benchmarks.step_time import results
from benchmarks.step_time.modes import WAYS, environment, modes
from benchmarks.step_time.suite import Row
from benchmarks.step_time.tables import REFERENCE, SUBJECT, by_key, median_ratio

MARK = "saved:"
LEAST_ROWS = 3  #: two points always correlate


@dataclasses.dataclass(frozen=True)
class Saved:
    """Milliseconds that the cost model expects products and other ops of a step to be shorter, and casts to take."""

    products: float
    others: float
    casts: float

    @property
    def total(self) -> float:
        return self.products + self.others - self.casts


def saved_ms(report: Any) -> Saved:
    """What the cost model expects to be saved in a step, over all graphs of a report with its basis.

    A step may run several graphs, as those of a recurrent layer of tf_keras; one that was traced or rewritten several
    times counts once.
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
            times = found.basis.resolution.costs.of_casts(elements_of(found.basis, cast.node, cast.port) or 0)
            casts += times[cast.to_f16] * float(found.figures.runs[cast.node])
        parts = float((before - now)[is_product].sum()), float((before - now)[~is_product].sum()), casts
        saved[found.view.node_count, int(found.is_f16.sum())] = parts
    products, others, casts = (sum(parts) / 1e6 for parts in zip(*saved.values(), strict=True)) if saved else (0.0,) * 3
    return Saved(products, others, casts)


def worker(job: dict[str, Any]) -> None:
    """Runs two steps of one model and prints what the cost model expects to be saved."""
    from benchmarks.step_time.worker import new_runner, set_up

    set_up(modes(job["precision"])[job["mode"]])
    from amp_tf.reporting import reports

    new_runner(job, WAYS[job["way"]]).steps(2)
    print(MARK + json.dumps(dataclasses.asdict(saved_ms(reports.of_process()))), flush=True)


def expect(model: str, way: str) -> Saved:
    """What the cost model expects to be saved, from a process of its own.

    Raises:
        RuntimeError: the process failed; the message is the end of what it wrote.
    """
    job = {"model": model, "way": way, "mode": SUBJECT, "precision": "bfloat16", "size": "small", "batch": None}
    command = [sys.executable, "-m", "benchmarks.step_time.forecast", "--worker", json.dumps(job)]
    mode = modes("bfloat16")[SUBJECT]
    with tempfile.TemporaryDirectory() as folder:  # what a report is asked for keeps what the figures are found from
        env = {**environment(mode), "AMP_TF_REPORT": f"{folder}/report.json"}
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    if not lines:
        raise RuntimeError(done.stderr[-1500:])
    return Saved(**json.loads(lines[0][len(MARK) :]))


def gain(float32_ms: float, saved: float) -> float:
    """How many times faster a step becomes; what would save nearly all of it counts as twenty times."""
    return 1 / max(0.05, 1 - saved / float32_ms)


def expected_gain(by_mode: Mapping[str, Row], saved: float) -> float:
    """The gain where both modes' steps together tell how long float32's is.

    Args:
        by_mode: float32's and amp_tf's rows.
        saved: milliseconds of a step.
    """
    step = statistics.fmean(statistics.median(by_mode[mode].ms) for mode in (REFERENCE, SUBJECT))
    return gain(step + saved / 2, saved)


def summary(rows: Sequence[tuple[str, str, float, float]], worst: int = 10) -> str:
    """The correlation of the logarithms, and the rows that are furthest off.

    Args:
        rows: model, way, expected gain, measured gain.
        worst: how many of them.
    """
    lines = ["| model | way | half | expected | measured | measured / expected |", "|---|---|---|---:|---:|---:|"]
    furthest = sorted(rows, key=lambda row: -abs(math.log(row[3] / row[2])))
    for model, way, expected, measured in furthest[:worst]:
        half = next((half for half in ("choosing", "judging") if model in GROUPS[half]), "–")
        lines.append(f"| {model} | {way} | {half} | {expected:.2f} | {measured:.2f} | {measured / expected:.2f} |")
    for title, names in (("all", None), *((half, GROUPS[half]) for half in ("choosing", "judging"))):
        logs = [(math.log(row[2]), math.log(row[3])) for row in rows if names is None or row[0] in names]
        if len({first for first, _ in logs}) >= LEAST_ROWS:
            lines.append(
                f"\ncorrelation, {title}: {statistics.correlation(*zip(*logs, strict=True)):.3f} of {len(logs)}"
            )
    return "\n".join(lines)


def reachable(rows: Sequence[Mapping[str, Row]]) -> float:
    """How a forecast without error would correlate with what was measured, logarithms of gains.

    Args:
        rows: of each model and way, the modes by name, each with two rounds at least.
    """
    halves = []
    for by_mode in rows:
        middle = len(by_mode[SUBJECT].ms) // 2
        parts = [
            {mode: dataclasses.replace(row, ms=row.ms[part]) for mode, row in by_mode.items()}
            for part in (slice(middle), slice(middle, None))
        ]
        halves.append([math.log(median_ratio(part[SUBJECT], part[REFERENCE])) for part in parts])
    agreement = max(0.0, statistics.correlation(*zip(*halves, strict=True)))
    return math.sqrt(2 * agreement / (1 + agreement))


def off_by(rows: Sequence[tuple[Saved, float, float]]) -> tuple[float, ...]:
    """The factors for products, other ops and casts that come nearest to what was saved.

    Args:
        rows: what is expected, float32's milliseconds of a step, and the measured gain.
    """
    shares = np.array([(saved.products, saved.others, -saved.casts) for saved, _, _ in rows])
    steps = np.array([ms for _, ms, _ in rows])
    measured = np.array([1 - 1 / gain for _, _, gain in rows])
    found, *_ = np.linalg.lstsq(shares / steps[:, None], measured, rcond=None)
    return tuple(map(float, found))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measured", nargs="*", type=Path, help="files of python -m benchmarks.step_time --json")
    parser.add_argument("--json", type=Path, help="keep what is expected here; what it has already is not asked again")
    parser.add_argument("--at-once", type=int, default=1, help="models that are asked at a time")
    parser.add_argument("--worst", type=int, default=10)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.worker:
        worker(json.loads(asked.worker))
        return 0
    known = json.loads(asked.json.read_text()) if asked.json and asked.json.exists() else {}
    measured_rows = {
        key: by for key, by in by_key(results.read(asked.measured, [REFERENCE, SUBJECT]).rows).items() if SUBJECT in by
    }
    unknown = [(model, way) for model, way, _ in measured_rows if f"{model} {way}" not in known]
    with ThreadPoolExecutor(asked.at_once) as pool:
        for (model, way), saved in zip(unknown, pool.map(lambda pair: expect(*pair), unknown), strict=True):
            known[f"{model} {way}"] = dataclasses.asdict(saved)
            if asked.json:
                asked.json.write_text(json.dumps(known, indent=1))
    rows, by_float32, choosing = [], [], []
    for (model, way, _), by_mode in measured_rows.items():
        saved, reference = Saved(**known[f"{model} {way}"]), by_mode[REFERENCE]
        float32_ms, measured = statistics.median(reference.ms), median_ratio(by_mode[SUBJECT], reference)
        rows.append((model, way, expected_gain(by_mode, saved.total), measured))
        by_float32.append((math.log(gain(float32_ms, saved.total)), math.log(measured)))
        if model in GROUPS["choosing"]:
            choosing.append((saved, float32_ms, measured))
    print(summary(rows, asked.worst))
    if len(rows) >= LEAST_ROWS:
        print(f"\nby float32's step alone: {statistics.correlation(*zip(*by_float32, strict=True)):.3f}")
    if all(len(by_mode[SUBJECT].ms) > 1 for by_mode in measured_rows.values()) and len(rows) >= LEAST_ROWS:
        print(f"\nwithout error it would be: {reachable(list(measured_rows.values())):.3f}")
    if len(choosing) > len(dataclasses.fields(Saved)):
        products, others, casts = off_by(choosing)
        print(f"\nfactors, choosing: products {products:.2f}, other ops {others:.2f}, casts {casts:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
