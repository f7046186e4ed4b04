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
from typing import Any

import tensorflow as tf

from amp_tf.loss_scaling import kept


def together(decide: Callable[[Any, Any, Any], Any], found: Any, values: Any) -> Any:
    """Makes one decision for all replicas.

    Args:
        decide: called with the strategy, or ``None`` where each replica decides alone, with
            ``found`` of all replicas, and with ``values``.
        found: a boolean vector, of this replica; of all it is true where that of any is.
        values: a nest: this replica's gradients and what else its step needs.

    Returns what ``decide`` returns.
    """

    def decide_across(strategy: Any, numbers: Any, values: Any) -> Any:
        return decide(strategy, _sum(strategy, numbers) > 0, values)

    numbers = tf.cast(found, tf.float32)  # which every strategy can sum over replicas
    if tf.__internal__.distribute.strategy_supports_no_merge_call():
        return decide(None, _sum(None, numbers) > 0, values)
    context = tf.distribute.get_replica_context()
    return context.merge_call(decide_across, args=(numbers, values))


def choose_together(predicate: Any, then: kept.Branch, otherwise: kept.Branch) -> None:
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
    """Calls a function with its ``values`` on each replica, inside of a branch."""
    if strategy is None:
        return call(values)
    return strategy.extended.call_for_each_replica(call, args=(values,))


def local_parts(strategy: Any, results: Any) -> list[Any]:
    """Returns the parts of a nest of results of :func:`on_each`, of all replicas."""
    parts: list[Any] = []
    for part in tf.nest.flatten(results):
        if strategy is None:
            parts.append(part)
        else:
            parts += strategy.experimental_local_results(part)
    return parts


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

    It is called inside of a branch.
    """
    return _sum(strategy, on_each(strategy, compute, values))


def _sum(strategy: Any, mine: Any) -> Any:
    if strategy is not None:
        return strategy.reduce(tf.distribute.ReduceOp.SUM, mine, axis=None)
    context = tf.distribute.get_replica_context()
    if context is not None and context.num_replicas_in_sync > 1:
        return context.all_reduce(tf.distribute.ReduceOp.SUM, mine)
    return mine


def branch(action: kept.Branch, taken: bool) -> kept.Branch:
    """A branch of the condition: it returns ``taken`` once the operations of its action ran."""

    def run() -> Any:
        with tf.control_dependencies(operations_of(action())):
            return tf.constant(taken)

    return run


def operations_of(results: Any) -> list[Any]:
    """The operations in a nest that the graph has to run; in eager code none."""
    if tf.executing_eagerly():
        return []
    graph = tf.compat.v1.get_default_graph()
    operations = []
    for part in tf.nest.flatten(results):
        operation = getattr(part, "op", part)  # of an assignment, the op that writes
        if isinstance(operation, tf.Operation) and operation.graph is graph:
            operations.append(operation)
    return operations
