"""Lets somebody outside hold a training's steps back: the host's side of the decision to make a step or to skip it.

A scaler with a guard skips what it would skip without one, and besides a step whose loss is above a limit. It writes
down what it saw, so that the host may look at the batch before the next step, with all trained variables as they were.
Nothing more is computed than a sum of three numbers: whether gradients are finite is asked in any case.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from amp_tf.loss_scaling.replicas import Nonfinite

NO_LIMIT = float(tf.float32.max)  #: every finite loss is below it
HOLD = float("-inf")  #: no loss is below it: whatever the step computes, variables stay as they are


class StepObservation(NamedTuple):
    """What a guard saw of a step.

    Attributes:
        loss: the loss, summed over replicas as the strategy scales it; 0 where the step scales none.
        is_nonfinite: whether any gradient was not finite, or any sum or norm of them that the optimizer needs.
        scale: the loss scale with which it was made.
    """

    loss: float
    is_nonfinite: bool
    scale: float


class Guard:
    """Two variables beside a scaler's state; neither is in checkpoints.

    To be made in the scope of the strategy that trains, before the step is traced.

    Attributes:
        limit: the loss above which a step is skipped; a float32 scalar variable.
        seen: loss, whether gradients are not finite, and the loss scale; a float32 vector variable.
    """

    def __init__(self) -> None:
        with tf.init_scope():
            self.limit = tf.Variable(NO_LIMIT, trainable=False, dtype=tf.float32, name="loss_limit")
            self.seen = tf.Variable([0.0, 0.0, 0.0], trainable=False, name="step_seen")

    def judge(self, found: Nonfinite, scale: Any) -> Any:
        """Whether to skip a step; writes down what is known of it.

        Args:
            found: agreed by all replicas.
            scale: the loss scale; a float32 scalar tensor.

        Returns:
            A boolean scalar tensor.
        """
        is_nonfinite = tf.reduce_any(found.gradients)
        facts = tf.stack([found.value, tf.cast(is_nonfinite, tf.float32), scale])
        self.seen.assign(facts, read_value=False)
        return tf.logical_or(is_nonfinite, tf.logical_not(found.value <= self.limit))  # nan is not below

    @staticmethod
    def read(seen: Any) -> StepObservation:
        """What a value of ``seen`` says. Waits for the device."""
        loss, is_nonfinite, scale = seen.numpy().tolist()
        return StepObservation(loss, bool(is_nonfinite), scale)
