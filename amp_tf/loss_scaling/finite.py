"""Scales losses, unscales gradients, and checks whether a step may be applied.

Checks apply to the *unscaled* gradients, in the type in which the optimizer will add them up: a
scaled gradient may be finite while the unscaled one is not, and the other way round. All functions
work eagerly, in a ``tf.function``, under XLA and in a TF1 graph, and never move a value to the
host.

A cheap test comes first: a sum of squares, in one kernel and one pass. Under XLA, which would add
floats one by one, it is a bound on magnitudes. A ``tf.cond`` runs the exact test only if the cheap
one fails.

Facts that explain a skipped step are computed only where a step is skipped. In a traced step the
loss is followed back to the graph's inputs: if these are not finite, or beyond float16, no loss
scale can help, and the message can say so.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import control_flow_util

from amp_tf.loss_scaling.ledger import SkipFacts
from amp_tf.oplists.table import GIVEN


def clips_norm(optimizers: Iterable[Any]) -> bool:
    """Tells whether one of some Keras optimizers divides by a norm.

    A norm that overflows makes NaN out of finite gradients.
    """
    for optimizer in optimizers:
        if any(getattr(optimizer, name, None) for name in ("clipnorm", "global_clipnorm")):
            return True
    return False


def scale_loss(loss: Any, scale: Any) -> Any:
    """Returns a (nest of) loss times the scale, in float32, or in float64 where it was.

    In float16 3.0 times 2^15 would be infinite.
    """

    def scale_one(value: Any) -> Any:
        value = tf.convert_to_tensor(value)
        wide = _wide_type([value])
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
    if gradient is None:
        return None
    return change(tf.convert_to_tensor(gradient))


def values_of(gradient: Any) -> Any:
    """A tensor itself, or the values of ``tf.IndexedSlices``."""
    if isinstance(gradient, tf.IndexedSlices):
        return gradient.values
    return gradient


def as_tensor(gradient: Any, variable: Any = None) -> Any:
    """A gradient as a tensor; ``tf.IndexedSlices`` and ``None`` stay.

    Arrays, lists, numbers and variables take the type of the variable that they are for, as in an
    optimizer's own arithmetic.
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
    """Finds the gradients that would spoil the step: a boolean vector, an entry for each.

    Args:
        gradients: unscaled tensors or ``tf.IndexedSlices``.
        clips_norm: whether the optimizer may divide by the norm, which must then be finite, too.
        headroom: how many gradients of this size will be added up, over replicas and accumulated
            steps; their sum must be finite.
    """
    in_real_parts = [map_values(_in_real_parts, gradient) for gradient in gradients]
    find = functools.partial(_find_nonfinite_exactly, in_real_parts, clips_norm, headroom)
    surely_finite = _are_surely_finite(in_real_parts, clips_norm)
    if surely_finite is None:
        return find()
    return tf.cond(surely_finite, lambda: tf.zeros([len(gradients)], tf.bool), find)


def has_nonfinite(values: Iterable[Any]) -> Any:
    """Tells whether any value of some tensors is NaN or infinite: a boolean scalar."""
    return ~tf.reduce_all([True, *map(_is_finite, values)])


def _is_finite(value: Any) -> Any:
    return tf.reduce_all(tf.math.is_finite(_in_real_parts(tf.convert_to_tensor(value))))


def _in_real_parts(value: Any) -> Any:
    """A complex tensor as real numbers, which TensorFlow can test; others unchanged."""
    if not value.dtype.is_complex:
        return value
    return tf.stack([tf.math.real(value), tf.math.imag(value)], axis=-1)


def _wide_type(tensors: Iterable[Any]) -> Any:
    """Returns float64 if a tensor has it, else float32."""
    if any(tensor.dtype == tf.float64 for tensor in tensors):
        return tf.float64
    return tf.float32


