"""Makes one decision, to apply a step or to skip it, for all replicas.

Replicas may meet in ``merge_call`` (MirroredStrategy, MultiWorkerMirroredStrategy on CPUs). A
condition in a replica must then not contain a ``merge_call``. So the condition is in the
cross-replica context, and each branch calls the replicas anew.

A step that cannot be built inside a condition gets zeros in place of nonfinite gradients. The step
is built in the name scope around the condition, because checkpoints know variables by name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import tensorflow as tf

from amp_tf.loss_scaling import kept


class Nonfinite(NamedTuple):
    """The nonfinite values of a step."""

    gradients: Any  #: a boolean vector, an entry for each gradient; any of them skips the step
    loss: Any  #: a boolean scalar; it only explains


def decide_together(
    found: Nonfinite,
    values: Any,
    *,
    take: Callable[[Any, Any], Any],
    skip: Callable[[Any, Any, Nonfinite], Any],
    owner: Any = None,
) -> Any:
    """Takes the step, or skips it if a gradient is nonfinite in any replica, on all alike.

    Args:
        found: the nonfinite values of this replica.
        values: a nest: this replica's gradients and what else its step needs.
        take: called with the strategy, or ``None`` where each replica decides alone, and with
            ``values``. It may return operations, which a TF1 graph runs with the step.
        skip: called with the same, and with the nonfinite values of all replicas.
        owner: the object whose method makes the step; tensors that it stores are readable after it
            (:mod:`amp_tf.loss_scaling.kept`).

    Returns whether the step was taken: a boolean scalar, in a TF1 graph the tensor to run.
    """

    def decide(strategy: Any, values: Any, found: Nonfinite) -> Any:
        taken = _branch(lambda: take(strategy, values), True)
        skipped = _branch(lambda: skip(strategy, values, found), False)
        is_finite = tf.logical_not(tf.reduce_any(found.gradients))
        return kept.choose(is_finite, taken, skipped, owner)

    def decide_across(strategy: Any, numbers: Any, values: Any) -> Any:
        total = strategy.reduce(tf.distribute.ReduceOp.SUM, numbers, axis=None)
        return decide(strategy, values, _from_numbers(total))

    context = tf.distribute.get_replica_context()
    if not tf.__internal__.distribute.strategy_supports_no_merge_call():
        return context.merge_call(decide_across, args=(_as_numbers(found), values))
    if context is not None and context.num_replicas_in_sync > 1:
        total = context.all_reduce(tf.distribute.ReduceOp.SUM, _as_numbers(found))
        found = _from_numbers(total)
    return decide(None, values, found)


def choose_together(predicate: Any, then: Callable[[], Any], otherwise: Callable[[], Any]) -> None:
    """Runs one of two branches, in which replicas may meet: all replicas run the same one.

    It is called in a replica. ``predicate`` is a boolean scalar tensor, equal on all replicas. The
    condition is built in the cross-replica context, and calls the branch on each replica anew,
    because a replica cannot meet others in ``merge_call`` inside a condition of its own.
    """
    is_alone = tf.__internal__.distribute.strategy_supports_no_merge_call()
    if is_alone or tf.executing_eagerly() or tf.distribute.in_cross_replica_context():
        tf.cond(predicate, then, otherwise)
        return

    def choose(strategy: Any, predicates: Any, then: Any, otherwise: Any) -> None:
        def run(branch: Any) -> Any:
            on_each(strategy, lambda call: call(), branch)
            return tf.constant(0)

        first = strategy.experimental_local_results(predicates)[0]
        tf.cond(first, lambda: run(then), lambda: run(otherwise))

    tf.distribute.get_replica_context().merge_call(choose, args=(predicate, then, otherwise))


def check_in_replica(method: str) -> None:
    """Refuses, by a ValueError, a step that is made for all replicas at once."""
    if tf.distribute.in_cross_replica_context():
        raise ValueError(
            f"{method}() must be called in a replica context: from a function given to "
            "strategy.run()."
        )


def count() -> float:
    """How many replicas sum their gradients."""
    return float(tf.distribute.get_strategy().num_replicas_in_sync)


def on_each(strategy: Any, call: Callable[[Any], Any], values: Any) -> Any:
    """Calls a function with its ``values`` on each replica, inside ``take`` or ``skip``."""
    if strategy is None:
        return call(values)
    return strategy.extended.call_for_each_replica(call, args=(values,))


@contextlib.contextmanager
def sums_of_one(optimizers: Iterable[Any], name: str) -> Iterator[None]:
    """Makes a library's all-reduce the identity in the block, where there is one replica.

    TensorFlow permanently registers a gradient for each sum over replicas, which holds the whole
    graph of the step: a search that creates and drops models would keep them all in memory.

    Args:
        optimizers: of Keras or tf_keras.
        name: the method that sums pairs of gradients and variables.
    """
    replaced = []
    for optimizer in optimizers:
        is_ours = name not in vars(optimizer) and is_of_keras(getattr(type(optimizer), name, None))
        if is_ours and count() == 1:
            replaced.append(optimizer)
            vars(optimizer)[name] = list  # called with pairs; set so that Keras does not track it
    try:
        yield
    finally:
        for optimizer in replaced:
            # Already gone if another thread traced the same optimizer's step.
            vars(optimizer).pop(name, None)


def is_of_keras(method: Any) -> bool:
    """Tells whether Keras or tf_keras itself defines a method; false for ``None``."""
    return getattr(method, "__module__", "").startswith(("keras.", "tf_keras."))


def sum_over(strategy: Any, compute: Callable[[Any], Any], values: Any) -> Any:
    """Sums over replicas a tensor that each computes from its ``values``.

    It is called inside ``take`` or ``skip``.
    """
    mine = on_each(strategy, compute, values)
    if strategy is not None:
        return strategy.reduce(tf.distribute.ReduceOp.SUM, mine, axis=None)
    context = tf.distribute.get_replica_context()
    if context is not None and context.num_replicas_in_sync > 1:
        return context.all_reduce(tf.distribute.ReduceOp.SUM, mine)
    return mine


def _as_numbers(found: Nonfinite) -> Any:
    # Every strategy can sum float32 over replicas.
    return tf.cast(tf.concat([found.gradients, [found.loss]], axis=0), tf.float32)


def _from_numbers(total: Any) -> Nonfinite:
    return Nonfinite(total[:-1] > 0, total[-1] > 0)


def _branch(action: Callable[[], Any], taken: bool) -> Callable[[], Any]:
    """A branch of the condition: it returns ``taken`` once the operations of its action ran."""

    def run() -> Any:
        operations = []
        for result in tf.nest.flatten(action()):
            if tf.is_tensor(result) or isinstance(result, tf.Operation):
                operations.append(result)
        if tf.executing_eagerly():
            return tf.constant(taken)
        with tf.control_dependencies(operations):
            return tf.constant(taken)

    return run
