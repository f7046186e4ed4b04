"""A train function that looks at each step before the next one, and does a step again that went wrong in 16 bit.

It runs the library's own function inside of a function that also returns the batch, what else the step wrote and
what the guard saw. The batch is taken from the iterator in there, as the library itself does, so that the graph is the
one without the watchdog: of a batch that is an argument, more is known to be exact, and less is 16 bit.

A step that is skipped leaves trained variables and the optimizer's alone. What else it writes (statistics, metrics,
seeds, counters, the loss scale) is every other variable of its graph, whoever owns it: their values are read as the
step begins, and put back where it is to be as if it had not been.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from amp_tf.config import AmpConfig
from amp_tf.hooks import notices, plugin, xla
from amp_tf.loss_scaling.schedule import DynamicScale
from amp_tf.reporting import reports
from amp_tf.tools.comparing.flattening import by_python, keeping_state, type_of
from amp_tf.tools.train_functions import Repeated, generated, without_optionals
from amp_tf.tools.watchdog import reverts

_LOST = 0.5  # of float32's loss: one that is further off has not one bit right
_ATTEMPTS = 16  # from the largest loss scale down to its floor
_ALL = ("",)  # a regular expression that matches every name
_PLACES = ("x", "y", "sample weight")  # of a batch
NO_LIMIT = float(tf.float32.max)  #: every finite loss is below it
HOLD = float("-inf")  #: no loss is below it: whatever the step computes, variables stay as they are


class StepObservation(NamedTuple):
    """What a guard saw of a step."""

    loss: float
    is_nonfinite: bool  #: any gradient, or any sum or norm of them that the optimizer needs

    @classmethod
    def of(cls, seen: Any) -> StepObservation:
        """What a value of :attr:`Guard.seen` says. Waits for the device."""
        loss, is_nonfinite = seen.numpy().tolist()
        return cls(loss, bool(is_nonfinite))

    @property
    def is_finite(self) -> bool:
        """Whether both the loss and the gradients are."""
        return math.isfinite(self.loss) and not self.is_nonfinite

    def is_fine(self, limit: float) -> bool:
        """Whether the step was made."""
        return not self.is_nonfinite and self.loss <= limit


class Guard:
    """Holds steps back whose loss is above a limit, besides nonfinite ones; two variables, in no checkpoint."""

    def __init__(self) -> None:
        self.limit = tf.Variable(NO_LIMIT, trainable=False, dtype=tf.float32, name="loss_limit")
        self.seen = tf.Variable([0.0, 0.0], trainable=False, name="step_seen")

    def __call__(self, loss: Any, is_nonfinite: Any) -> Any:
        """Whether to skip a step; writes down what is known of it."""
        self.seen.assign(tf.stack([loss, tf.cast(is_nonfinite, tf.float32)]), read_value=False)
        return tf.logical_or(is_nonfinite, tf.logical_not(loss <= self.limit))  # nan is not below


class LossBand:
    """The losses that a healthy training may have next: the limit above which a step is looked at.

    It has to be generous: a false alarm costs two more steps, and a loss that is wrong but within it is not seen. A
    loss counts as a jump where it is as far above the largest of the last 64 as eight times their spread.
    """

    _EVERY = 16  # steps: the limit is a variable, which costs a little to write

    def __init__(self) -> None:
        self._losses: collections.deque[float] = collections.deque(maxlen=64)
        self._count = 0
        self.limit = NO_LIMIT  #: the largest loss that is not a jump

    def note(self, loss: float) -> bool:
        """Adds a loss; returns whether the limit moved."""
        if not math.isfinite(loss):
            return False
        before, self._count = self.limit, self._count + 1
        self._losses.append(loss)
        if self._count % self._EVERY == 0:
            self._move()
        return self.limit != before

    def widen(self, loss: float) -> None:
        """Adds a loss above the limit that is right, so that losses like it are not jumps."""
        self._losses.append(loss)
        self._move()

    def _move(self) -> None:
        highest, lowest = max(self._losses), min(self._losses)
        self.limit = min(NO_LIMIT, highest + 8.0 * (highest - lowest) + abs(highest))


@dataclasses.dataclass(frozen=True)
class _Bad:
    """A step that was skipped."""

    source: Callable[[], Any]  #: returns the same batch once more, as the step takes it
    batch: Any
    logs: Any  #: what the library's function returned
    observed: StepObservation
    #: what the variables beside the trained ones held before and after it: of the loss scale, others
    before: tuple[Sequence[Any], Sequence[Any]]
    after: tuple[Sequence[Any], Sequence[Any]]


class Watched:
    """A model's train function that is watched.

    ``make`` makes the library's own again, ``optimizer`` is the model's, or its wrapper with a scaler, ``owner`` the
    class that has the library's ``train_step``, and ``settings`` returns those in force, ``None`` once amp_tf is off.
    """

    def __init__(
        self, make: Callable[[], Any], model: Any, optimizer: Any, owner: Any, settings: Callable[[], AmpConfig | None]
    ) -> None:
        self._make, self._model, self._optimizer, self._owner, self._settings = make, model, optimizer, owner, settings
        self._scaler = optimizer._scaler
        self._guard = Guard()
        self._band = LossBand()
        memory, flags = self._scaler.memory, self._scaler.nonfinite_variables.flags
        explaining = [variable for variable in (memory.last_skip, flags) if variable is not None]
        self._scaling = _handles((memory.scale, *memory.counters, *explaining))
        counter = getattr(model, "_train_counter", None)  # of tf_keras
        metrics = [variable for metric in model.metrics for variable in metric.variables]
        self._others = _handles((*([] if counter is None else [counter]), *model.non_trainable_variables, *metrics))
        self._layers: list[Any] = []  # of the step
        self._number = 0  # of the batch, from 1 on
        self._step = self._make_step()
        self._late: list[Any] = []  # those of the other variables that the step does not read as it begins
        self._in_float32: Any = None  # the step in float32, once it was needed
        self._unwatched: Any = None  # the library's own function, once it is known that the step cannot be watched

    def __call__(self, iterator: Any) -> Any:
        if self._unwatched is not None:
            return self._unwatched(iterator)
        source = iterator if isinstance(iterator, tf.data.Iterator) else next(iterator)
        if not self._number:
            try:
                why = self.why_not(source)
            except Exception as error:  # perhaps the user's own, which then comes again
                why = f"its step was not traced ({type(error).__name__}: {error})"
            if why:
                reverts.tell_not_watched(self._model.name, why)
                self._unwatched = self._make()
                return self._unwatched(source if source is iterator else iter((source,)))
        return self._train(source)

    def why_not(self, source: Any) -> str:
        """Traces the step; returns why it cannot be done again exactly, empty if it can.

        It finds the variables that the step writes and nobody named, such as metrics' that are made in the first step:
        their values are read before each step, but not by its own function.
        """
        graph = self._step.get_concrete_function(source).graph
        nodes = graph.as_graph_def()
        if random := keeping_state(nodes):
            return f"{random[0]} draws random numbers whose state is in the graph"
        if python := by_python(nodes):
            return f"{python[0]} calls Python"
        optimizer = getattr(self._optimizer, "inner_optimizer", self._optimizer)
        of_optimizer = optimizer.variables() if callable(optimizer.variables) else optimizer.variables
        known = _handles((*self._model.trainable_variables, *of_optimizer, self._guard.limit, self._guard.seen))
        ours = {id(handle) for handle in (*known, *self._scaling, *self._others)}
        found = [outer for outer, _ in graph.captures if outer.dtype == tf.resource and id(outer) not in ours]
        if strange := [handle for handle in found if type_of(handle) is None]:
            return f"it uses {strange[0].dtype.name}s that are not variables, such as lookup tables"
        self._late = found
        return ""

    def _make_step(self) -> Any:
        """A function of an iterator or a batch to logs, other variables before, what was seen, and the batch."""
        original, others = self._make(), list(self._others)

        @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
        def step(source: Any) -> Any:
            before = _read(self._scaling), _read(others)
            batch = next(source) if isinstance(source, tf.data.Iterator) else source
            with self._guarded():
                logs = original(Repeated(batch))
            return logs, before, self._guard.seen.read_value(), batch

        made = tf.function(step, reduce_retracing=True)
        made._omit_frequent_tracing_warning = True  # each model and each revert has one of its own
        return made

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        """Lets a trace see the optimizer that has the guard, past the libraries' own tracking of attributes."""
        attributes = vars(self._model)
        users, attributes["optimizer"], self._scaler.guard = attributes["optimizer"], self._optimizer, self._guard
        try:
            yield
        finally:
            attributes["optimizer"], self._scaler.guard = users, None

    def _train(self, source: Any) -> Any:
        graphs = set(map(id, reports.of_process().graphs)) if not self._number else set()
        late = _read(self._late)
        logs, (of_scale, others), seen, batch = self._step(source)
        if not self._number:
            new = (graph for graph in reports.of_process().graphs if graph.converted and id(graph) not in graphs)
            layers = (layer for graph in new for layer in graph.painting.obstacles.locked.layers)
            self._layers = list({layer.path: layer for layer in layers}.values())
        self._number += 1
        reverts.counts.watched += 1
        observed = StepObservation.of(seen)
        if observed.is_fine(self._band.limit):
            if self._band.note(observed.loss):
                self._guard.limit.assign(self._band.limit)
            return logs
        config = self._settings()
        if config is None:
            return logs
        after = _read(self._scaling), _read([*self._others, *self._late])
        bad = _Bad(_once_more(batch, source), batch, logs, observed, (of_scale, [*others, *late]), after)
        try:
            return self._look(bad, config)
        except Exception as error:  # whatever the user's code, Keras or TensorFlow raise
            reverts.counts.lost += 1
            fix = "Training goes on without that step; please report this"
            notices.warn_of_error(
                "watchdog.failed", "it failed at a step that was skipped", error, where=reverts.WHERE, fix=fix
            )
            return self._skipped(bad)
        finally:
            self._guard.limit.assign(self._band.limit)

    def _look(self, bad: _Bad, config: AmpConfig) -> Any:
        if self._is_scale_too_high(bad):
            self._restore(bad.after)
            return bad.logs
        self._restore(bad.before)
        with _in_float32(config):
            if self._in_float32 is None:
                self._in_float32 = self._make_step()
            truth = self._held(self._in_float32, bad)
        self._restore(bad.before)
        if not truth.is_finite:
            named = zip(_PLACES, bad.batch if isinstance(bad.batch, (tuple, list)) else (bad.batch,), strict=False)
            where = " and ".join(name for name, place in named if any(map(_has_nonfinite, tf.nest.flatten(place))))
            why = f"its {where} holds nan or inf" if where else "its data is finite, so the model itself diverges there"
            reverts.tell_bad_data(self._number, why)
            return self._skipped(bad)
        most = _LOST * abs(truth.loss)
        if bad.observed.is_finite and abs(bad.observed.loss - truth.loss) <= most:
            self._guard.limit.assign(NO_LIMIT)  # the loss jumps in float32 as well
            logs, _, seen, _ = self._step(bad.source())
            self._band.widen(StepObservation.of(seen).loss)
            return logs
        return self._repair(bad, truth, config)

    def _is_scale_too_high(self, bad: _Bad) -> bool:
        """Whether gradients are finite with the lowest loss scale: loss scaling goes there by itself."""
        schedule, observed = self._scaler.schedule, bad.observed
        may_be = observed.is_nonfinite and math.isfinite(observed.loss)
        if not (may_be and isinstance(schedule, DynamicScale)):
            return False
        self._restore(bad.before)
        self._scaler.memory.assign_scale(schedule.min_scale)
        return not self._held(self._step, bad).is_nonfinite

    def _held(self, step: Any, bad: _Bad) -> StepObservation:
        self._guard.limit.assign(HOLD)  # it writes no trained variable
        return StepObservation.of(step(bad.source())[2])

    def _skipped(self, bad: _Bad) -> Any:
        """Leaves a step out: no number that it made is kept, but counters and the loss scale go on."""
        pairs = zip(bad.before[1], bad.after[1], strict=True)
        self._restore((bad.after[0], [before if before.dtype.is_floating else after for before, after in pairs]))
        known = self._model.get_metrics_result()
        is_of_metrics = isinstance(bad.logs, dict) and bad.logs.keys() == known.keys()
        return known if is_of_metrics else bad.logs

    def _repair(self, bad: _Bad, truth: StepObservation, config: AmpConfig) -> Any:
        limit = max(self._band.limit, truth.loss + _LOST * abs(truth.loss))
        batch = without_optionals(bad.batch)
        while reverts.counts.reverts < reverts.MOST:
            is_finite = bad.observed.is_finite
            fault = reverts.find_fault(self._model, batch, self._owner, config, self._layers, is_finite=is_finite)
            if not fault.decisions:
                break
            reverts.revert(fault, config)
            # Functions are traced again, whose graphs are converted by the lock as it is now.
            self._others, self._late = [*self._others, *self._late], []
            self._step = self._make_step()
            for name in ("test_function", "predict_function"):
                setattr(self._model, name, None)
            logs, loss = self._make_again(bad, limit)
            reverts.tell_revert(self._number, fault, loss, truth.loss)
            if loss is not None:
                self._band.note(loss)
                return logs
            self._restore(bad.before)
        reverts.tell_lost(self._number)
        return self._skipped(bad)

    def _make_again(self, bad: _Bad, limit: float) -> tuple[Any, float | None]:
        """The logs and the loss of the step, made again from the same state; no loss where it goes wrong again."""
        self._guard.limit.assign(limit)
        _put_back(self._scaling[:1], bad.before[0])
        for _ in range(_ATTEMPTS):
            _put_back(self._scaling[1:], bad.before[0][1:])  # it counts once, at whatever scale it is made
            _put_back([*self._others, *self._late], bad.before[1])
            logs, _, seen, _ = self._step(bad.source())
            observed = StepObservation.of(seen)
            if observed.is_fine(limit):
                return logs, observed.loss
            if not math.isfinite(observed.loss) or not isinstance(self._scaler.schedule, DynamicScale):
                break  # else the loss scale was lowered by that
        return None, None

    def _restore(self, values: tuple[Sequence[Any], Sequence[Any]]) -> None:
        _put_back(self._scaling, values[0])
        _put_back([*self._others, *self._late], values[1])


