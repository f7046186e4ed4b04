"""What a step writes beside the variables that it trains: statistics, metrics, seeds, counters, the loss scale.

A step that is skipped leaves trained variables and the optimizer's alone, but not these. They are read as the step
begins, inside its own graph, and put back where it is to be as if it had not been.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf


def scaling_variables(scaler: Any) -> list[Any]:
    """The variables of a loss scale's state and of what explains a skip, each replica's copy on its own."""
    memory = scaler.memory
    explaining = [variable for variable in (memory.last_skip, scaler.nonfinite_variables.flags) if variable is not None]
    return _copies((memory.scale, *memory.counters, *explaining))


def other_variables(model: Any) -> list[Any]:
    """The variables of a model that are not trained, each replica's copy on its own; metrics come last.

    Args:
        model: of Keras or tf_keras. Metrics may not be built before its first step.
    """
    metrics = [variable for metric in model.metrics for variable in metric.variables]
    counter = getattr(model, "_train_counter", None)  # of tf_keras
    return _copies((*([] if counter is None else [counter]), *model.non_trainable_variables, *metrics))


def read(variables: Sequence[Any]) -> list[Any]:
    """Their values. In a step's graph this copies nothing: a variable that is written then gets memory of its own."""
    values = []
    for variable in variables:
        with tf.device(variable.device):
            values.append(variable.read_value())
    return values


def put_back(variables: Sequence[Any], values: Sequence[Any]) -> None:
    """Writes values that were read before; those without a value stay."""
    for variable, value in zip(variables, values, strict=False):
        with tf.device(variable.device):
            variable.assign(value, read_value=False)


def _copies(variables: Iterable[Any]) -> list[Any]:
    """The TensorFlow variables of variables of Keras 3, of tf_keras and of strategies, each once."""
    found: dict[int, Any] = {}
    for variable in variables:
        inner = variable if isinstance(variable, tf.Variable) else variable.value
        copies = inner.values if isinstance(inner, tf.distribute.DistributedValues) else (inner,)
        found.update((id(copy), copy) for copy in copies)
    return list(found.values())