def _find_nonfinite_exactly(gradients: Sequence[Any], clips_norm: bool, headroom: float) -> Any:
    if not clips_norm:
        return ~tf.stack([_is_finite(_sum_of(gradient, headroom)) for gradient in gradients])
    squares = [_squared_norm(gradient) for gradient in gradients]
    are_finite = tf.stack([tf.math.is_finite(square) for square in squares])
    is_total_finite = tf.math.is_finite(_total(squares, _wide_type(squares)))
    # If only the sum of all norms is nonfinite, all gradients count as nonfinite.
    return ~tf.where(tf.reduce_all(are_finite), is_total_finite, are_finite)


def _are_surely_finite(gradients: Sequence[Any], clips_norm: bool) -> Any:
    """The cheap test, which fails whenever the exact one might; ``None`` where there is none."""
    values = [values_of(gradient) for gradient in gradients]
    if any(value.dtype.size < 4 for value in values):
        return None  # squares overflow easily in 16 bits
    graph = tf.compat.v1.get_default_graph()
    if not control_flow_util.GraphOrParentsInXlaContext(graph):  # a wrong answer only costs time
        squares = [_squared_norm(value) for value in values]
        return tf.math.is_finite(_total(squares, tf.float32))
    counts = [value.shape.num_elements() for value in values]
    if not clips_norm or None in counts:
        return None
    # Half of the maximum of a sum of so many squares.
    bound = (tf.float32.max / (8.0 * max(sum(counts), 1))) ** 0.5
    return tf.reduce_all(tf.stack([tf.reduce_all(tf.abs(value) <= bound) for value in values]))


def _total(numbers: Iterable[Any], dtype: Any) -> Any:
    return tf.add_n([tf.cast(number, dtype) for number in numbers])


def _sum_of(gradient: Any, headroom: float) -> Any:
    """The sum of ``headroom`` gradients of this size, in its own type."""
    total = gradient
    if isinstance(gradient, tf.IndexedSlices):
        total = _column_sums(gradient)
    if headroom == 1.0:
        return total
    return total * tf.cast(headroom, total.dtype)


def _column_sums(slices: Any) -> Any:
    """The largest sums that the rows of an IndexedSlices can have, in its own type.

    Rows with the same index are summed later.
    """
    if slices.dtype.size >= 4:
        return tf.reduce_sum(tf.abs(slices.values), axis=0)
    sizes = tf.abs(tf.cast(slices.values, tf.float32))
    if slices.dense_shape is None:
        sums = tf.reduce_sum(sizes, axis=0)
    else:
        # float16 ends at 65504, so only rows with the same index are added.
        rows = tf.cast(slices.dense_shape[0], tf.int32)
        sums = tf.math.unsorted_segment_sum(sizes, slices.indices, rows)
    return tf.cast(sums, slices.dtype)


def _squared_norm(gradient: Any) -> Any:
    # l2_loss is half the sum of squares in one kernel. Four times it leaves room for the
    # optimizer's own order of summation; the mean of several gradients has no larger norm than the
    # largest of them, so no headroom is needed.
    return 4 * tf.nn.l2_loss(values_of(gradient))


def with_gradient(variables: Iterable[Any], gradients: Iterable[Any]) -> list[Any]:
    """Selects the variables whose gradient is not ``None``."""
    are_present = (gradient is not None for gradient in gradients)
    return list(itertools.compress(variables, are_present))


def check_any(gradients: Iterable[Any]) -> None:
    """Refuses, by a ValueError, a step without gradients."""
    if all(gradient is None for gradient in gradients):
        raise ValueError("No gradients provided for any variable.")


@contextlib.contextmanager
def lifted() -> Iterator[None]:
    """Runs a block outside of the function that is being traced, to create variables there.

    ``tf.init_scope`` alone lets a ``tf.function`` create variables in its first trace only. The
    block may initialize them by constants, because others may not be initialized yet.
    """
    with tf.init_scope():
        graph = tf.compat.v1.get_default_graph()  # in eager code still that of the function
        creators = graph._variable_creator_stack
        others = []
        for priority, creator in creators:
            if creator.__module__ != tf.function.__module__:
                others.append((priority, creator))
        graph._variable_creator_stack = others
        try:
            yield
        finally:
            graph._variable_creator_stack = creators


