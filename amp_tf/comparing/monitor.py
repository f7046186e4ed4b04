"""Reads the layers of a model that trains, every so many steps, against the same step in float32.

The step runs once more in both precisions, as for a comparison (:mod:`amp_tf.comparing.step_graphs`): on the batch that
the model has just trained with, from copies of its variables. So nothing of what trains changes, nothing is paid
between two readings, and a reading costs a few steps. It comes after the step because Keras' own trace of the step must
be the first: layers of tf_keras draw a seed each time that they are traced.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from amp_tf.comparing import in_force, instruments, readings
from amp_tf.comparing.default_target import choose_target
from amp_tf.comparing.flattening import flatten, with_values_of_now, without_values
from amp_tf.comparing.instruments import Statistics
from amp_tf.comparing.joining import AMP, FLOAT32
from amp_tf.comparing.probes import probe
from amp_tf.comparing.readings import LayerReading, MonitoredRun, Reading
from amp_tf.comparing.running import exact_products
from amp_tf.comparing.step_graphs import JointGraph
from amp_tf.comparing.steps import rows_of, trace
from amp_tf.comparing.suspects import is_of_gradient, scope_of
from amp_tf.comparing.train_functions import is_labelled, iterate_like, owner_of, steps_a_call, without_optionals
from amp_tf.config import AmpConfig
from amp_tf.errors import AmpError, GraphError
from amp_tf.graph.layers import path_of
from amp_tf.oplists.hardware import Hardware
from amp_tf.oplists.targets import resolve_target
from amp_tf.precision import Precision

EVERY = 500  #: steps between two readings
_SHOWN = 10  # layers that get scalars at each reading; those that had some once keep them
_SCALARS = ("largest", "smallest", "overflow", "underflow", "distance")
_runs: list[MonitoredRun] = []  # of this process, for its report


def runs() -> list[MonitoredRun]:
    """The runs that were monitored in this process, each with its last reading alone."""
    return list(_runs)


class StepReader:
    """One training step of a compiled Keras model, in float32 and as amp_tf rewrites it, to be run on any batch.

    Args:
        model: compiled, and with the library's own ``train_step``.
        batch: an example: ``(x, y)`` or ``(x, y, sample_weight)``, eager tensors or arrays.
        config: what to convert.
        hardware: the devices to rewrite for.

    Attributes:
        precision: the 16-bit type.

    Raises:
        GraphError: the step cannot be traced, or nothing of it is 16 bit.
    """

    def __init__(self, model: Any, batch: Any, config: AmpConfig, hardware: Hardware) -> None:
        import tensorflow as tf

        config, hardware, _ = choose_target(config, hardware)
        target = resolve_target(config, hardware).target
        assert target is not None
        self.precision: Precision = target.precision
        self._model = model
        self._example = tf.nest.map_structure(lambda leaf: np.zeros(()), batch)  # its structure alone
        step, self._function = trace(model, [batch, _with_more_rows(batch)], 2)
        flat = flatten(step, self._function)
        rewritten = flat.rewritten(config, hardware).graph
        self._joint = JointGraph(step, flat, {FLOAT32: flat.graph, AMP: rewritten})
        with self._joint.graph.as_default():
            probes = probe(flat, rewritten, self._joint.graph, None)
            calls = instruments.Calls(self._joint.graph, instruments.quick_row, self.precision.smallest)
            self._rows = [calls.measure([each.value], each.truth) for each in probes]
        self._probes = probes
        self._is_thorough = [False] * len(probes)
        self._thorough = instruments.Calls(self._joint.graph, instruments.thorough_row, self.precision.smallest)
        if not probes:
            raise GraphError("nothing of the step is 16 bit", where=model.name, fix="amp_tf.report() says why")
        self._places = [(is_of_gradient(each.name), path_of(each.name) or scope_of(each.name)) for each in probes]
        self._step, self._flat = dataclasses.replace(step, batches=()), without_values(flat)

    @exact_products()
    def read(self, batch: Any, scale: float) -> tuple[LayerReading, ...]:
        """Runs the step with the model's variables as they are now.

        Args:
            batch: as the example.
            scale: of the loss.
        """
        step = dataclasses.replace(self._step, batches=(rows_of(self._model, batch, self._example),))
        self._joint.follow(step, with_values_of_now(self._flat, self._function))
        found = self._measure(scale)
        self._joint.follow(self._step, self._flat)  # which holds no copies of the variables
        by_layer: dict[tuple[bool, str], list[np.ndarray]] = collections.defaultdict(list)
        for place, row in zip(self._places, found, strict=True):
            by_layer[place].append(row)
        layers = [
            LayerReading.of(layer, is_gradient, Statistics.of(rows), instruments.norm(rows))
            for (is_gradient, layer), rows in by_layer.items()
        ]
        return tuple(sorted(layers, key=lambda layer: layer.is_gradient))  # stable: else in the order of the graph

    def _measure(self, scale: float) -> list[np.ndarray]:
        """A thorough row for each node; of most, a quick pass over their numbers is enough.

        A node that was not gets a thorough row in every later reading, so that these all fetch the same.
        """
        rows = self._joint.fetch(self._rows, 0, scale, is_alone=True)
        found = [
            row if is_thorough else instruments.settled(row)
            for (row,), is_thorough in zip(rows, self._is_thorough, strict=True)
        ]
        odd = [
            place
            for place, (row,) in enumerate(rows)
            if not self._is_thorough[place] and not instruments.is_enough(row)
        ]
        for place in odd:
            self._rows[place] = self._thorough.measure([self._probes[place].value], self._probes[place].truth)
            self._is_thorough[place] = True
        again = self._joint.fetch([self._rows[place] for place in odd], 0, scale, is_alone=True) if odd else ()
        for place, (row,) in zip(odd, again, strict=True):
            found[place] = row
        return found


class Monitor:
    """Reads a model's layers every so many steps, and writes what it reads.

    Args:
        folder: gets a file of readings, and scalars for TensorBoard.
        every: steps between two readings; the first is after the first step.
        scale_of: gives the loss scale of a model.
        warn: called once with what is wrong, if a model cannot be read; it then trains on without.
    """

    def __init__(
        self,
        folder: str,
        every: int = EVERY,
        *,
        scale_of: Callable[[Any], float] = lambda _: 1.0,
        warn: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._folder, self._every = Path(folder), every
        self._scale_of, self._warn = scale_of, warn
        self._step = 0
        self._is_off = False
        self._reader: StepReader | None = None
        self._place: Path | None = None
        self._writer: Any = None
        self._with_scalars: dict[tuple[str, bool], None] = {}
        self._number = -1

    def is_due(self, steps: int) -> bool:
        """Counts the steps that come now, and says whether a reading is due after them."""
        before, self._step = self._step, self._step + steps
        return not self._is_off and (before == 0 or before // self._every != self._step // self._every)

    def read(self, model: Any, batch: Any) -> None:
        """Reads the layers after a step, and writes what it read; what goes wrong turns it off, with one warning.

        Args:
            model: the model.
            batch: that it has just trained with.
        """
        try:
            begin = time.perf_counter()
            if self._reader is None:
                now = in_force.current()
                config = AmpConfig.from_env() if now.config is None else now.config
                self._reader = StepReader(model, batch, config, now.find_hardware())
            layers = self._reader.read(batch, self._scale_of(model))
            self._write(model, Reading(self._step, time.perf_counter() - begin, layers))
        except Exception as error:  # the training goes on whatever happens
            self.turn_off(str(error) if isinstance(error, AmpError) else f"{type(error).__name__}: {error}")

    def turn_off(self, why: str) -> None:
        """Reads nothing from now on, and warns."""
        self._is_off = True
        self._warn(why)

    def _write(self, model: Any, reading: Reading) -> None:
        assert self._reader is not None
        precision = self._reader.precision
        if self._place is None:
            name = f"{readings.PREFIX}{socket.gethostname()}_{os.getpid()}_{time.time_ns() // 1_000_000}"
            self._folder.mkdir(parents=True, exist_ok=True)
            self._place = self._folder / f"{name}.jsonl"
            facts = {"program": " ".join(sys.argv), "model": model.name, "every": self._every}
            self._place.write_text(f"{readings.head_line(precision, facts)}\n", encoding="utf-8")
            self._number = len(_runs)
            _runs.append(MonitoredRun(model.name, precision, ()))
        with self._place.open("a", encoding="utf-8") as file:
            file.write(f"{readings.line(reading)}\n")
        _runs[self._number] = dataclasses.replace(_runs[self._number], readings=(reading,))
        self._write_scalars(reading, precision)

    def _write_scalars(self, reading: Reading, precision: Precision) -> None:
        import tensorflow as tf

        assert self._place is not None
        if self._writer is None:
            self._writer = tf.summary.create_file_writer(str(self._place.with_suffix("")))
        for layer in reading.nearest(precision, _SHOWN):
            self._with_scalars.setdefault((layer.layer, layer.is_gradient))
        with self._writer.as_default(), tf.summary.record_if(True):
            for layer in reading.layers:
                if (layer.layer, layer.is_gradient) in self._with_scalars:
                    for what in _SCALARS:
                        name = f"amp_tf/{what}/{'gradient/' * layer.is_gradient}{layer.layer}"
                        tf.summary.scalar(name, getattr(layer, what), step=reading.step)
        self._writer.flush()


class WatchedTrainFunction:
    """A Keras model's train function that lets a monitor read after a step.

    Args:
        function: the train function.
        model: whose it is.
        monitor: the monitor.
    """

    def __init__(self, function: Any, model: Any, monitor: Monitor) -> None:
        self.function, self._model, self._monitor = function, model, monitor

    def __call__(self, iterator: Any) -> Any:
        steps = steps_a_call(self._model)
        if not self._monitor.is_due(steps):
            return self.function(iterator)
        if why := self._why_not(iterator):
            self._monitor.turn_off(why)
            return self.function(iterator)
        taken = list(itertools.islice(iterator, steps))
        result = self.function(iterate_like(taken, iterator) if taken else iterator)
        if taken:
            batch = without_optionals(taken[-1])
            if is_labelled(batch):
                self._monitor.read(self._model, tuple(part for part in batch if part is not None))
            else:
                self._monitor.turn_off("a batch is not (x, y) or (x, y, sample_weight)")
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self.function, name)

    def _why_not(self, iterator: Any) -> str:
        """Why the model is not read; empty if it can be."""
        import tensorflow as tf

        if type(self._model).train_step is not owner_of(type(self._model)).train_step:
            return "the model has a train_step of its own"
        return "" if isinstance(iterator, tf.data.Iterator) else "its batches are distributed over replicas"


def watch(model: Any, monitor: Monitor) -> None:
    """Lets a monitor read after steps of a model's train function, which must have been made. Idempotent."""
    if model.train_function is not None and not isinstance(model.train_function, WatchedTrainFunction):
        model.train_function = WatchedTrainFunction(model.train_function, model, monitor)


def unwatch(model: Any) -> None:
    """Gives a model its own train function back. Idempotent."""
    if isinstance(model.train_function, WatchedTrainFunction):
        model.train_function = model.train_function.function


def _with_more_rows(batch: Any) -> Any:
    """The batch with its first row once more, so that the number of rows is left open."""
    import tensorflow as tf

    def longer(leaf: Any) -> np.ndarray:
        value = np.asarray(leaf)
        return np.concatenate([value, value[:1]]) if value.ndim else value

    return tf.nest.map_structure(longer, batch)
