"""The figures of the suite, as Markdown."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from benchmarks.models import GROUPS, benchmark
from benchmarks.models.wide import HALVES
from benchmarks.results import table_head, table_row
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
    """The fastest mode in which amp_tf is not at work, neither whole nor in part."""
    known = all_modes("bfloat16")
    others = [row for mode, row in by_mode.items() if not known[mode].is_ours]
    return min(others, key=lambda row: statistics.median(row.ms))


def loss_difference(row: Row, reference: Row) -> float | None:
    """The largest relative difference of the losses of the first steps; ``None`` for inference."""
    largest = None
    for ours, theirs in zip(row.losses, reference.losses, strict=True):
        difference = abs(ours - theirs) / max(abs(theirs), 1e-9)
        largest = max(largest or 0.0, difference)
    return largest


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values)))


def table(rows: Sequence[Row], modes: Sequence[Mode]) -> str:
    """One line for each model, way and batch, and the means.

    The speed-up over float32 is the ratio of the median step times; what follows it is half the
    distance between the quartiles of the round-by-round ratios. Then amp_tf's first step, memory,
    nodes converted and casts, and losses, and how it compares with the fastest of the others.
    """
    others = [mode for mode in modes if mode.name != REFERENCE]
    head = ["model", "way", "batch", "float32 ms"]
    for mode in others:
        head.append(f"× {mode.title}")
    for title in ("first step ×", "peak memory ×", "nodes / casts", "loss differs by"):
        head.append(f"{SUBJECT} {title}")
    head.append(f"{SUBJECT} over the best other")
    lines = [table_head(head, texts=2)]
    found = by_key(rows)
    for (model, way, batch), by_mode in found.items():
        reference = by_mode[REFERENCE]
        cells = [benchmark(model).title, way, str(batch), f"{statistics.median(reference.ms):.2f}"]
        for mode in others:
            cells.append(ratio_cell(by_mode.get(mode.name), reference))
        cells += _subject_cells(by_mode)
        lines.append(table_row(cells))
    lines += ["", *_means(found, others)]
    # The packages that were at work, and the errors.
    for mode, folder in dict.fromkeys((row.mode, row.amp_tf) for row in rows if row.amp_tf):
        lines.append(f"{mode}: the package in {folder}")
    for row in rows:
        if row.error:
            lines.append(f"{row.model} {row.way} {row.mode}: {row.error.splitlines()[-1]}")
    return "\n".join(lines)


def ratio_cell(row: Row | None, reference: Row) -> str:
    """How many times faster than another mode, with the spread; a dash where nothing was timed."""
    if row is None or not row.ms or not reference.ms:
        return "–"
    return f"{median_ratio(row, reference):.2f} ± {spread(row, reference):.2f}"


def _means(found: Mapping[Key, Mapping[str, Row]], others: Sequence[Mode]) -> list[str]:
    """A table of geometric means: over all rows, and over each half of the wide suite."""
    lines = [table_head(["mean of", "rows", "geometric mean", "lowest", "highest"])]
    for mode in others:
        beside = [by_mode for by_mode in found.values() if mode.name in by_mode]
        lines += _over_float32(f"{mode.title} over float32", beside, mode.name)
    ours = {key: by_mode for key, by_mode in found.items() if SUBJECT in by_mode}
    lines += _over_best(f"{SUBJECT} over the best other", list(ours.values()))
    for half in HALVES:
        for way in dict.fromkeys(way for _, way, _ in ours):
            alike = []
            for (model, its_way, _), by_mode in ours.items():
                if its_way == way and model in GROUPS[half]:
                    alike.append(by_mode)
            title = f"{half} half, {way}: {SUBJECT}"
            lines += _over_float32(f"{title} over float32", alike, SUBJECT)
            lines += _over_best(f"{title} over the best other", alike)
    return lines


def _over_float32(title: str, alike: Sequence[Mapping[str, Row]], mode: str) -> list[str]:
    return _mean(title, [median_ratio(by_mode[mode], by_mode[REFERENCE]) for by_mode in alike])


def _over_best(title: str, alike: Sequence[Mapping[str, Row]]) -> list[str]:
    return _mean(title, [median_ratio(by_mode[SUBJECT], best_other(by_mode)) for by_mode in alike])


def _mean(title: str, ratios: Sequence[float]) -> list[str]:
    """The row of a mean; no row where nothing was measured."""
    if not ratios:
        return []
    cells = [title, str(len(ratios)), f"{geometric_mean(ratios):.3f}"]
    cells += [f"{min(ratios):.2f}", f"{max(ratios):.2f}"]
    return [table_row(cells)]


def _subject_cells(by_mode: Mapping[str, Row]) -> list[str]:
    """amp_tf's first step, memory, nodes and casts, losses, and its ratio to the best other."""
    row = by_mode.get(SUBJECT)
    if row is None:
        return ["–"] * 5
    reference = by_mode[REFERENCE]
    first_step = "–"
    if reference.first_step_s:
        first_step = f"{row.first_step_s / reference.first_step_s:.2f}"
    loss = "–"
    difference = loss_difference(row, reference)
    if difference is not None:
        loss = f"{difference:.1e}"
    best = best_other(by_mode)
    return [
        first_step,
        f"{row.peak_mib / reference.peak_mib:.2f}",
        f"{row.converted} / {row.casts}",
        loss,
        f"{ratio_cell(row, best)} ({best.mode})",
    ]
