"""One decision for all replicas, and the inner optimizer's step after it.

Where replicas meet in ``merge_call`` (MirroredStrategy, MultiWorkerMirroredStrategy on CPUs), no condition may hold a
``merge_call`` in a replica. So the condition stands in the cross-replica context, and a branch calls each replica anew.
Keras puts two more conditions into its step, for accumulated gradients and for averages; they have to be lifted out as
well, or TensorFlow refuses to trace the step.

What cannot be built inside a condition gets zeros for nonfinite gradients. The step is built in the name scope around
the condition, because checkpoints know variables by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from amp_tf.loss_scaling.usage import scaled_step


class Nonfinite(NamedTuple):
    """What is nonfinite in a step.

    Attributes:
        gradients: a boolean vector, an entry for each gradient. Any of them skips the step.
        loss: a boolean scalar; it only explains.
    """

    gradients: Any
    loss: Any


def decide_together(
    found: Nonfinite,
    handed: Any,
    *,
    take: Callable[[Any, Any], Any],
    skip: Callable[[Any, Any, Nonfinite], Any],
) -> Any:
    """Takes the step if no replica has a nonfinite gradient, else skips it, on all replicas alike.

    Args:
        found: what is nonfinite on this replica.
        handed: a nest of this replica's gradients and what else the step needs.
        take: called with the strategy, or ``None`` where this replica goes on by itself, and what was handed; may
            return operations, which a TF1 graph runs with the step.
        skip: called with the same and with what is nonfinite on any replica.

    Returns:
        Whether the step was taken: a boolean scalar, in a TF1 graph the tensor to run.
    """
    if not tf.__internal__.distribute.strategy_supports_no_merge_call():
        arguments = (_as_numbers(found), handed, take, skip)
        return tf.distribute.get_replica_context().merge_call(_decide_across, args=arguments)
    context = tf.distribute.get_replica_context()
    if context is not None and context.num_replicas_in_sync > 1:
        found = _from_numbers(context.all_reduce(tf.distribute.ReduceOp.SUM, _as_numbers(found)))
    return _decide(found, lambda: take(None, handed), lambda: skip(None, handed, found))


def count() -> float:
    """How many replicas sum their gradients."""
    return float(tf.distribute.get_strategy().num_replicas_in_sync)


def on_each(strategy: Any, call: Callable[[Any], Any], handed: Any) -> Any:
    """What a callable gives on each replica, inside ``take`` or ``skip``; arguments as for :func:`sum_over`."""
    return call(handed) if strategy is None else strategy.extended.call_for_each_replica(call, args=(handed,))


def sum_over(strategy: Any, compute: Callable[[Any], Any], handed: Any) -> Any:
    """The sum over replicas of a tensor that each computes, inside ``take`` or ``skip``.

    Args:
        strategy, handed: as these were called with them.
        compute: gives the tensor from what one replica handed.
    """
    if strategy is not None:
        return strategy.reduce(tf.distribute.ReduceOp.SUM, on_each(strategy, compute, handed), axis=None)
    context = tf.distribute.get_replica_context()
    if context is not None and context.num_replicas_in_sync > 1:
        return context.all_reduce(tf.distribute.ReduceOp.SUM, compute(handed))
    return compute(handed)


def apply_inner(strategy: Any, optimizer: Any, method: str, gradients: Any, variables: Sequence[Any]) -> None:
    """The inner Keras optimizer's step.

    Args:
        strategy: the strategy whose replicas make the step, called from the cross-replica context; ``None`` to make it
            right here.
        optimizer: a built Keras 3 optimizer.
        method: ``"apply"`` or ``"apply_gradients"``, as the loop called it: a user's optimizer may override either.
        gradients: one for each variable, or ``None``; with a strategy, per replica.
        variables: the variables.
    """

    from amp_tf.loss_scaling.keras3_inner import accumulated_steps

    def step(grads: Any) -> None:
        if method == "apply_gradients":
            optimizer.apply_gradients(list(zip(grads, variables, strict=True)))
        else:
            optimizer.apply(grads, variables)

    with scaled_step():
        if strategy is None:
            step(gradients)
            return
        each = strategy.extended.call_for_each_replica
        has_conditions = accumulated_steps(optimizer) or (optimizer.use_ema and optimizer.ema_overwrite_frequency)
        is_lifted = hasattr(optimizer, "_backend_update_step")  # Keras 3.0.0 itself has its condition outside replicas
        if has_conditions and is_lifted and not _overrides_the_step(optimizer):
            there = [i for i, gradient in enumerate(gradients) if gradient is not None]
            present, targets = [gradients[i] for i in there], [variables[i] for i in there]
            _apply_with_conditions_outside(each, optimizer, present, targets)
        else:
            each(step, args=(gradients,))


def _overrides_the_step(optimizer: Any) -> bool:
    """Whether a user's class has its own ``apply`` or ``apply_gradients``, which then must be called."""
    methods = (getattr(type(optimizer), name) for name in ("apply", "apply_gradients"))
    return not all(method.__module__.startswith("keras.") for method in methods)