class NonfiniteVariables:
    """Remembers the variables whose gradients were nonfinite in the last skipped step.

    Checkpoints do not hold them.
    """

    def __init__(self) -> None:
        self._variables: list[Any] = []
        #: an int32 variable with an entry for each; none until they are known
        self.flags: Any = None

    def watch(self, variables: Sequence[Any]) -> None:
        """Begins to watch all variables that are trained; not in a TF1 graph."""
        if self.flags is not None or not tf.compat.v1.executing_eagerly_outside_functions():
            return
        zeros = [0] * len(variables)
        # All replicas create it together; it is set once each of them has been here.
        with lifted():
            flags = tf.Variable(zeros, trainable=False, dtype=tf.int32, name="nonfinite_gradients")
        self._variables = list(variables)
        self.flags = flags

    def note(self, is_nonfinite: Any, variables: Sequence[Any]) -> list[Any]:
        """Remembers which gradients of a skipped step are nonfinite; returns operations.

        ``is_nonfinite`` has an entry for each of the variables.
        """
        if self.flags is None or not variables:
            return []
        places = {id(variable): place for place, variable in enumerate(variables)}
        # Variables that have no gradient in this step read the entry behind the last.
        padded = tf.concat([is_nonfinite, [False]], axis=0)
        indices = [places.get(id(variable), len(variables)) for variable in self._variables]
        seen = tf.gather(tf.cast(padded, tf.int32), indices)
        return [self.flags.assign(seen, read_value=False)]

    def names(self) -> list[str]:
        """The names of the variables. Waits for the device."""
        if self.flags is None:
            return []
        nonfinite = itertools.compress(self._variables, self.flags.numpy())
        return [getattr(variable, "path", variable.name) for variable in nonfinite]


def data_of(loss: Any) -> list[Any]:
    """Follows a (nest of) loss back to the floating-point inputs of the graph being traced.

    In eager execution there are none.
    """
    given = filter(tf.is_tensor, tf.nest.flatten(loss))
    found = behind(given, lambda tensor: tensor.op.type in GIVEN)
    return [tensor for tensor in found if tensor.dtype.is_floating]


def behind(tensors: Iterable[Any], is_end: Callable[[Any], bool]) -> list[Any]:
    """Follows tensors back through the graph being traced, up to those that are an end.

    Returns the ends; in eager execution none.
    """
    if tf.executing_eagerly():
        return []
    graph = tf.compat.v1.get_default_graph()
    ends = []
    seen: set[str] = set()
    waiting = list(tensors)
    while waiting:
        tensor = waiting.pop()
        # Eager tensors have numpy().
        if hasattr(tensor, "numpy") or tensor.graph is not graph or tensor.name in seen:
            continue
        seen.add(tensor.name)
        if is_end(tensor):
            ends.append(tensor)
        else:
            waiting += tensor.op.inputs
    return ends


def find_facts(gradients: Iterable[Any], data: Sequence[Any]) -> Any:
    """Finds the :class:`SkipFacts` of one replica, as an int32 vector.

    Args:
        gradients: unscaled, or ``None``.
        data: what :func:`data_of` found.
    """
    has_large_data = tf.constant(False)
    for value in data:
        size = tf.abs(value)
        is_large = tf.math.is_finite(size) & (size > tf.cast(tf.float16.max, size.dtype))
        has_large_data |= tf.reduce_any(is_large)
    values = [values_of(gradient) for gradient in gradients if gradient is not None]
    facts = SkipFacts(
        knows_gradients=True,
        has_nonfinite_gradient=has_nonfinite(values),
        knows_data=bool(data),
        has_nonfinite_data=has_nonfinite(data),
        has_large_data=has_large_data,
    )
    return tf.cast(tf.stack(list(facts)), tf.int32)
