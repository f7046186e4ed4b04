"""Sums gradients over replicas in 16 bit (``AMP_TF_ALLREDUCE``).

Keras 3 and custom loops sum gradients by ``ReplicaContext.all_reduce``, tf_keras and TF1 optimizers
by ``StrategyExtended.batch_reduce_to`` from the cross-replica context. Both are wrapped: large
float32 gradients are cast to 16 bit, summed, and cast back, where the step is traced: TensorFlow
ends the training if replicas disagree about the type of a collective operation. A mean is a sum,
divided in float32. Values that are not gradients (:mod:`amp_tf.hooks.gradients`), such as counts,
stay in float32.

The loss-scale optimizer unscales before the sum, so float16, which ends at 65504 and loses digits
below 2^-14, gets a scale of its own. Replica ``w`` holds ``g_w``; the sum over replicas of ``max
|g_w|`` bounds every partial sum, in any order of additions. Scaled by the power of two that brings
this bound below 2^15, no sum overflows, and numbers down to 2^-29 of the bound keep all their
digits. Exponents are computed on the bits: logarithms may differ between machines by a digit, and
replicas that scale differently would be silently wrong.
"""

from __future__ import annotations

import collections
import functools
import itertools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from amp_tf.config import ALLREDUCE_VAR
from amp_tf.hooks import gradients, internals, notices, summary
from amp_tf.hooks.patches import Patches
from amp_tf.hooks.scope import scope
from amp_tf.hooks.state import current, record, settings
from amp_tf.hooks.state import patches as patches_of
from amp_tf.reporting.figures import percent

# Kernels and tables have two dimensions and more. Losses, metrics, statistics of a batch and flags
# have one at most and stay exact; biases are not worth a cast.
_SMALLEST = 1024

_IN_FLOAT32 = "gradients stay in float32"
_OTHER_STRATEGY = f"Unset {ALLREDUCE_VAR}, or use MirroredStrategy or MultiWorkerMirroredStrategy"
_OTHER_TYPE = (
    f"Set {ALLREDUCE_VAR}=float16, or give MirroredStrategy no cross_device_ops: its own take "
    "bfloat16"
)

_FRACTION_BITS = 23  # of float32
_BIAS = 127
_TOP = 14  # bounds are brought to [2^14, 2^15)
# The inverse must be a normal number too: some devices flush others to zero.
_LARGEST_FIELD = 253


class _Sums(collections.Counter[str]):
    """Counts the elements of gradients that were summed in this process, by type."""


def install(patches: Patches) -> None:
    """Sums gradients in ``AmpConfig.allreduce`` from now on. Idempotent."""
    internals.SUM_IN_REPLICA.patch(patches, _all_reduce)
    internals.SUM_ACROSS.patch(patches, _batch_reduce_to)
    gradients.watch(patches, _mark)
    summary.add_part(_summary_part)


def is_large_matrix(tensor: Any) -> bool:
    """Tells whether a value is a large dense float32 tensor of two dimensions and more.

    Its static shape decides.
    """
    if not isinstance(tensor, tf.Tensor):
        return False
    if tensor.dtype != tf.float32 or not tensor.shape.is_fully_defined():
        return False
    dimensions = [size for size in tensor.shape.as_list() if size > 1]
    return len(dimensions) >= 2 and tensor.shape.num_elements() >= _SMALLEST


def _mark(sources: Any, taken: Any) -> None:
    with notices.surviving("all_reduce.mark", _IN_FLOAT32, where=ALLREDUCE_VAR):
        gradients.mark(sources, taken)


def _all_reduce(
    original: Any, context: Any, reduce_op: Any, value: Any, options: Any = None
) -> Any:
    flat = tf.nest.flatten(value)
    are_narrow, dtype = _choose(context.strategy, flat)
    if dtype is None:
        return original(context, reduce_op, value, options)
    narrow = list(itertools.compress(flat, are_narrow))
    wide = [tensor for tensor, is_narrow in zip(flat, are_narrow, strict=True) if not is_narrow]
    sum_up = functools.partial(original, context, "SUM", options=options)
    sums = _sum_narrow(sum_up, narrow, dtype)
    # A mean is divided in float32; TensorFlow would divide in 16 bit.
    if str(getattr(reduce_op, "value", reduce_op)).upper() == "MEAN":
        sums = [total / context.num_replicas_in_sync for total in sums]
    others = []
    if wide:
        others = original(context, reduce_op, wide, options)
    with current().lock:
        record(_Sums).update(narrow=_count(narrow), wide=_count(wide))
    remaining = {True: iter(sums), False: iter(others)}
    return tf.nest.pack_sequence_as(value, [next(remaining[each]) for each in are_narrow])