def _as_numbers(found: Nonfinite) -> Any:
    # float32 is what every strategy can sum over replicas
    return tf.cast(tf.concat([found.gradients, [found.loss]], axis=0), tf.float32)


def _from_numbers(total: Any) -> Nonfinite:
    return Nonfinite(total[:-1] > 0, total[-1] > 0)


def _decide_across(
    strategy: Any,
    numbers: Any,
    handed: Any,
    take: Callable[[Any, Any], Any],
    skip: Callable[[Any, Any, Nonfinite], Any],
) -> Any:
    # merge_call hands over what each replica gave; the callables are the same on all of them, one is enough.
    take, skip = (strategy.experimental_local_results(f)[0] for f in (take, skip))
    found = _from_numbers(strategy.reduce(tf.distribute.ReduceOp.SUM, numbers, axis=None))
    return _decide(found, lambda: take(strategy, handed), lambda: skip(strategy, handed, found))


def _decide(found: Nonfinite, take: Callable[[], Any], skip: Callable[[], Any]) -> Any:
    def branch(action: Callable[[], Any], taken: bool) -> Callable[[], Any]:
        def run() -> Any:
            operations = [op for op in tf.nest.flatten(action()) if op is not None]
            with tf.control_dependencies([] if tf.executing_eagerly() else operations):
                return tf.constant(taken)

        return run

    return tf.cond(tf.reduce_any(found.gradients), branch(skip, False), branch(take, True))


def _apply_with_conditions_outside(each: Any, optimizer: Any, gradients: Any, variables: Sequence[Any]) -> None:
    """``keras.Optimizer.apply`` and ``_backend_apply_gradients`` of Keras 3, with their conditions taken here.

    Up to Keras 3.4 gradients are clipped and weights decay in every step, not when the sum of gradients is applied, and
    averages overwrite by the number of all steps.
    """
    from amp_tf.loss_scaling.keras3_inner import accumulated_steps, counter_of

    steps, counter = accumulated_steps(optimizer), counter_of(optimizer)
    iteration = tf.convert_to_tensor(counter.value)
    is_up_to_3_4 = not hasattr(optimizer, "_iterations")
    overwrite = getattr(optimizer, "_overwrite_variables_directly_with_gradients", None)  # since Keras 3.3

    def clip_and_decay(grads: Any, targets: Any) -> Any:
        grads = optimizer._clip_gradients(grads)
        optimizer._apply_weight_decay(targets)
        return grads

    def split(grads: Any) -> tuple[Any, Any, list[Any]]:
        grads, targets = overwrite(grads, variables) if overwrite else (grads, variables)
        if is_up_to_3_4:
            grads = clip_and_decay(grads, targets)
        if not steps:
            return grads, targets, []
        return grads, targets, [optimizer._accumulated_gradients[optimizer._get_variable_index(v)] for v in targets]

    def update(grads: Any) -> None:
        grads, targets, sums = split(grads)
        if steps:
            grads = [(gradient + total) / steps for gradient, total in zip(grads, sums, strict=True)]
        if not is_up_to_3_4:
            grads = clip_and_decay(grads, targets)
        optimizer._backend_update_step(grads, targets, optimizer.learning_rate)
        if steps:
            optimizer._backend_reset_gradient_accumulators()

    def accumulate(grads: Any) -> None:
        grads, _, sums = split(grads)
        optimizer._backend_increment_gradient_accumulators(grads, *([sums] if overwrite else []))

    def finish() -> None:
        for variable in variables:
            if getattr(variable, "constraint", None) is not None:
                variable.assign(variable.constraint(variable))
        counter.assign_add(1)

    if steps:
        _when(
            tf.equal((iteration + 1) % steps, 0),
            lambda: each(update, (gradients,)),
            lambda: each(accumulate, (gradients,)),
        )
    else:
        each(update, args=(gradients,))
    if optimizer.use_ema:
        trained = optimizer._trainable_variables
        each(lambda: optimizer._update_model_variables_moving_average(trained))
        if optimizer.ema_overwrite_frequency:
            updates = iteration // steps if steps and not is_up_to_3_4 else iteration
            _when(
                tf.equal((updates + 1) % optimizer.ema_overwrite_frequency, 0),
                lambda: optimizer._overwrite_model_variables_with_average_value(trained),
            )
    each(finish)


def _when(condition: Any, then: Callable[[], Any], otherwise: Callable[[], Any] = lambda: None) -> None:
    def branch(action: Callable[[], Any]) -> Callable[[], Any]:
        def run() -> Any:
            action()
            return tf.constant(0)

        return run

    tf.cond(condition, branch(then), branch(otherwise))