@contextlib.contextmanager
def _in_float32(config: AmpConfig) -> Iterator[None]:
    """Converts nothing in functions that are traced and run for the first time in the block, on any thread.

    ``amp_tf.scope("float32")`` would not do: TensorFlow's remapper makes new nodes, which are in no scope.
    """
    kept = dataclasses.replace(config, keep_float32=_ALL)
    for hook in (plugin, xla):
        hook.install(kept)
    try:
        yield
    finally:
        for hook in (plugin, xla):
            hook.install(config)


def _once_more(batch: Any, source: Any) -> Callable[[], Any]:
    """Makes what a step takes to get a batch again: an iterator like its own, for which it is not traced again."""
    if not isinstance(source, tf.data.Iterator):
        return lambda: batch
    dataset = generated(lambda: itertools.repeat(batch), source.element_spec)
    return lambda: iter(dataset)


def _has_nonfinite(leaf: Any) -> bool:
    array = np.asarray(leaf.numpy() if hasattr(leaf, "numpy") else leaf)
    return array.dtype.kind in "fc" and not np.isfinite(array).all()


def _handles(variables: Iterable[Any]) -> list[Any]:
    return [(variable if isinstance(variable, tf.Variable) else variable.value).handle for variable in variables]


def _read(handles: Sequence[Any]) -> list[Any]:
    """The values of variables. In a graph this copies nothing: a variable that is written then gets other memory."""
    return [tf.raw_ops.ReadVariableOp(resource=handle, dtype=type_of(handle)) for handle in handles]


def _put_back(handles: Sequence[Any], values: Sequence[Any]) -> None:
    for handle, value in zip(handles, values, strict=False):
        tf.raw_ops.AssignVariableOp(resource=handle, value=value)
