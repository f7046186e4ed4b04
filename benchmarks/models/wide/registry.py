"""How a model of the wide suite is written down, and which half of the suite it belongs to."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.models.workload import Arrays, Benchmark, Workload

HALVES = ("choosing", "judging")
"""By the first half figures may be chosen; the second only judges them."""


@dataclasses.dataclass(frozen=True)
class Values:
    """Random float32 numbers of a standard normal distribution; ``shape`` is without the batch."""

    shape: tuple[int, ...]

    def draw(self, rng: np.random.Generator, examples: int) -> np.ndarray:
        return rng.standard_normal((examples, *self.shape), dtype=np.float32)


@dataclasses.dataclass(frozen=True)
class Numbers:
    """Random int32 numbers below ``count``: tokens, categories or labels; ``shape`` is without the
    batch.
    """

    count: int
    shape: tuple[int, ...] = ()

    def draw(self, rng: np.random.Generator, examples: int) -> np.ndarray:
        return rng.integers(0, self.count, (examples, *self.shape)).astype(np.int32)


Figures = Values | Numbers
Outputs = Callable[
    ..., Any
]  #: takes the Keras module and one symbolic tensor for each input, gives the output

MODELS: dict[str, Benchmark] = {}
"""All models of the wide suite, by name."""
FAMILIES: dict[str, str] = {}
"""The family of each."""


def wide(
    family: str, batch: int, inputs: Sequence[Figures], target: Figures, *, keras: str = "keras"
) -> Callable[[Outputs], Outputs]:
    """Makes a function a model of the suite: its name is the model's, its docstring says what it
    stands for.

    Args:
        family: what kinds of ops it is there for.
        batch: the batch size.
        inputs: what it reads.
        target: what it is trained to give: its logits' class where that is :class:`Numbers`, else
            the same numbers.
        keras: the Keras that runs it, ``"keras"`` or ``"tf_keras"``.
    """

    def enter(outputs: Outputs) -> Outputs:
        name = outputs.__name__

        def build(name: str, size: str, _: Any) -> Workload:
            return _workload(name, size, batch, inputs, target, keras, outputs)

        title = name.replace("_", " ")
        MODELS[name] = Benchmark(
            name, title, (outputs.__doc__ or "").strip(), build, {"small": None}, is_common=False
        )
        FAMILIES[name] = family
        return outputs

    return enter


def _workload(
    name: str,
    size: str,
    batch: int,
    inputs: Sequence[Figures],
    target: Figures,
    keras: str,
    outputs: Outputs,
) -> Workload:
    def model() -> Any:
        module = workload.keras
        symbols = [
            module.Input(row.shape, dtype="int32" if isinstance(row, Numbers) else "float32")
            for row in inputs
        ]
        return module.Model(symbols, outputs(module, *symbols), name=name)

    def data(examples: int, seed: int) -> tuple[Arrays, np.ndarray]:
        rng = np.random.default_rng(seed)
        drawn = tuple(row.draw(rng, examples) for row in inputs)
        return drawn[0] if len(drawn) == 1 else drawn, target.draw(rng, examples)

    workload = Workload(name, size, model, _loss(keras, target), data, batch, (batch,), 1e-4, keras)
    return workload


def _loss(keras: str, target: Figures) -> Any:
    losses = importlib.import_module(keras).losses
    if isinstance(target, Numbers):
        return losses.SparseCategoricalCrossentropy(from_logits=True)
    return losses.MeanSquaredError()


def half(name: str) -> str:
    """The half of the suite to which a hash of the name assigns a model."""
    return HALVES[hashlib.sha256(name.encode()).digest()[0] % 2]
