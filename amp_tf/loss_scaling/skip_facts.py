"""Records what explains a skipped step. It is computed only where a step is skipped, so it costs nothing otherwise.

In a traced step the loss is followed back to the graph's inputs: floating-point arguments of the function, or elements
of an iterator. If these are not finite, or beyond float16, no loss scale can help, and the message can say so.

The facts are computed in the branch that skips, and kept in a variable that is in no checkpoint. Scaled gradients are
not kept: they would be a second copy of all gradients.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from amp_tf.loss_scaling.diagnosis import SkipFacts
from amp_tf.loss_scaling.recognizing import lineage
from amp_tf.loss_scaling.replicas import Nonfinite
from amp_tf.oplists.table import GIVEN


def make_variable() -> Any:
    """The variable that holds the facts. Nothing may track it, because checkpoints do not hold them."""
    with tf.init_scope():
        return tf.Variable([0] * len(SkipFacts._fields), trainable=False, dtype=tf.int32, name="last_skip")


class NonfiniteVariables:
    """Remembers the variables whose gradients were nonfinite in the last skipped step; not in checkpoints.

    Attributes:
        flags: the variable that remembers them, an int32 for each; ``None`` until they are known.
    """

    def __init__(self) -> None:
        self._variables: list[Any] = []
        self.flags: Any = None

    def watch(self, variables: Sequence[Any]) -> None:
        """Creates the variable that remembers them, unless it exists or the graph is TF1's.

        Args:
            variables: all that are trained.
        """
        if self.flags is None and tf.compat.v1.executing_eagerly_outside_functions():
            # All replicas create it together; it is set once each of them has been here.
            with tf.init_scope():
                zeros = tf.zeros(len(variables), tf.int32)
                flags = tf.Variable(zeros, trainable=False, name="nonfinite_gradients")
            self._variables, self.flags = list(variables), flags

    def note(self, found: Nonfinite, variables: Sequence[Any]) -> list[Any]:
        """Remembers the variables of a step; returns operations.

        Args:
            found: of a step that is skipped.
            variables: those of its gradients.
        """
        if self.flags is None or not variables:
            return []
        known = len(self._variables)
        places = {id(variable): place for place, variable in enumerate(self._variables)}
        indices = [[places.get(id(variable), known)] for variable in variables]  # others: past the end
        seen = tf.scatter_nd(indices, tf.cast(found.gradients, tf.int32), [known + 1])[:known]
        return [self.flags.assign(seen, read_value=False)]

    def names(self) -> list[str]:
        """The names of the variables. Waits for the device."""
        flags = [] if self.flags is None else self.flags.numpy()
        return [getattr(v, "path", v.name) for v, flag in zip(self._variables, flags, strict=False) if flag]


def data_of(loss: Any) -> list[Any]:
    """The floating-point inputs of a traced graph that a (nest of) loss is computed from.

    Args:
        loss: of the graph that is traced now. Of an eager one nothing is known.
    """
    if tf.executing_eagerly():
        return []
    graph = tf.compat.v1.get_default_graph()
    stack = [tensor for tensor in lineage.tensors_in(loss) if tensor.graph is graph]
    seen = {tensor.name: tensor for tensor in stack}
    while stack:
        operation = stack.pop().op
        if operation.type in GIVEN:
            continue
        new = {source.name: source for source in operation.inputs if source.name not in seen}
        seen.update(new)
        stack += new.values()
    return [tensor for tensor in seen.values() if tensor.op.type in GIVEN and tensor.dtype.is_floating]


def find_facts(gradients: Iterable[Any], data: Sequence[Any]) -> Any:
    """The facts of one replica's step as a vector of counts; int32.

    Args:
        gradients: unscaled, none of them ``None``.
        data: see :func:`data_of`.
    """
    values = [gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient for gradient in gradients]
    facts = SkipFacts(
        knows_gradients=True,
        has_nonfinite_gradient=tf.logical_not(tf.reduce_all([_is_finite(value) for value in values])),
        knows_data=bool(data),
        has_nonfinite_data=tf.logical_not(tf.reduce_all([True, *map(_is_finite, data)])),
        has_large_data=tf.reduce_any([False, *map(_is_large, data)]),
    )
    return tf.cast(tf.stack(list(facts)), tf.int32)


def _is_finite(value: Any) -> Any:
    parts = [tf.math.real(value), tf.math.imag(value)] if value.dtype.is_complex else [value]
    return tf.reduce_all([tf.reduce_all(tf.math.is_finite(part)) for part in parts])


def _is_large(value: Any) -> Any:
    sizes = tf.abs(value)
    return tf.reduce_any(tf.logical_and(tf.math.is_finite(sizes), sizes > tf.cast(tf.float16.max, sizes.dtype)))
