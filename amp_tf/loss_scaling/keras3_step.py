"""Makes the step of the wrapped Keras 3 optimizer, on one replica or, from the cross-replica context, on each.

Keras puts two conditions into its step, for accumulated gradients and for averages. Where replicas meet in
``merge_call``, these conditions are moved out of the step (:mod:`amp_tf.loss_scaling.replicas`), because TensorFlow
would refuse to trace it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from amp_tf.loss_scaling.keras3_inner import accumulated_steps, counter_of, parts_of
from amp_tf.loss_scaling.recognizing.usage import scaled_step
from amp_tf.loss_scaling.replicas import count


def apply_inner(strategy: Any, optimizer: Any, method: str, gradients: Any, variables: Sequence[Any]) -> None:
    """Makes the wrapped optimizer's step.

    Args:
        strategy: the strategy whose replicas make the step, called from the cross-replica context; ``None`` to make it
            right here.
        optimizer: a built Keras 3 optimizer.
        method: ``"apply"`` or ``"apply_gradients"``, as the loop called it: a user's optimizer may override either.
        gradients: one for each variable, or ``None``; with a strategy, per replica.
        variables: the variables.
    """

    def step(grads: Any) -> None:
        if method == "apply_gradients":
            optimizer.apply_gradients(list(zip(grads, variables, strict=True)))
        else:
            optimizer.apply(grads, variables)

    with scaled_step(), _sums_of_one(optimizer):
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


_SUM = "_all_reduce_sum_gradients"


@contextlib.contextmanager
def _sums_of_one(optimizer: Any) -> Iterator[None]:
    """Makes all-reduce the identity in the block, where there is one replica.

    TensorFlow permanently registers a gradient for each sum over replicas, which holds the whole graph of the step: a
    search that creates and drops models would keep them all in memory.
    """
    parts = parts_of(optimizer) if count() == 1 else []
    replaced = [part for part in parts if _SUM not in vars(part) and _is_of_keras(getattr(type(part), _SUM, None))]
    for part in replaced:
        vars(part)[_SUM] = list  # called with pairs; set so that Keras does not track it
    try:
        yield
    finally:
        for part in replaced:
            vars(part).pop(_SUM, None)  # already gone if another thread traced the same optimizer's step


def _overrides_the_step(optimizer: Any) -> bool:
    """Whether a user's class has its own ``apply`` or ``apply_gradients``, which must then be called."""
    return not all(_is_of_keras(getattr(type(optimizer), name)) for name in ("apply", "apply_gradients"))


def _is_of_keras(method: Any) -> bool:
    return getattr(method, "__module__", "").startswith("keras.")


def _apply_with_conditions_outside(each: Any, optimizer: Any, gradients: Any, variables: Sequence[Any]) -> None:
    """Does what ``keras.Optimizer.apply`` does, with its conditions taken outside of the step.

    Up to Keras 3.4 gradients are clipped and weights decay in every step, not when the sum of gradients is applied, and
    averages overwrite by the number of all steps.
    """
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
