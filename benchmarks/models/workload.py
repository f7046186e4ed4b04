"""A benchmark model: how to build it, its data, and its batch sizes."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

SIZES = ("tiny", "small", "real")
"""``tiny`` is for tests (a step takes milliseconds), ``small`` runs in seconds on 2 cores, ``real``
is for a GPU.
"""

Arrays = np.ndarray | tuple[np.ndarray, ...]


@dataclasses.dataclass(frozen=True)
class Workload:
    """A model with everything that is needed to train it.

    Attributes:
        name: the name of the row in :data:`benchmarks.models.BENCHMARKS`.
        size: one of :data:`SIZES`.
        model: builds a new Keras 3 model under the Keras policy that is in force.
        loss: a Keras loss, or a function of (target, prediction) that gives a scalar or a value per
            example.
        data: ``data(examples, seed)`` gives ``(x, y)``; ``x`` is an array or a tuple of arrays
            whose first axis counts examples. The data is synthetic and can be learned: the loss of
            a trained model falls well below that of a new one.
        batch: the batch size to train with when nothing else is asked for.
        batches: the batch sizes of a sweep.
        learning_rate: a rate at which Adam makes progress.
        framework: the Keras that it is written in, ``"keras"`` or ``"tf_keras"``.
    """

    name: str
    size: str
    model: Callable[[], Any]
    loss: Any
    data: Callable[[int, int], tuple[Arrays, np.ndarray]]
    batch: int
    batches: tuple[int, ...]
    learning_rate: float = 1e-3
    framework: str = "keras"

    @property
    def keras(self) -> Any:
        """The module of its Keras."""
        return importlib.import_module(self.framework)

    def optimizer(self) -> Any:
        """A new Adam optimizer, the one that the published results of most of these models were
        made with.
        """
        return self.keras.optimizers.Adam(self.learning_rate)


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """One row of the table of benchmark models.

    Attributes:
        name: how the command line calls it.
        title: how a table of results calls it.
        what: one sentence on what it stands for, with its source.
        build: makes the workload from one row of ``sizes``.
        sizes: the figures of each size, by name.
        is_common: whether "all" means this model too; others are made to show one thing.
    """

    name: str
    title: str
    what: str
    build: Callable[[str, str, Any], Workload]
    sizes: Mapping[str, Any]
    is_common: bool = True

    def workload(self, size: str = "small") -> Workload:
        """The workload at one size.

        Raises:
            ValueError: there is no such size; the message names the valid ones.
        """
        if size not in self.sizes:
            raise ValueError(
                f"{self.name} has no size {size!r}. Valid sizes: {', '.join(self.sizes)}."
            )
        return self.build(self.name, size, self.sizes[size])
