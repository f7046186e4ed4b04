"""The models that amp_tf is measured on: those of the published mixed-precision results, and
everyday ones.

``BENCHMARKS[name].workload(size)`` gives model, loss, data and batch sizes. Everything is Keras 3
and knows nothing of amp_tf. Importing this package imports no TensorFlow; building a model does.
"""

from __future__ import annotations

from benchmarks.models import detection, language, recurrent, tabular, vision, wide
from benchmarks.models.cases import CASES
from benchmarks.models.workload import SIZES, Benchmark, Workload, chosen

BENCHMARKS: dict[str, Benchmark] = {}
for _family in (vision, detection, tabular, language, recurrent):
    for _row in _family.BENCHMARKS:
        BENCHMARKS[_row.name] = _row

#: Names for many models at once; "all" are the common models of :data:`BENCHMARKS`.
GROUPS: dict[str, list[str]] = {
    "all": [name for name, row in BENCHMARKS.items() if row.is_common],
    "wide": list(wide.MODELS),
    "gpu": [f"gpu/{name}" for name in CASES],
}
for _half in wide.HALVES:
    GROUPS[_half] = [name for name in wide.MODELS if wide.half(name) == _half]


def benchmark(name: str) -> Benchmark:
    """Returns the row of one model: of the suite of published results, of the wide one, or of
    :data:`benchmarks.models.cases.CASES` by a name such as ``"gpu/bert"``.

    Raises:
        KeyError: there is no such model.
    """
    family, _, case = name.rpartition("/")
    if family == "gpu":
        return CASES[case]
    if name in BENCHMARKS:
        return BENCHMARKS[name]
    return wide.MODELS[name]


def names(text: str = "all") -> list[str]:
    """The model names that a command-line value such as ``"ncf,bert"``, ``"all"`` or ``"judging"``
    asks for.

    Raises:
        ValueError: a name is unknown; the message names the valid ones.
    """
    return chosen(text, [*BENCHMARKS, *wide.MODELS, *GROUPS["gpu"]], GROUPS)


__all__ = ["BENCHMARKS", "GROUPS", "SIZES", "Benchmark", "Workload", "benchmark", "chosen", "names"]
