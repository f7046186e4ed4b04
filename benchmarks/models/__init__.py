"""The models that amp_tf is measured on: those of the published mixed-precision results, and everyday ones.

``BENCHMARKS[name].workload(size)`` gives model, loss, data and batch sizes. Everything is Keras 3 and knows nothing of
amp_tf. Importing this package imports no TensorFlow; building a model does.
"""

from __future__ import annotations

from benchmarks.models import detection, language, recurrent, tabular, vision
from benchmarks.models.workload import SIZES, Benchmark, Workload

BENCHMARKS: dict[str, Benchmark] = {
    row.name: row
    for row in (
        *vision.BENCHMARKS,
        *detection.BENCHMARKS,
        *tabular.BENCHMARKS,
        *language.BENCHMARKS,
        *recurrent.BENCHMARKS,
    )
}


def names(text: str = "all") -> list[str]:
    """The model names that a command-line value such as ``"ncf,bert"`` or ``"all"`` asks for.

    Raises:
        ValueError: a name is unknown; the message names the valid ones.
    """
    if text == "all":
        return [name for name, row in BENCHMARKS.items() if row.is_common]
    asked = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in asked if name not in BENCHMARKS]
    if unknown:
        raise ValueError(f"No benchmark model is called {', '.join(unknown)}. Valid names: {', '.join(BENCHMARKS)}.")
    return asked


__all__ = ["BENCHMARKS", "SIZES", "Benchmark", "Workload", "names"]
