"""The figures of the suite, as Markdown."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from benchmarks.models import GROUPS, benchmark
from benchmarks.models.wide import HALVES
from benchmarks.step_time.modes import Mode
from benchmarks.step_time.modes import modes as all_modes
from benchmarks.step_time.suite import Row

REFERENCE = "float32"
SUBJECT = "amp_tf"
Key = tuple[str, str, int]  # model, way, batch


def by_key(rows: Sequence[Row]) -> dict[Key, dict[str, Row]]:
    """The rows that were timed beside float32, by model, way and batch, and then by mode."""
    found: dict[Key, dict[str, Row]] = {}
    for row in rows:
        if row.ms:
            found.setdefault((row.model, row.way, row.batch), {})[row.mode] = row
    return {key: by_mode for key, by_mode in found.items() if REFERENCE in by_mode}


def speedups(row: Row, reference: Row) -> list[float]:
    """How many times faster than another mode, round by round: both took their turns one after the
    other.
    """
    return [theirs / ours for theirs, ours in zip(reference.ms, row.ms, strict=True)]


def median_ratio(row: Row, reference: Row) -> float:
    """How many times faster than another mode, by medians."""
    return statistics.median(reference.ms) / statistics.median(row.ms)


def standard_error(row: Row, reference: Row) -> float:
    """The standard error of the geometric mean of :func:`speedups`, relative to it; infinite for a
    single round.
    """
    ratios = speedups(row, reference)
    if len(ratios) < 2:
        return math.inf
    return statistics.stdev(map(math.log, ratios)) / math.sqrt(len(ratios))


def spread(row: Row, reference: Row) -> float:
    """Half the distance between the quartiles of the ratios of single rounds."""
    ratios = speedups(row, reference)
    if len(ratios) < 2:
        return 0.0
    quartiles = statistics.quantiles(ratios, n=4)
    return (quartiles[2] - quartiles[0]) / 2


def best_other(by_mode: Mapping[str, Row]) -> Row:
    """The fastest mode that is not amp_tf's."""
    return min(_others(by_mode), key=lambda row: statistics.median(row.ms))


def loss_difference(row: Row, reference: Row) -> float | None:
    """The largest relative difference of the losses of the first steps; ``None`` for inference."""
    pairs = list(zip(row.losses, reference.losses, strict=True))
    return max(
        (abs(ours - theirs) / max(abs(theirs), 1e-9) for ours, theirs in pairs), default=None
    )


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values)))


def table(rows: Sequence[Row], modes: Sequence[Mode]) -> str:
    """One line for each model, way and batch, and the means.

    The speed-up over float32 is the ratio of the median step times; what follows it is half the
    distance between the quartiles of the round-by-round ratios. Then amp_tf's first step, memory,
    nodes converted and casts, and losses, and how it compares with the fastest of the others.
    """
    others = [mode for mode in modes if mode.name != REFERENCE]
    extra = [
        "first step ×",
        "peak memory ×",
        "nodes / casts",
        "loss differs by",
        "over the best other",
    ]
    head = ["model", "way", "batch", "float32 ms", *(f"× {mode.title}" for mode in others)]
    head += [f"{SUBJECT} {title}" for title in extra]
    lines = ["| " + " | ".join(head) + " |", "|---|---|" + "---:|" * (len(head) - 3) + "---|"]
    found = by_key(rows)
    for (model, way, batch), by_mode in found.items():
        reference = by_mode[REFERENCE]
        cells = [benchmark(model).title, way, str(batch), f"{statistics.median(reference.ms):.2f}"]
        cells += [
            ratio_cell(by_mode[mode.name], reference) if mode.name in by_mode else "–"
            for mode in others
        ]
        lines.append("| " + " | ".join([*cells, *_subject_cells(by_mode)]) + " |")
    lines += ["", *_means(found, others)]
    others_amp_tf = dict.fromkeys((row.mode, row.amp_tf) for row in rows if row.amp_tf)
    lines += [f"{mode}: the package in {folder}" for mode, folder in others_amp_tf]
    lines += [
        f"{row.model} {row.way} {row.mode}: {row.error.splitlines()[-1]}"
        for row in rows
        if row.error
    ]
    return "\n".join(lines)


def ratio_cell(row: Row, reference: Row) -> str:
    """How many times faster than another mode, with the spread; a dash where nothing was timed."""
    if not row.ms or not reference.ms:
        return "–"
    return f"{median_ratio(row, reference):.2f} ± {spread(row, reference):.2f}"


def _means(found: Mapping[Key, Mapping[str, Row]], others: Sequence[Mode]) -> list[str]:
    """A table of geometric means: over all rows, and over each half of the wide suite."""
    rows = []
    for mode in others:
        beside = [by for by in found.values() if mode.name in by]
        ratios = [median_ratio(by[mode.name], by[REFERENCE]) for by in beside]
        rows += _mean(f"{mode.title} over float32", ratios)
    ours = {key: by for key, by in found.items() if SUBJECT in by}
    over_best = [median_ratio(by[SUBJECT], best_other(by)) for by in ours.values()]
    rows += _mean(f"{SUBJECT} over the best other", over_best)
    for half in HALVES:
        for way in dict.fromkeys(way for _, way, _ in ours):
            alike = []
            for (model, its_way, _), by in ours.items():
                if its_way == way and model in GROUPS[half]:
                    alike.append(by)
            over_float32 = [median_ratio(by[SUBJECT], by[REFERENCE]) for by in alike]
            over_best = [median_ratio(by[SUBJECT], best_other(by)) for by in alike]
            rows += _mean(f"{half} half, {way}: {SUBJECT} over float32", over_float32)
            rows += _mean(f"{half} half, {way}: {SUBJECT} over the best other", over_best)
    head = ["| mean of | rows | geometric mean | lowest | highest |", "|---|---:|---:|---:|---:|"]
    return [*head, *rows]


def _mean(title: str, ratios: Sequence[float]) -> list[str]:
    """The row of a mean; no row where nothing was measured."""
    if not ratios:
        return []
    cells = [title, str(len(ratios)), f"{geometric_mean(ratios):.3f}"]
    cells += [f"{min(ratios):.2f}", f"{max(ratios):.2f}"]
    return [f"| {' | '.join(cells)} |"]


def _others(by_mode: Mapping[str, Row]) -> list[Row]:
    """The rows of modes in which amp_tf, whole or in part, is not at work."""
    known = all_modes("bfloat16")
    return [row for mode, row in by_mode.items() if not known[mode].is_ours]


def _subject_cells(by_mode: Mapping[str, Row]) -> list[str]:
    row = by_mode.get(SUBJECT)
    reference = by_mode[REFERENCE]
    if row is None:
        return ["–"] * 5
    difference = loss_difference(row, reference)
    best = best_other(by_mode)
    return [
        f"{row.first_step_s / reference.first_step_s:.2f}" if reference.first_step_s else "–",
        f"{row.peak_mib / reference.peak_mib:.2f}",
        f"{row.converted} / {row.casts}",
        "–" if difference is None else f"{difference:.1e}",
        f"{ratio_cell(row, best)} ({best.mode})",
    ]
