"""A benchmark model: how to build it, its data, and its batch sizes."""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

SIZES = ("tiny", "small")
"""``tiny`` is for tests (a step takes milliseconds), ``small`` runs in seconds on 2 cores."""

Arrays = np.ndarray | tuple[np.ndarray, ...]


@dataclasses.dataclass(frozen=True)
class Workload:
    """A model with everything that is needed to train it.

    Attributes:
        model: builds a new model under the Keras policy that is in force.
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


def cross_entropy(keras: Any) -> Any:
    """Makes the loss of logits whose targets are classes."""
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def chosen(text: str, known: Collection[str], groups: Mapping[str, Sequence[str]]) -> list[str]:
    """The names that a comma-separated command-line value asks for.

    Args:
        text: the value.
        known: all valid names.
        groups: names for many at once.

    Raises:
        ValueError: a name is unknown; the message names the valid ones.
    """
    found = []
    for part in text.split(","):
        name = part.strip()
        if name in groups:
            found += groups[name]
        elif name in known:
            found.append(name)
        elif name:
            valid = ", ".join([*groups, *known])
            raise ValueError(f"Nothing here is called {name}. Valid names: {valid}.")
    return found


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """One row of the table of benchmark models.

    Attributes:
        name: how the command line calls it, and the name of the model.
        title: how a table of results calls it.
        model: builds the model from its name and one row of ``sizes``.
        data: makes ``(x, y)`` from one row of ``sizes``, the number of examples and a seed.
        sizes: the figures of each size, by name, with ``batch`` and ``batches`` among them.
        loss: makes the loss from the module of its Keras.
        learning_rate: a rate at which Adam makes progress.
        framework: the Keras that it is written in.
        is_common: whether "all" means this model too; others are made to show one thing.
    """

    name: str
    title: str
    model: Callable[[str, Any], Any]
    data: Callable[[Any, int, int], tuple[Arrays, np.ndarray]]
    sizes: Mapping[str, Any]
    loss: Callable[[Any], Any] = cross_entropy
    learning_rate: float = 1e-3
    framework: str = "keras"
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
        figures = self.sizes[size]
        return Workload(
            functools.partial(self.model, self.name, figures),
            self.loss(importlib.import_module(self.framework)),
            functools.partial(self.data, figures),
            figures.batch,
            figures.batches,
            self.learning_rate,
            self.framework,
        )
