"""The bench gives a program its inputs and takes its results."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import zlib
from collections.abc import Callable

import numpy as np
import tensorflow as tf

#: Cases: what the inputs of a program are multiplied by, and odd values.
SCALES = {"1": 1.0, "1e-6": 1e-6, "1e-3": 1e-3, "1e3": 1e3, "1e6": 1e6}
ODD = ("zeros", "equal rows", "half masked", "mean 50")


def in_a_quarter(name):
    """Tells whether a name is in a fixed quarter of all names, for which XLA compiles programs."""
    return zlib.crc32(name.encode()) % 4 == 0


def mean_square(values):
    return tf.reduce_mean(tf.square(values))


def title_of(function):
    """The name of a function as people write it."""
    return function.__name__.strip("_").replace("_", " ")


def by_name(names_of):
    """Returns each name's value, from values with their names in one text."""
    return {name: value for value, names in names_of.items() for name in names.split()}


def public_classes(module, base):
    """The names of the classes of a kind that a module exports: one for each class, its own where
    that is exported.
    """
    name_of = {}
    for name, found in sorted(vars(module).items()):
        if (
            inspect.isclass(found)
            and issubclass(found, base)
            and (found not in name_of or found.__name__ == name)
        ):
            name_of[found] = name
    return sorted(name_of.values())


@dataclasses.dataclass(frozen=True)
class Program:
    """A program that can be run in any precision.

    Attributes:
        name: ``group/what``, unique.
        run: makes fresh variables and functions, runs them, and notes results on the bench.
        compiled: whether it is run by XLA as well.
    """

    name: str
    run: Callable[[Bench], None]
    compiled: bool = True


class Bench:
    """One run of a program: inputs that depend on the program's name alone, functions, and results.

    Args:
        name: of the program.
        jit: whether functions are compiled by XLA.
        noise: by how many units in the last place inputs are changed, at random.
    """

    def __init__(self, name, jit=False, noise=0.0):
        self.jit = jit
        self._noise = noise
        self._dice = np.random.default_rng(zlib.crc32(name.encode()))
        self._other_dice = np.random.default_rng(1)
        self._notes = {}

    def normal(self, *shape, scale=1.0):
        """Normally distributed float32 values."""
        return self.given(self._dice.normal(size=shape) * scale)

    def integers(self, below, *shape):
        return self._dice.integers(below, size=shape).astype(np.int32)

    def given(self, values):
        """Values as float32, changed a little where the run is to show float32's own noise."""
        values = np.asarray(values, np.float32)
        if self._noise:
            values = values * (
                1 + self._noise * 2.0**-23 * self._other_dice.choice([-1.0, 1.0], size=values.shape)
            )
        return values.astype(np.float32)

    def weight(self, *shape, name="w"):
        """A variable whose products are about as large as what they multiply."""
        return tf.Variable(self.normal(*shape, scale=np.prod(shape[:-1]) ** -0.5), name=name)

    def case(self, name, *shape):
        """Inputs of a case of :data:`SCALES` or :data:`ODD`."""
        values = self.normal(*shape)
        if name in SCALES:
            return values * np.float32(SCALES[name])
        if name == "zeros":
            return np.zeros_like(values)
        if name == "equal rows":
            return np.broadcast_to(values[:1], values.shape).copy()
        if name == "half masked":
            return np.where(np.arange(shape[-1]) < shape[-1] // 2, values, np.float32(0))
        if name == "mean 50":
            return values + np.float32(50)
        raise ValueError(f"no such case: {name}")

    def function(self, python_function, autograph=False):
        """A new ``tf.function``."""
        return tf.function(python_function, jit_compile=self.jit or None, autograph=autograph)

    @contextlib.contextmanager
    def attempt(self):
        """A block whose results count as not finite where a kernel refuses its input, a singular
        matrix, say.
        """
        try:
            yield
        except tf.errors.InvalidArgumentError:
            return

    def note(self, case, name, value):
        """Keeps a result; results of one name are judged together."""
        if isinstance(value, tf.IndexedSlices):
            value = tf.convert_to_tensor(value)
        self._notes.setdefault((case, name), []).append(np.asarray(value))

    def note_all(self, case, results):
        """Keeps the results that there are, by their names."""
        for name, value in results.items():
            if value is not None:
                self.note(case, name, value)

    def judge(self, python_function, make):
        """Keeps what a function gives of three draws of its arguments: an output, or results by
        name.
        """
        function = self.function(python_function)
        for _ in range(3):
            results = function(*make())
            if not isinstance(results, dict):
                results = {"output": results}
            self.note_all("1", results)

    def step(self, python_function, variables):
        """A new ``tf.function`` that gives the results of a function, and the gradients of the one
        that is called loss by its first argument and by variables.
        """

        @self.function
        def step(x, *more):
            with tf.GradientTape() as tape:
                tape.watch(x)
                results = python_function(x, *more)
            gradients = tape.gradient(results["loss"], {**variables, "x": x})
            named = {f"gradient of {name}": value for name, value in gradients.items()}
            return {**results, **named}

        return step

    def values(self):
        """By case and name the draws of a tensor, one behind the other."""
        return {key: np.stack(draws) for key, draws in self._notes.items()}
