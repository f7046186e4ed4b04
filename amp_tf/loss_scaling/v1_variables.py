"""The scale and its counters in TF1 graphs, under TensorFlow's names and with its interface."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from amp_tf.errors import ConfigError
from amp_tf.loss_scaling.schedule import Schedule


class ScaleVariables(tf.compat.v1.mixed_precision.LossScale):  # type: ignore[misc]
    """The scale and its counters as variables; the first two are named as TensorFlow names them in checkpoints."""

    def __init__(self, schedule: Schedule) -> None:
        super().__init__()
        self.schedule = schedule
        self.scale = self._add_weight("current_loss_scale", schedule.initial_state().scale, tf.float32)
        self.good_steps = self._add_weight("good_steps", 0, tf.int64)
        # skipped, skipped_in_row, steps, last_change and nonfinite_losses of State
        self.counters = self._add_weight("loss_scale_counters", [0] * 5, tf.int64)

    def __call__(self) -> Any:
        return self.read(self.scale)

    def read(self, variable: Any) -> Any:
        """The value of a variable; its initial value in a session that has not initialized it.

        A program may create its initializer before its optimizer, or initialize only what it trains, which without loss
        scaling is enough for optimizers without slots.
        """
        if tf.compat.v1.executing_eagerly_outside_functions() or tf.distribute.has_strategy():
            return tf.convert_to_tensor(variable)
        first = self.schedule.initial_state().scale if variable is self.scale else [0] * 5
        first = 0 if variable is self.good_steps else first
        return tf.cond(variable.is_initialized(), variable.read_value, lambda: tf.constant(first, variable.dtype))

    def update(self, grads: Any) -> Any:
        """Refused: the wrapper decides on scale and step in one condition.

        Raises:
            ConfigError: always; TensorFlow's own wrapper calls it, so this scale was passed to that one.
        """
        raise ConfigError(
            "this loss scale works only inside amp_tf's own wrapper",
            where="tf.compat.v1 loss scale",
            fix="Wrap the optimizer with amp_tf.LossScaleOptimizer",
        )

    def get_config(self) -> dict[str, Any]:
        """The initial state, for TensorFlow's interface."""
        return {"initial_loss_scale": self.schedule.initial_state().scale}
