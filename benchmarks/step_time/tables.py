"""The figures of the suite, as Markdown."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from benchmarks.models import BENCHMARKS
from benchmarks.step_time.modes import Mode
from benchmarks.step_time.suite import Row

REFERENCE = "float32"


def speedups(row: Row, reference: Row) -> list[float]:
    """How many times faster than float32, round by round: both took their turns one after the other."""
    return [theirs / ours for theirs, ours in zip(reference.ms, row.ms, strict=True)]


def loss_difference(row: Row, reference: Row) -> float | None:
    """The largest relative difference of the losses of the first steps; ``None`` for inference."""
    pairs = list(zip(row.losses, reference.losses, strict=True))
    return max((abs(ours - theirs) / max(abs(theirs), 1e-9) for ours, theirs in pairs), default=None)


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values)))


def table(rows: Sequence[Row], modes: Sequence[Mode]) -> str:
    """One line for each model and way: speed-ups with their spread, first step, memory and losses beside float32's.

    The speed-up is the ratio of the median step times; what follows it is half the distance between the quartiles of
    the round-by-round ratios.
    """
    others = [mode for mode in modes if mode.name != REFERENCE]
    titles = [f"× {mode.title}" for mode in others]
    extra = ["first step ×", "peak memory ×", "loss differs by", "best"]
    lines = [
        "| "
        + " | ".join(["model", "way", "batch", "float32 ms", *titles, *(f"amp_tf {e}" for e in extra[:3]), extra[3]])
        + " |",
        "|---|---|---:|---:|" + "---:|" * (len(others) + 3) + "---|",
    ]
    by_key: dict[tuple[str, str, int], dict[str, Row]] = {}
    for row in rows:
        if not row.error:
            by_key.setdefault((row.model, row.way, row.batch), {})[row.mode] = row
    for (model, way, batch), found in by_key.items():
        if REFERENCE not in found:
            continue
        reference = found[REFERENCE]
        cells = [BENCHMARKS[model].title, way, str(batch), f"{statistics.median(reference.ms):.2f}"]
        for mode in others:
            cells.append(_speedup_cell(found[mode.name], reference) if mode.name in found else "–")
        cells += _amp_cells(found.get("amp_tf"), reference)
        cells.append(max(found, key=lambda name: -statistics.median(found[name].ms)))
        lines.append("| " + " | ".join(cells) + " |")
    lines.append("")
    for mode in others:
        ratios = [
            _median_ratio(found[mode.name], found[REFERENCE])
            for found in by_key.values()
            if {mode.name, REFERENCE} <= set(found)
        ]
        if ratios:
            lines.append(
                f"{mode.title}: geometric mean {geometric_mean(ratios):.3f}, worst {min(ratios):.3f} of {len(ratios)}"
            )
    lines += [f"{row.model} {row.way} {row.mode}: {row.error.splitlines()[-1]}" for row in rows if row.error]
    return "\n".join(lines)


def _median_ratio(row: Row, reference: Row) -> float:
    return statistics.median(reference.ms) / statistics.median(row.ms)


def _speedup_cell(row: Row, reference: Row) -> str:
    ratios = speedups(row, reference)
    quartiles = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else [ratios[0]] * 3
    return f"{_median_ratio(row, reference):.2f} ± {(quartiles[2] - quartiles[0]) / 2:.2f}"


def _amp_cells(row: Row | None, reference: Row) -> list[str]:
    if row is None:
        return ["–"] * 3
    difference = loss_difference(row, reference)
    return [
        f"{row.first_step_s / reference.first_step_s:.2f}",
        f"{row.peak_mib / reference.peak_mib:.2f}",
        "–" if difference is None else f"{difference:.1e}",
    ]
