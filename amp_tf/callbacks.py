"""Callbacks for Keras 3 and tf_keras. Importing this module imports neither.

:class:`LossScaleMonitor` is not a subclass of either library's ``Callback``: it has all of its
methods, which is what both libraries ask for, so one class serves both.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from typing import Any

from absl import logging

from amp_tf.loss_scaling import ledger
from amp_tf.loss_scaling.ledger import DEFAULT_MAX_SKIPS, Status
from amp_tf.values import check_choice, check_count

_MIN_SECONDS = 20.0  # between two log lines on skipped steps


class LossScaleMonitor:
    """Logs the loss scale and the skipped steps, and raises when training is stuck.

    Adds ``loss_scale`` and ``skipped_steps`` to the logs, so that the progress bar, ``History``,
    ``CSVLogger`` and ``TensorBoard`` show them; put it before them in the list of callbacks. Logs
    skipped steps, a few lines a minute at most. It does nothing where an optimizer has no loss
    scale. If the training step scales no loss, it only logs, or raises. (tf_keras' progress bar
    shows the epoch's mean of all logs that are not metrics; the other callbacks show the last
    value.)

    Args:
        max_skips: how many skipped steps in a row are too many.
        action: ``"raise"`` ends training with a
            :class:`~amp_tf.loss_scaling.ledger.LossScaleError`, ``"log"`` logs its text once for
            each such run of steps. The text tells an overflow from a NaN in data or loss, and names
            the variables.
        every: looks at the optimizer after every so many batches; each look waits for the device.
        in_logs: whether to add ``loss_scale`` and ``skipped_steps`` to the logs. The monitor that
            is added automatically does not, so that the history of an unchanged program stays the
            same.

    Raises:
        ConfigError: a value is not valid.
    """

    model: Any = None
    params: Any = None
    _supports_tf_logs = False

    def __init__(
        self,
        max_skips: int = DEFAULT_MAX_SKIPS,
        action: str = "raise",
        every: int = 10,
        in_logs: bool = True,
    ) -> None:
        check_choice(action, ("raise", "log"), where="LossScaleMonitor.action")
        check_count(max_skips, where="LossScaleMonitor.max_skips")
        check_count(every, where="LossScaleMonitor.every")
        self.max_skips = max_skips
        self.action = action
        self.every = every
        self.in_logs = in_logs
        self._batches = 0
        self._shown: Status | None = None  # that of the last log line
        self._now: Status | None = None
        self._next_line = 0.0
        self._has_complained = False

    def set_model(self, model: Any) -> None:
        self.model = model

    def set_params(self, params: Any) -> None:
        self.params = params

    def on_train_begin(self, logs: Any = None) -> None:
        """Called by Keras: remembers where the counters start."""
        self._now = None
        self._shown = None
        if has_loss_scale(self.model):
            self._shown = self.model.optimizer.status()
        self._has_complained = False

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Called by Keras: looks at the optimizer, if it is time, and adds to the logs."""
        self._batches += 1
        if self._batches % self.every == 0:
            self.look()
        self._add_to(logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Called by Keras: looks at the optimizer and adds to the logs."""
        self.look()
        self._add_to(logs)

    def on_train_end(self, logs: Any = None) -> None:
        """Called by Keras: logs what the rate limit held back."""
        self._next_line = 0.0
        self.look()

    def look(self, optimizer: Any = None) -> Status | None:
        """Reads the state, logs it, and raises if training is stuck.

        Custom loops call this every few steps.

        Args:
            optimizer: the wrapper; the model's optimizer, if left out.

        Returns:
            The state, ``None`` where there is no loss scale.

        Raises:
            LossScaleError: training is stuck and ``action`` is ``"raise"``.
        """
        looked_at = optimizer
        name = ""
        if optimizer is None:
            looked_at = getattr(self.model, "optimizer", None)
            name = getattr(self.model, "name", "")
        scaler = _scaler_of(looked_at)
        if scaler is None:
            return None
        now: Status = looked_at.status()
        if optimizer is not None or scaler.calls.is_used:
            self._now = now
        elif now.skipped:
            now = dataclasses.replace(now, scales_loss=False)
        else:
            return None
        label = ledger.note_look(scaler.number, now, name)
        # Log what was skipped since the last line.
        before = self._shown or Status(scale=now.scale)
        if now.skipped < before.skipped:  # another optimizer, or an older checkpoint
            before = now
            self._shown = now
        if now.skipped > before.skipped and time.monotonic() >= self._next_line:
            where = label and f"{label}: "
            logging.warning("amp_tf: %s%s", where, ledger.describe_backoff(before, now))
            self._next_line = time.monotonic() + _MIN_SECONDS
            self._shown = now
        self._judge(now, label)
        return now

    def _judge(self, now: Status, label: str) -> None:
        trouble = ledger.find_trouble(now, self.max_skips, label)
        if trouble is None:
            self._has_complained = self._has_complained and now.skipped_in_row > 0
            return
        if self.action == "raise":
            raise trouble
        if not self._has_complained:
            logging.error("amp_tf: %s", trouble)
            self._has_complained = True

    def _add_to(self, logs: Any) -> None:
        if self.in_logs and self._now is not None and isinstance(logs, dict):
            logs["loss_scale"] = self._now.scale
            logs["skipped_steps"] = float(self._now.skipped)

    def _implements_train_batch_hooks(self) -> bool:
        return True

    def _implements_test_batch_hooks(self) -> bool:
        return False

    _implements_predict_batch_hooks = _implements_test_batch_hooks


def has_loss_scale(model: Any) -> bool:
    """Tells whether a model's optimizer is one of amp_tf's wrappers.

    Other optimizers may also have a ``status``.
    """
    return _scaler_of(getattr(model, "optimizer", None)) is not None


def _scaler_of(optimizer: Any) -> Any:
    """Returns the scaler of a wrapped optimizer or of a ``LossScaler``, else ``None``."""
    for base in type(optimizer).__mro__:
        if base.__module__.startswith("amp_tf.loss_scaling."):
            return optimizer._scaler
    return None


def _ignore(self: LossScaleMonitor, *args: Any, **kwargs: Any) -> None:
    """Called by Keras; there is nothing to do."""


_OF_PHASES = itertools.product(
    ("train_", "test_", "predict_"), ("batch_begin", "batch_end", "begin", "end")
)
for _name in ("batch_begin", "batch_end", "epoch_begin", *map("".join, _OF_PHASES)):
    if f"on_{_name}" not in vars(LossScaleMonitor):
        setattr(LossScaleMonitor, f"on_{_name}", _ignore)
