"""TensorFlow operations that scale a loss, unscale gradients, and check whether a step may be
applied.

Checks apply to the *unscaled* gradients, in the type in which the optimizer will add them up: a
scaled gradient may be finite while the unscaled one is not, and the other way round. All functions
work eagerly, in a ``tf.function``, under XLA and in a TF1 graph, and never move a value to the
host.

A cheap test precedes the exact one, which a ``tf.cond`` runs only where it fails: a sum of squares,
in one kernel and one pass, or a bound on magnitudes where XLA would add floats one by one.

What explains a skipped step is computed only where a step is skipped. In a traced step the loss is
followed back to the graph's inputs: if these are not finite, or beyond float16, no loss scale can
help, and the message can say so.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import control_flow_util

from amp_tf.loss_scaling.ledger import SkipFacts
from amp_tf.oplists.table import GIVEN


def clips_norm(optimizers: Iterable[Any]) -> bool:
    """Whether one of some Keras optimizers divides by a norm: one that overflows makes NaN out of
    finite gradients.
    """
    return any(
        getattr(optimizer, name, None)
        for optimizer in optimizers
        for name in ("clipnorm", "global_clipnorm")
    )


def scale_loss(loss: Any, scale: Any) -> Any:
    """A (nest of) loss times the scale, in float32, or float64 where it was: 3.0 times 2^15 is
    infinite in float16.
    """

    def scale_one(value: Any) -> Any:
        value = tf.convert_to_tensor(value)
        wide = tf.float64 if value.dtype == tf.float64 else tf.float32
        return tf.cast(value, wide) * tf.cast(scale, wide)

    return tf.nest.map_structure(scale_one, loss)


def unscale(gradient: Any, scale: Any) -> Any:
    """A tensor, ``tf.IndexedSlices`` or ``None`` divided by the scale, in its own type.

    A 16-bit one is divided in float32: the reciprocal of a scale above 2^24 is zero in float16.
    """

    def divide(value: Any) -> Any:
        if value.dtype in (tf.float16, tf.bfloat16):
            return tf.cast(tf.cast(value, tf.float32) / scale, value.dtype)
        return value / tf.cast(scale, value.dtype)

    return map_values(divide, gradient)


def map_values(change: Callable[[Any], Any], gradient: Any) -> Any:
    """A tensor, or the values of ``tf.IndexedSlices``, changed by a function; ``None`` stays."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(change(gradient.values), gradient.indices, gradient.dense_shape)
    return None if gradient is None else change(tf.convert_to_tensor(gradient))


def values_of(gradient: Any) -> Any:
    """A tensor itself, or the values of ``tf.IndexedSlices``."""
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def as_tensor(gradient: Any, variable: Any = None) -> Any:
    """A gradient as a tensor; ``tf.IndexedSlices`` and ``None`` stay.

    Arrays, lists, numbers and variables take the type of what they are for, as in an optimizer's
    own arithmetic.
    """
    if gradient is None or isinstance(gradient, tf.IndexedSlices):
        return gradient
    tensor = tf.convert_to_tensor(gradient)
    if variable is None or tf.is_tensor(gradient):
        return tensor
    return tf.cast(tensor, tf.as_dtype(variable.dtype).base_dtype)


def find_nonfinite(
    gradients: Sequence[Any], clips_norm: bool = False, headroom: float = 1.0
) -> Any:
    """For each unscaled tensor or ``tf.IndexedSlices``, whether it would spoil the step: a boolean
    vector.

    The norm that the optimizer may divide by (``clips_norm``) must be finite too, and the sum of as
    many gradients of this size as it will add up, over replicas and accumulated steps
    (``headroom``).
    """
    gradients = [map_values(_in_real_parts, gradient) for gradient in gradients]
    surely_finite = _are_surely_finite(gradients, clips_norm)
    find = functools.partial(_find_nonfinite_exactly, gradients, clips_norm, headroom)
    return (
        find()
        if surely_finite is None
        else tf.cond(surely_finite, lambda: tf.zeros([len(gradients)], tf.bool), find)
    )


def is_nonfinite(loss: Any) -> Any:
    """Whether any value of the (nest of) loss is NaN or infinite: a boolean scalar."""
    return tf.logical_not(
        tf.reduce_all([tf.reduce_all(tf.math.is_finite(v)) for v in tf.nest.flatten(loss)])
    )


def _in_real_parts(value: Any) -> Any:
    """A complex tensor as real numbers, which TensorFlow can test; others unchanged."""
    return (
        tf.stack([tf.math.real(value), tf.math.imag(value)], axis=-1)
        if value.dtype.is_complex
        else value
    )


def _find_nonfinite_exactly(gradients: Sequence[Any], clips_norm: bool, headroom: float) -> Any:
    if not clips_norm:
        slices = [
            _column_sums(each) if isinstance(each, tf.IndexedSlices) else each for each in gradients
        ]
        sums = [
            each if headroom == 1.0 else each * tf.cast(headroom, each.dtype) for each in slices
        ]
        return ~tf.stack([tf.reduce_all(tf.math.is_finite(each)) for each in sums])
    squares = [_squared_norm(gradient) for gradient in gradients]
    widest = tf.float64 if any(square.dtype == tf.float64 for square in squares) else tf.float32
    is_total_finite = tf.math.is_finite(tf.add_n([tf.cast(square, widest) for square in squares]))
    are_finite = tf.stack([tf.math.is_finite(square) for square in squares])
    return ~tf.where(
        tf.reduce_all(are_finite), is_total_finite, are_finite
    )  # all, where only their sum is nonfinite