def _batch_reduce_to(
    original: Any, extended: Any, reduce_op: Any, value_destination_pairs: Any, options: Any = None
) -> Any:
    """Hands gradients to :func:`_all_reduce`, in place of ``StrategyExtended.batch_reduce_to``.

    That is called once for all replicas.
    """
    pairs = list(value_destination_pairs)
    values = [value for value, _ in pairs]
    firsts = [extended._local_results(value)[0] for value in values]
    _, dtype = _choose(extended._container_strategy(), firsts)
    if dtype is None:
        return original(extended, reduce_op, pairs, options)

    def reduce(replica_values: Any) -> Any:
        return tf.distribute.get_replica_context().all_reduce(reduce_op, replica_values, options)

    return extended.call_for_each_replica(reduce, args=(values,))


def _choose(strategy: Any, tensors: list[Any]) -> tuple[list[bool], Any]:
    """Tells for each tensor whether it is summed in 16 bit, and in which type; ``None`` for none.

    It is the same on all replicas, which run the same program.
    """
    with notices.surviving("all_reduce.failed", _IN_FLOAT32, where=ALLREDUCE_VAR):
        are_narrow = [is_large_matrix(each) and gradients.is_gradient(each) for each in tensors]
        if any(are_narrow):
            return are_narrow, _narrow_type(strategy)
    return [], None


def _sum_narrow(sum_up: Callable[[Any], Any], tensors: list[Any], dtype: Any) -> list[Any]:
    """Sums float32 tensors over replicas in a 16-bit type.

    Each replica gets the same float32 results.
    """
    if dtype != tf.float16:
        totals = sum_up([tf.cast(tensor, dtype) for tensor in tensors])
        return [tf.cast(total, tf.float32) for total in totals]
    with scope("float32"):  # in float16 the factors themselves would be infinite
        bounds = tf.stack([tf.reduce_max(tf.abs(tensor)) for tensor in tensors])
    bounds = sum_up(bounds)
    with scope("float32"):
        before, after = map(tf.unstack, scales(bounds))
        scaled = [tf.cast(tensor, dtype) for tensor in map(tf.multiply, tensors, before)]
    totals = sum_up(scaled)
    with scope("float32"):
        wide = [tf.cast(total, tf.float32) for total in totals]
        return list(map(tf.multiply, wide, after))


def scales(bounds: Any) -> tuple[Any, Any]:
    """Returns the factors by which to multiply tensors before the sum, and after it.

    They are finite powers of two; each is the inverse of the other.

    Args:
        bounds: a float32 vector, one entry for each tensor, the same on all replicas; 0, infinity
            and NaN may occur.
    """
    bits = tf.bitcast(bounds, tf.int32)
    exponent = tf.bitwise.bitwise_and(tf.bitwise.right_shift(bits, _FRACTION_BITS), 255)
    field = tf.clip_by_value(2 * _BIAS + _TOP - exponent, 1, _LARGEST_FIELD)
    return _power_of_two(field), _power_of_two(2 * _BIAS - field)


def _power_of_two(field: Any) -> Any:
    """Float32 numbers with an exponent field, and fractions of zero."""
    return tf.bitcast(tf.bitwise.left_shift(field, _FRACTION_BITS), tf.float32)


def _narrow_type(strategy: Any) -> Any:
    """The 16-bit type for a strategy, or ``None``, with one warning that says why."""
    from tensorflow.python.distribute import mirrored_strategy

    allreduce = settings().allreduce
    extended = strategy.extended
    name = type(strategy).__name__
    # MultiWorkerMirroredStrategy's is one, too.
    if not isinstance(extended, mirrored_strategy.MirroredExtended):
        is_alone = isinstance(strategy, tf.distribute.OneDeviceStrategy)
        if tf.distribute.has_strategy() and not is_alone:
            what = f"{name} does not all-reduce gradients, so they stay in float32"
            _warn(name, what, _OTHER_STRATEGY)
        return None
    if strategy.num_replicas_in_sync < 2:
        return None
    is_nccl = isinstance(extended._cross_device_ops, tf.distribute.NcclAllReduce)
    if allreduce == "bfloat16" and is_nccl:
        what = "the operation NcclAllReduce has no bfloat16, so gradients stay in float32"
        _warn(name, what, _OTHER_TYPE)
        return None
    return tf.as_dtype(allreduce)


def _warn(strategy: str, what: str, fix: str) -> None:
    notices.warn_once(f"all_reduce.{strategy}", what, where=ALLREDUCE_VAR, fix=fix)


def _count(values: list[Any]) -> int:
    """Counts the elements of tensors, as far as they are known."""
    tensors = filter(tf.is_tensor, values)
    return sum(tensor.shape.num_elements() or 0 for tensor in tensors)


def _summary_part() -> str:
    allreduce = settings().allreduce
    if not patches_of(__name__):
        return ""
    summed = record(_Sums)
    total = summed.total()
    if not total:
        return f"{ALLREDUCE_VAR}: no gradients were summed over replicas in {allreduce}"
    share = percent(summed["narrow"] / total)
    return f"gradients summed over replicas in {allreduce} ({share} of their elements)"
