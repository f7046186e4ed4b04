"""A train function that looks at each step before the next one, and does a step again that went wrong in 16 bit.

It runs the library's own function for one batch inside of a function that also returns the batch, what the step wrote
besides and what the guard saw. The batch is taken from the iterator in there, as the library itself does, so that the
graph is the one without the watchdog: of a batch that is an argument, more is known to be exact, and less is 16 bit.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from amp_tf.config import AmpConfig
from amp_tf.hooks.all_reduce import agreement
from amp_tf.hooks.watchdog import faults, reverts, written
from amp_tf.hooks.watchdog.band import LossBand
from amp_tf.hooks.watchdog.batches import ITERATORS, Given, find_nonfinite, once_more, parts_of
from amp_tf.hooks.watchdog.conversion import in_float32
from amp_tf.loss_scaling.guard import HOLD, NO_LIMIT, Guard, Sight
from amp_tf.loss_scaling.schedule import DynamicScale

_LOWER = 2.0**-10  # a loss scale that is lower by this factor is no longer the reason
_ROW = 3  # skipped steps in a row, after which the loss scale is no longer thought to be the reason
_LOST = 0.5  # of float32's loss: one that is further off has not one bit right
_ATTEMPTS = 6  # from the largest loss scale down to its floor


@dataclasses.dataclass(frozen=True)
class _Bad:
    """A step that was skipped.

    Attributes:
        source: returns the same batch once more, as the step takes it.
        batch: its batch.
        logs: what the library's function returned.
        sight: what the guard saw.
        before, after: what the variables beside the trained ones held before and after it: of the loss scale, others.
    """

    source: Callable[[], Any]
    batch: Any
    logs: Any
    sight: Sight
    before: tuple[Sequence[Any], Sequence[Any]]
    after: tuple[Sequence[Any], Sequence[Any]]


class Watched:
    """A train function that is watched.

    Args:
        make: makes the library's train function anew, for one batch a call.
        model: whose it is.
        scaler: that of the model's optimizer; it has a guard.
        owner: the class that has the library's own ``train_step``.
        batches_a_call: how many batches one call takes.
        settings: returns the settings in force; ``None`` once amp_tf is off.
    """

    def __init__(
        self,
        make: Callable[[], Any],
        model: Any,
        scaler: Any,
        owner: Any,
        batches_a_call: int,
        settings: Callable[[], AmpConfig | None],
    ) -> None:
        self._make, self._model, self._scaler, self._owner = make, model, scaler, owner
        self._batches_a_call, self._settings = batches_a_call, settings
        self._guard: Guard = scaler.guard
        self._band = LossBand(NO_LIMIT)
        self._scaling = written.scaling_variables(scaler)
        # Workers agree in a condition on whether there is a batch, which TensorFlow makes of nodes that 16 bit may pass
        # through: a batch that is returned as well would be rounded.
        has_workers = model.distribute_strategy.extended._in_multi_worker_mode()
        self._iterators = tf.data.Iterator if has_workers else ITERATORS
        self._others = written.other_variables(model)
        self._number = 0  # of the batch, from 1 on
        self._step = self._make_step()
        self._read_late: Callable[[], list[Any]] = list
        self._in_float32: Any = None  # the step in float32, once it was needed

    def __call__(self, iterator: Any) -> Any:
        logs = None
        for place in range(self._batches_a_call):
            try:
                logs = self._train(iterator if isinstance(iterator, self._iterators) else next(iterator))
            except (StopIteration, tf.errors.OutOfRangeError):
                if not place:
                    raise
                break
        return logs

    def _make_step(self) -> Any:
        """A function of an iterator or a batch.

        It returns the library's logs, the values of other variables before the step, what was seen, and the batch.
        """
        original, others = self._make(), list(self._others)

        @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
        def step(source: Any) -> Any:
            before = written.read(self._scaling), written.read(others)
            batch = next(source) if isinstance(source, ITERATORS) else source
            logs = original(Given(batch))
            return logs, before, self._guard.seen.read_value(), batch

        return tf.function(step, reduce_retracing=True)

    def _train(self, source: Any) -> Any:
        late = self._read_late()
        logs, (of_scale, others), seen, batch = self._step(source)
        self._number += 1
        reverts.counts.watched += 1
        sight = Guard.read(seen)
        if self._number == 1:
            self._find_late_variables()
        if _is_fine(sight, self._band.limit):
            if self._band.note(sight.loss):
                self._guard.limit.assign(self._band.limit)
            return logs
        config = self._settings()
        if config is None:
            return logs
        after = written.read(self._scaling), written.read(self._others)
        bad = _Bad(once_more(batch, source), batch, logs, sight, (of_scale, [*others, *late]), after)
        try:
            return self._look(bad, config)
        except Exception as error:  # whatever the user's code, Keras or TensorFlow raise
            reverts.warn_of_failure(error)
            return self._skipped(bad)
        finally:
            self._guard.limit.assign(self._band.limit)

    def _find_late_variables(self) -> None:
        """Finds those that the first step made, such as metrics': its function does not read them as it begins."""
        known = set(map(id, self._others))
        late = [variable for variable in written.other_variables(self._model) if id(variable) not in known]
        if late:
            self._others += late
            self._read_late = tf.function(lambda: written.read(late), autograph=False)

    def _look(self, bad: _Bad, config: AmpConfig) -> Any:
        """Finds out why a step was skipped, and makes it if it can be made."""
        if len(bad.before[1]) < len(bad.after[1]):  # the first step made metrics, which were empty before it
            self._model.reset_metrics()
        if self._is_scale_too_high(bad):
            self._restore(*bad.after)
            return bad.logs
        self._restore(*bad.before)
        truth = self._truth(bad, config)
        self._restore(*bad.before)
        if not _is_finite(truth):
            return self._leave_out(bad)
        if _is_finite(bad.sight) and not _is_other(bad.sight.loss, truth.loss):
            return self._make_unlimited(bad)
        return self._mend(bad, truth, config)

    def _is_scale_too_high(self, bad: _Bad) -> bool:
        """Whether gradients are finite with a lower loss scale, which loss scaling finds by itself."""
        schedule, memory = self._scaler.schedule, self._scaler.memory
        if not bad.sight.is_nonfinite or not math.isfinite(bad.sight.loss) or not isinstance(schedule, DynamicScale):
            return False
        if self._scaler.status().skipped_in_row > _ROW:
            return False
        self._restore(*bad.before)
        memory.assign_scale(max(bad.sight.scale * _LOWER, schedule.min_scale))
        return not self._held(self._step, bad).is_nonfinite

    def _truth(self, bad: _Bad, config: AmpConfig) -> Sight:
        """What is seen of the same step in float32."""
        with in_float32(config):
            if self._in_float32 is None:
                self._in_float32 = self._make_step()
            return self._held(self._in_float32, bad)

    def _held(self, step: Any, bad: _Bad) -> Sight:
        """What is seen of a step that writes no trained variable."""
        self._guard.limit.assign(HOLD)
        return Guard.read(step(bad.source())[2])

    def _leave_out(self, bad: _Bad) -> Any:
        found = agreement.gather(find_nonfinite(parts_of(bad.batch)))
        where = " and ".join(dict.fromkeys(filter(None, found)))
        why = f"its {where} holds nan or inf" if where else "its data is finite, so the model itself diverges there"
        reverts.tell_bad_data(self._number, why)
        return self._skipped(bad)

    def _skipped(self, bad: _Bad) -> Any:
        """Leaves a step out: no number that it made is kept, but counters and the loss scale go on."""
        kept = zip(self._others, bad.before[1], bad.after[1], strict=False)
        self._restore(bad.after[0], [before if v.dtype.is_floating else after for v, before, after in kept])
        known = self._model.get_metrics_result()
        is_of_metrics = isinstance(bad.logs, dict) and bad.logs.keys() == known.keys()
        return known if is_of_metrics else bad.logs

    def _make_unlimited(self, bad: _Bad) -> Any:
        """Makes a step whose loss jumps in float32 as well."""
        self._guard.limit.assign(NO_LIMIT)
        logs, _, seen, _ = self._step(bad.source())
        self._band.widen(Guard.read(seen).loss)
        return logs

    def _mend(self, bad: _Bad, truth: Sight, config: AmpConfig) -> Any:
        """Reverts what is at fault and makes the step again, until it is fine."""
        limit = max(self._band.limit, truth.loss + _LOST * abs(truth.loss))
        while reverts.may_revert():
            fault = self._find_fault(bad, config)
            if not fault.decisions:
                break
            reverts.revert(fault, config)
            self._trace_anew()
            done = self._make_again(bad, limit)
            if done is not None:
                logs, loss = done
                self._band.note(loss)
                reverts.tell_revert(self._number, fault, loss, truth.loss)
                return logs
            self._restore(*bad.before)
        reverts.tell_lost(self._number)
        return self._skipped(bad)

    def _find_fault(self, bad: _Bad, config: AmpConfig) -> faults.Fault:
        """The fault of all workers together, by each worker's part of the batch."""
        # Before the workers meet: after that another one may have written the file, if they share it.
        known = {one.name for one in config.read_lock().decisions}
        parts = parts_of(bad.batch)
        mine = faults.find_fault(self._model, parts, self._owner, config, _is_finite(bad.sight))
        found = agreement.gather(json.dumps(mine.to_plain()))
        fault = faults.together([faults.Fault.of_plain(json.loads(text)) for text in found])
        if any(one.name not in known for one in fault.decisions):
            return fault
        return faults.everything(known, mine.why)

    def _trace_anew(self) -> None:
        """Makes functions whose graphs are converted by the lock file as it is now."""
        self._step, self._read_late = self._make_step(), list
        for name in ("test_function", "predict_function"):
            setattr(self._model, name, None)

    def _make_again(self, bad: _Bad, limit: float) -> tuple[Any, float] | None:
        """The logs and the loss of the step, made again from the same state; ``None`` where it goes wrong again."""
        self._guard.limit.assign(limit)
        written.put_back(self._scaling, bad.before[0])
        for _ in range(_ATTEMPTS):
            written.put_back(self._others, bad.before[1])
            logs, _, seen, _ = self._step(bad.source())
            sight = Guard.read(seen)
            if _is_fine(sight, limit):
                return logs, sight.loss
            if not math.isfinite(sight.loss) or not isinstance(self._scaler.schedule, DynamicScale):
                break  # else the loss scale was lowered by that
        return None

    def _restore(self, of_scale: Sequence[Any], others: Sequence[Any]) -> None:
        written.put_back(self._scaling, of_scale)
        written.put_back(self._others, others)


def _is_finite(sight: Sight) -> bool:
    return math.isfinite(sight.loss) and not sight.is_nonfinite


def _is_fine(sight: Sight, limit: float) -> bool:
    """Whether the step was made."""
    return not sight.is_nonfinite and sight.loss <= limit


def _is_other(loss: float, truth: float) -> bool:
    """Whether a loss has not one bit of float32's."""
    return abs(loss - truth) > _LOST * abs(truth)
