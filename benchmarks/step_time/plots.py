"""The figures of the suite as a picture: how much faster than float32 each mode is, by model and way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.models import BENCHMARKS
from benchmarks.step_time.modes import Mode
from benchmarks.step_time.suite import Row
from benchmarks.step_time.tables import REFERENCE, SUBJECT, Key, by_key, median_ratio, spread

#: Of Okabe and Ito's palette, which people with any kind of color vision tell apart, what shows on white and on black.
COLORS = ("#E69F00", "#56B4E9", "#CC79A7", "#F0E442", "#D55E00")
SUBJECT_COLOR = "#009E73"
INK = "#777777"  #: legible on white and on black: a page may be either, and the background is transparent
TICKS = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0)
WIDTH = 9.6  #: inches of 72 points: as wide as a README's column
ROW_HEIGHT, EDGES = 0.42, 1.0


def plot(rows: Sequence[Row], modes: Sequence[Mode], path: Path) -> None:
    """Writes the picture; the file's suffix says in which format.

    One panel for each way, one group of bars for each model and batch, one bar for each mode but float32, which is the
    line at 1. Bars begin at that line, so that what is slower points the other way; the axis is logarithmic, so that
    twice and half are equally long. Whiskers show half the distance between the quartiles of single rounds, both ways.

    Raises:
        ValueError: nothing was timed beside float32.
    """
    import matplotlib

    found = by_key(rows)
    if not found:
        raise ValueError("There is nothing to draw: no row was timed beside float32.")
    ways = list(dict.fromkeys(way for _, way, _ in found))
    groups = list(dict.fromkeys((model, batch) for model, _, batch in found))
    others = [mode for mode in modes if mode.name != REFERENCE]
    style = {
        "font.size": 10.5,
        "svg.hashsalt": "amp_tf",  # the same figures give the same file
        **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK),
    }
    matplotlib.use("Agg")
    from matplotlib import pyplot

    with matplotlib.rc_context(style):
        size = (WIDTH, EDGES + ROW_HEIGHT * len(groups))
        figure, panels = pyplot.subplots(1, len(ways), figsize=size, sharex=True, sharey=True, squeeze=False)
        for way, axes in zip(ways, panels[0], strict=True):
            _draw(axes, way, {group: found.get((group[0], way, group[1]), {}) for group in groups}, others)
        axes = panels[0][0]
        axes.set_yticks(range(len(groups)), _labels(list(found)))
        axes.set_ylim(len(groups) - 0.5, -0.5)
        _scale(axes)
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles, labels, loc="upper center", ncols=len(others), frameon=False)
        figure.supxlabel("times as fast as float32", fontsize=10.5)
        figure.tight_layout(rect=(0, 0, 1, 1 - 0.28 / size[1]))
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(path, transparent=True, metadata=metadata, dpi=150)
        pyplot.close(figure)


def _draw(axes: Any, way: str, groups: Mapping[tuple[str, int], Mapping[str, Row]], others: Sequence[Mode]) -> None:
    height = 0.8 / len(others)
    for number, mode in enumerate(others):
        places, ratios, whiskers = [], [], []
        for index, by_mode in enumerate(groups.values()):
            if mode.name in by_mode:
                row, reference = by_mode[mode.name], by_mode[REFERENCE]
                places.append(index + (number + 0.5) * height - 0.4)
                ratios.append(median_ratio(row, reference))
                whiskers.append(spread(row, reference))
        color = SUBJECT_COLOR if mode.name == SUBJECT else COLORS[number % len(COLORS)]
        axes.barh(places, [ratio - 1 for ratio in ratios], 0.9 * height, left=1, color=color, label=mode.title)
        axes.errorbar(ratios, places, xerr=whiskers, fmt="none", ecolor=INK, elinewidth=1.1, capsize=1.8)
        if mode.name == SUBJECT:
            for place, ratio, whisker in zip(places, ratios, whiskers, strict=True):
                end = max(1, ratio + whisker)
                axes.annotate(f"{ratio:.2f}", (end, place), (3, 0), textcoords="offset points", va="center", fontsize=9)
    axes.set_title(way, fontsize=11.5)
    axes.axvline(1.0, color=INK, linewidth=1)
    axes.grid(axis="x", color=INK, alpha=0.25, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)


def _labels(keys: Sequence[Key]) -> list[str]:
    """The model's title, with the batch where there are several of one model."""
    groups = list(dict.fromkeys((model, batch) for model, _, batch in keys))
    models = [model for model, _ in groups]
    return [
        BENCHMARKS[model].title if models.count(model) == 1 else f"{BENCHMARKS[model].title}, batch {batch}"
        for model, batch in groups
    ]


def _scale(axes: Any) -> None:
    """A logarithmic axis with round figures, and room for the numbers behind the bars."""
    low, high = axes.get_xlim()
    low, high = min(0.85, max(low, 0.2)), 1.12 * max(high, 1.2)
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    ticks = [tick for tick in TICKS if low <= tick <= high]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
