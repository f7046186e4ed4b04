"""How a model of the wide suite is written down, and which half of the suite it belongs to."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.models.workload import Arrays, Benchmark, cross_entropy

HALVES = ("choosing", "judging")
"""By the first half figures may be chosen; the second only judges them."""


@dataclasses.dataclass(frozen=True)
class Values:
    """Random float32 numbers of a standard normal distribution; ``shape`` is without the batch."""

    shape: tuple[int, ...]
    dtype = "float32"

    def draw(self, rng: np.random.Generator, examples: int) -> np.ndarray:
        return rng.standard_normal((examples, *self.shape), dtype=np.float32)


@dataclasses.dataclass(frozen=True)
class Numbers:
    """Random int32 numbers below ``count``: tokens, categories or labels; ``shape`` is without the
    batch.
    """

    count: int
    shape: tuple[int, ...] = ()
    dtype = "int32"

    def draw(self, rng: np.random.Generator, examples: int) -> np.ndarray:
        return rng.integers(0, self.count, (examples, *self.shape)).astype(np.int32)


Figures = Values | Numbers
Outputs = Callable[..., Any]
"""Takes the Keras module and one symbolic tensor for each input, gives the output."""

MODELS: dict[str, Benchmark] = {}
"""All models of the wide suite, by name."""
FAMILIES: dict[str, str] = {}
"""The family of each."""


@dataclasses.dataclass(frozen=True)
class WideSize:
    """The only figure in which the sizes of a model of the suite differ."""

    batch: int

    @property
    def batches(self) -> tuple[int, ...]:
        """The batch sizes of a sweep: one."""
        return (self.batch,)


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

    def data(figures: WideSize, examples: int, seed: int) -> tuple[Arrays, np.ndarray]:
        rng = np.random.default_rng(seed)
        drawn = tuple(row.draw(rng, examples) for row in inputs)
        x = drawn if len(drawn) > 1 else drawn[0]
        return x, target.draw(rng, examples)

    def enter(outputs: Outputs) -> Outputs:
        def model(name: str, figures: WideSize) -> Any:
            module = importlib.import_module(keras)
            symbols = [module.Input(row.shape, dtype=row.dtype) for row in inputs]
            return module.Model(symbols, outputs(module, *symbols), name=name)

        name = outputs.__name__
        FAMILIES[name] = family
        MODELS[name] = Benchmark(
            name,
            name.replace("_", " "),
            model,
            data,
            {"small": WideSize(batch)},
            loss=cross_entropy if isinstance(target, Numbers) else _squared_error,
            learning_rate=1e-4,
            framework=keras,
            is_common=False,
        )
        return outputs

    return enter


def _squared_error(keras: Any) -> Any:
    return keras.losses.MeanSquaredError()


def half(name: str) -> str:
    """The half of the suite to which a hash of the name assigns a model."""
    digest = hashlib.sha256(name.encode()).digest()
    return HALVES[digest[0] % 2]
