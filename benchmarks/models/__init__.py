"""The models that amp_tf is measured on: those of the published mixed-precision results, and
everyday ones.

``BENCHMARKS[name].workload(size)`` gives model, loss, data and batch sizes. Everything is Keras 3
and knows nothing of amp_tf. Importing this package imports no TensorFlow; building a model does.
"""

from __future__ import annotations

from benchmarks.models import detection, language, recurrent, tabular, vision, wide
from benchmarks.models.cases import CASES, Case
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

#: Names for many models at once; "all" are the common models of :data:`BENCHMARKS`.
GROUPS: dict[str, list[str]] = {
    "all": [name for name, row in BENCHMARKS.items() if row.is_common],
    "wide": list(wide.MODELS),
    "gpu": [f"gpu/{name}" for name in CASES],
    **{half: [name for name in wide.MODELS if wide.half(name) == half] for half in wide.HALVES},
}


def benchmark(name: str) -> Benchmark | Case:
    """Returns the row of one model: of the suite of published results, of the wide one, or of
    :data:`benchmarks.models.cases.CASES` by a name such as ``"gpu/bert"``.

    Raises:
        KeyError: there is no such model.
    """
    family, _, case = name.rpartition("/")
    if family == "gpu":
        return CASES[case]
    return BENCHMARKS[name] if name in BENCHMARKS else wide.MODELS[name]


def names(text: str = "all") -> list[str]:
    """The model names that a command-line value such as ``"ncf,bert"``, ``"all"`` or ``"judging"``
    asks for.

    Raises:
        ValueError: a name is unknown; the message names the valid ones.
    """
    asked = [name.strip() for name in text.split(",") if name.strip()]
    valid = [*BENCHMARKS, *wide.MODELS, *GROUPS["gpu"]]
    unknown = [name for name in asked if name not in GROUPS and name not in valid]
    if unknown:
        many = ", ".join([*GROUPS, *valid])
        raise ValueError(f"No benchmark model is called {', '.join(unknown)}. Valid names: {many}.")
    return [name for text in asked for name in GROUPS.get(text, [text])]


__all__ = ["BENCHMARKS", "GROUPS", "SIZES", "Benchmark", "Workload", "benchmark", "names"]
