"""The figures of the suite as a bar chart: speed-up over float32 of each mode, by model and way."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from benchmarks.models import BENCHMARKS
from benchmarks.step_time.modes import Mode
from benchmarks.step_time.suite import Row
from benchmarks.step_time.tables import REFERENCE


def plot(rows: Sequence[Row], modes: Sequence[Mode], path: Path) -> None:
    """Writes the chart; the file's suffix says in which format."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    medians = {(r.model, r.way, r.batch, r.mode): statistics.median(r.ms) for r in rows if r.ms}
    keys = [key[:3] for key in medians if key[3] == REFERENCE]
    others = [mode for mode in modes if mode.name != REFERENCE]
    height = 0.8 / len(others)
    figure, axes = pyplot.subplots(figsize=(9, 1 + 0.45 * len(keys)))
    for number, mode in enumerate(others):
        places, values = [], []
        for index, key in enumerate(keys):
            if (*key, mode.name) in medians:
                places.append(index + number * height)
                values.append(medians[(*key, REFERENCE)] / medians[(*key, mode.name)])
        axes.barh(places, values, height, label=mode.title)
    labels = [f"{BENCHMARKS[model].title}, {way}, batch {batch}" for model, way, batch in keys]
    axes.set_yticks([index + 0.4 - height / 2 for index in range(len(keys))], labels)
    axes.invert_yaxis()
    axes.axvline(1.0, color="black", linewidth=1)
    axes.set_xlabel("speed-up over float32")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)
