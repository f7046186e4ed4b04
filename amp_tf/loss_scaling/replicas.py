"""Makes one decision, to apply a step or to skip it, for all replicas.

Where replicas meet in ``merge_call`` (MirroredStrategy, MultiWorkerMirroredStrategy on CPUs), a condition in a replica
must not contain a ``merge_call``. So the condition is in the cross-replica context, and each branch calls the replicas
anew.

A step that cannot be built inside a condition gets zeros in place of nonfinite gradients. The step is built in the name
scope around the condition, because checkpoints know variables by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

NO_LIMIT = float(tf.float32.max)  #: every finite loss is below it
HOLD = float("-inf")  #: no loss is below it: whatever the step computes, variables stay as they are


class Nonfinite(NamedTuple):
    """What is nonfinite in a step."""

    gradients: Any  #: a boolean vector, an entry for each gradient. Any of them skips the step
    loss: Any  #: a boolean scalar; it only explains
    value: Any = 0.0  #: the loss itself, a float32 scalar, where a guard asks for it


class StepObservation(NamedTuple):
    """What a guard saw of a step."""

    loss: float  #: summed over replicas as the strategy scales it; 0 where the step scales none
    is_nonfinite: bool  #: any gradient, or any sum or norm of them that the optimizer needs
    scale: float  #: the loss scale with which it was made


class Guard:
    """Lets somebody outside hold a training's steps back: two variables beside a scaler's state, in no checkpoint.

    A scaler with a guard skips what it would skip without one, and besides a step whose loss is above a limit. It
    writes down what it saw, so that the host may look at the batch before the next step, with all trained variables as
    they were. To be made in the scope of the strategy that trains, before the step is traced.

    Attributes:
        limit: the loss above which a step is skipped; a float32 scalar variable.
        seen: loss, whether gradients are not finite, and the loss scale; a float32 vector variable.
    """

    def __init__(self) -> None:
        with tf.init_scope():
            self.limit = tf.Variable(NO_LIMIT, trainable=False, dtype=tf.float32, name="loss_limit")
            self.seen = tf.Variable([0.0, 0.0, 0.0], trainable=False, name="step_seen")

    def judge(self, found: Nonfinite, scale: Any) -> Any:
        """Whether to skip a step, of which all replicas agree what is nonfinite; writes down what is known of it."""
        is_nonfinite = tf.reduce_any(found.gradients)
        facts = tf.stack([found.value, tf.cast(is_nonfinite, tf.float32), scale])
        self.seen.assign(facts, read_value=False)
        return tf.logical_or(is_nonfinite, tf.logical_not(found.value <= self.limit))  # nan is not below

    @staticmethod
    def read(seen: Any) -> StepObservation:
        """What a value of ``seen`` says. Waits for the device."""
        loss, is_nonfinite, scale = seen.numpy().tolist()
        return StepObservation(loss, bool(is_nonfinite), scale)


def decide_together(
    found: Nonfinite,
    handed: Any,
    *,
    take: Callable[[Any, Any], Any],
    skip: Callable[[Any, Any, Nonfinite], Any],
    judge: Callable[[Nonfinite], Any],
) -> Any:
    """Takes the step unless something is nonfinite in any replica, else skips it, on all replicas alike.

    Args:
        found: the nonfinite gradients of this replica.
        handed: a nest of this replica's gradients and what else the step needs.
        take: called with ``handed`` and with the strategy, or ``None`` where each replica decides alone; may return
            operations, which a TF1 graph runs with the step.
        skip: called with the same and with the nonfinite gradients of any replica.
        judge: whether to skip, called with the nonfinite gradients of any replica.

    Returns:
        Whether the step was taken: a boolean scalar, in a TF1 graph the tensor to run.
    """
    if not tf.__internal__.distribute.strategy_supports_no_merge_call():
        arguments = (_as_numbers(found), handed, take, skip, judge)
        return tf.distribute.get_replica_context().merge_call(_decide_across, args=arguments)
    context = tf.distribute.get_replica_context()
    if context is not None and context.num_replicas_in_sync > 1:
        found = _from_numbers(context.all_reduce(tf.distribute.ReduceOp.SUM, _as_numbers(found)))
    return _decide(judge(found), lambda: take(None, handed), lambda: skip(None, handed, found))


def check_in_replica(method: str) -> None:
    """Refuses a step that is made for all replicas at once.

    Raises:
        ValueError: it is called in the cross-replica context.
    """
    if tf.distribute.in_cross_replica_context():
        raise ValueError(f"{method}() must be called in a replica context: from a function given to strategy.run().")


def count() -> float:
    """How many replicas sum their gradients."""
    return float(tf.distribute.get_strategy().num_replicas_in_sync)


def on_each(strategy: Any, call: Callable[[Any], Any], handed: Any) -> Any:
    """Calls a function on each replica, inside ``take`` or ``skip``; arguments as for :func:`sum_over`."""
    return call(handed) if strategy is None else strategy.extended.call_for_each_replica(call, args=(handed,))


def sum_over(strategy: Any, compute: Callable[[Any], Any], handed: Any) -> Any:
    """The sum over replicas of a tensor that each computes from its ``handed``, inside ``take`` or ``skip``."""
    if strategy is not None:
        return strategy.reduce(tf.distribute.ReduceOp.SUM, on_each(strategy, compute, handed), axis=None)
    context = tf.distribute.get_replica_context()
    if context is not None and context.num_replicas_in_sync > 1:
        return context.all_reduce(tf.distribute.ReduceOp.SUM, compute(handed))
    return compute(handed)


def _as_numbers(found: Nonfinite) -> Any:
    # float32 is what every strategy can sum over replicas
    flags = tf.cast(tf.concat([found.gradients, [found.loss]], axis=0), tf.float32)
    return tf.concat([flags, [found.value]], axis=0)


def _from_numbers(total: Any) -> Nonfinite:
    return Nonfinite(total[:-2] > 0, total[-2] > 0, total[-1])


def _decide_across(
    strategy: Any,
    numbers: Any,
    handed: Any,
    take: Callable[[Any, Any], Any],
    skip: Callable[[Any, Any, Nonfinite], Any],
    judge: Callable[[Nonfinite], Any],
) -> Any:
    # merge_call passes one value per replica; the callables are the same on all replicas.
    take, skip, judge = (strategy.experimental_local_results(f)[0] for f in (take, skip, judge))
    found = _from_numbers(strategy.reduce(tf.distribute.ReduceOp.SUM, numbers, axis=None))
    return _decide(judge(found), lambda: take(strategy, handed), lambda: skip(strategy, handed, found))


def _decide(is_bad: Any, take: Callable[[], Any], skip: Callable[[], Any]) -> Any:
    def branch(action: Callable[[], Any], taken: bool) -> Callable[[], Any]:
        def run() -> Any:
            operations = [op for op in tf.nest.flatten(action()) if op is not None]
            with tf.control_dependencies([] if tf.executing_eagerly() else operations):
                return tf.constant(taken)

        return run

    return tf.cond(is_bad, branch(skip, False), branch(take, True))