def _are_surely_finite(gradients: Sequence[Any], clips_norm: bool) -> Any:
    """The cheap test, which fails whenever the exact one might; ``None`` where there is none."""
    values = [values_of(gradient) for gradient in gradients]
    if any(value.dtype.size < 4 for value in values):
        return None  # squares overflow easily in 16 bits
    graph = tf.compat.v1.get_default_graph()
    is_compiled = not tf.executing_eagerly() and control_flow_util.GraphOrParentsInXlaContext(graph)
    if not is_compiled:  # a wrong answer only costs time
        squares = [tf.cast(_squared_norm(value), tf.float32) for value in values]
        return tf.math.is_finite(tf.add_n(squares))
    counts = [value.shape.num_elements() for value in values]
    if not clips_norm or None in counts:
        return None
    bound = (
        tf.float32.max / (8.0 * max(sum(counts), 1))
    ) ** 0.5  # half of the maximum of a sum of so many squares
    return tf.reduce_all(tf.stack([tf.reduce_all(tf.abs(value) <= bound) for value in values]))


def _column_sums(slices: Any) -> Any:
    """What the rows of an IndexedSlices can add up to, in its own type: rows with the same index
    are summed later.
    """
    sizes = tf.abs(tf.cast(slices.values, tf.float32) if slices.dtype.size < 4 else slices.values)
    if slices.dtype.size < 4 and slices.dense_shape is not None:
        # float16 ends at 65504, so only rows with the same index are added.
        sums = tf.math.unsorted_segment_sum(
            sizes, slices.indices, tf.cast(slices.dense_shape[0], tf.int32)
        )
    else:
        sums = tf.reduce_sum(sizes, axis=0)
    return tf.cast(sums, slices.dtype)


def _squared_norm(gradient: Any) -> Any:
    # l2_loss is half the sum of squares in one kernel. Four times it leaves room for the
    # optimizer's own order of summation; the mean of several gradients has no larger norm than the
    # largest of them, so no headroom is needed.
    return 4 * tf.nn.l2_loss(values_of(gradient))


def check_any(gradients: Iterable[Any]) -> None:
    """Refuses, by a ValueError, a step without gradients."""
    if all(gradient is None for gradient in gradients):
        raise ValueError("No gradients provided for any variable.")


class NonfiniteVariables:
    """Remembers the variables whose gradients were nonfinite in the last skipped step; not in
    checkpoints.
    """

    def __init__(self) -> None:
        self._variables: list[Any] = []
        self.flags: Any = (
            None  #: an int32 variable with an entry for each; none until they are known
        )

    def watch(self, variables: Sequence[Any]) -> None:
        """Begins to watch all variables that are trained; not in a TF1 graph."""
        if self.flags is None and tf.compat.v1.executing_eagerly_outside_functions():
            with (
                tf.init_scope()
            ):  # all replicas create it together; it is set once each of them has been here
                flags = tf.Variable(
                    tf.zeros(len(variables), tf.int32), trainable=False, name="nonfinite_gradients"
                )
            self._variables, self.flags = list(variables), flags

    def note(self, is_nonfinite: Any, variables: Sequence[Any]) -> list[Any]:
        """Remembers which gradients of a skipped step, and so which variables, are nonfinite;
        returns operations.
        """
        if self.flags is None or not variables:
            return []
        known = len(self._variables)
        places = {id(variable): place for place, variable in enumerate(self._variables)}
        indices = [
            [places.get(id(variable), known)] for variable in variables
        ]  # others: past the end
        seen = tf.scatter_nd(indices, tf.cast(is_nonfinite, tf.int32), [known + 1])[:known]
        return [self.flags.assign(seen, read_value=False)]

    def names(self) -> list[str]:
        """The names of the variables. Waits for the device."""
        flags = [] if self.flags is None else self.flags.numpy()
        return [
            getattr(v, "path", v.name)
            for v, flag in zip(self._variables, flags, strict=False)
            if flag
        ]


def data_of(loss: Any) -> list[Any]:
    """The floating-point inputs of the graph being traced that a (nest of) loss is computed from;
    none eagerly.
    """
    if tf.executing_eagerly():
        return []
    graph = tf.compat.v1.get_default_graph()
    flat = [t for t in tf.nest.flatten(loss) if tf.is_tensor(t) and not hasattr(t, "numpy")]
    stack = [tensor for tensor in flat if tensor.graph is graph]
    seen = {tensor.name: tensor for tensor in stack}
    while stack:
        operation = stack.pop().op
        if operation.type in GIVEN:
            continue
        new = {source.name: source for source in operation.inputs if source.name not in seen}
        seen.update(new)
        stack += new.values()
    return [
        tensor for tensor in seen.values() if tensor.op.type in GIVEN and tensor.dtype.is_floating
    ]


def find_facts(gradients: Iterable[Any], data: Sequence[Any]) -> Any:
    """The :class:`SkipFacts` of one replica's unscaled gradients and its :func:`data_of`: an int32
    vector.
    """
    sizes = map(tf.abs, data)
    large = [
        tf.reduce_any(tf.math.is_finite(n) & (n > tf.cast(tf.float16.max, n.dtype))) for n in sizes
    ]
    facts = SkipFacts(
        knows_gradients=True,
        has_nonfinite_gradient=~tf.reduce_all(
            [_is_finite(values_of(g)) for g in gradients if g is not None]
        ),
        knows_data=bool(data),
        has_nonfinite_data=~tf.reduce_all([True, *map(_is_finite, data)]),
        has_large_data=tf.reduce_any([False, *large]),
    )
    return tf.cast(tf.stack(list(facts)), tf.int32)


def _is_finite(value: Any) -> Any:
    return tf.reduce_all(tf.math.is_finite(_in_real_parts(value)))
