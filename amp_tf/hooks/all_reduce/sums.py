"""``AMP_TF_ALLREDUCE``: gradients are summed over replicas in 16 bit.

Keras 3 and custom loops sum gradients by ``ReplicaContext.all_reduce``, tf_keras and TF1 optimizers by
``StrategyExtended.batch_reduce_to`` from the cross-replica context. Both are wrapped: large float32 tensors are cast to
16 bit, summed, and cast back. The casts are added where the step is traced, alike on all replicas, and not by a graph
optimizer, because TensorFlow ends the training if replicas disagree about the type of a collective operation.

A mean is a sum, divided in float32. ``scope("float32")`` never spans a sum, because other replicas are traced meanwhile
in the same graph.

The loss-scale optimizer unscales before the sum, so float16, which ends at 65504 and loses digits below 2^-14, gets a
scale of its own. Replica ``w`` holds ``g_w``; the sum over replicas of ``max |g_w|`` bounds every partial sum, in any
order of additions. Scaled by the power of two that brings this bound below 2^15, no sum overflows, and numbers down to
2^-29 of the bound keep all their digits. Exponents are computed on the bits: logarithms may differ between machines by
a digit, and replicas that scale differently would be silently wrong.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from amp_tf.config import ALLREDUCE_VAR, AmpConfig
from amp_tf.hooks.patches import Patches, calling
from amp_tf.hooks.process import notices, summary
from amp_tf.hooks.scope import scope

# Kernels and tables have two dimensions and more. Losses, metrics, statistics of a batch and flags have one at most and
# stay exact; biases are not worth a cast.
_SMALLEST = 1024

_OTHER_STRATEGY = f"Unset {ALLREDUCE_VAR}, or use MirroredStrategy or MultiWorkerMirroredStrategy"
_OTHER_TYPE = f"Set {ALLREDUCE_VAR}=float16, or give MirroredStrategy no cross_device_ops: its own take bfloat16"

_FRACTION_BITS = 23  # of float32
_BIAS = 127
_TOP = 14  # bounds are brought to [2^14, 2^15)
_LARGEST_FIELD = 253  # so that the inverse is a normal number too: some devices flush others to zero

_lock = threading.Lock()
_config: AmpConfig | None = None
_patches = Patches()
_elements = {"narrow": 0, "wide": 0}


def install(config: AmpConfig) -> None:
    """Sums gradients in ``config.allreduce`` from now on; ``"float32"`` leaves TensorFlow alone. Idempotent.

    Steps that were traced before stay as they are.
    """
    from tensorflow.python.distribute import distribute_lib

    if config.allreduce == "float32":
        uninstall()
        return
    global _config
    _config = config
    _patches.put(distribute_lib.ReplicaContextBase, "all_reduce", calling(_all_reduce))
    _patches.put(distribute_lib.StrategyExtendedV2, "batch_reduce_to", calling(_batch_reduce_to))
    summary.add_part(_summary_part)


def uninstall() -> None:
    """Sums gradients in float32 from now on. Idempotent."""
    global _config
    _config = None
    _patches.restore()


def is_carried_narrow(tensor: Any) -> bool:
    """Whether a value that is being summed is a large dense float32 gradient, judged by its static shape."""
    import tensorflow as tf

    if not tf.is_tensor(tensor) or isinstance(tensor, tf.IndexedSlices) or tensor.dtype != tf.float32:
        return False
    shape = tensor.shape
    if not shape.is_fully_defined():
        return False
    return int(shape.num_elements()) >= _SMALLEST and sum(size > 1 for size in shape.as_list()) >= 2


def _all_reduce(original: Any, context: Any, reduce_op: Any, value: Any, options: Any = None) -> Any:
    """``ReplicaContext.all_reduce``, called in each replica."""
    import tensorflow as tf

    flat = tf.nest.flatten(value)
    chosen, dtype = _choose(context.strategy, flat)
    if not chosen:
        return original(context, reduce_op, value, options)
    rest = [number for number in range(len(flat)) if number not in chosen]
    sum_up = functools.partial(original, context, "SUM", options=options)
    sums = _sum_narrow(sum_up, [flat[number] for number in chosen], dtype)
    if _is_mean(reduce_op):  # in float32: TensorFlow would divide the 16-bit sum
        sums = [total / context.num_replicas_in_sync for total in sums]
    others = original(context, reduce_op, [flat[number] for number in rest], options) if rest else []
    results = dict(zip([*chosen, *rest], [*sums, *others], strict=True))
    _count(flat, chosen)
    return tf.nest.pack_sequence_as(value, [results[number] for number in range(len(flat))])


def _batch_reduce_to(
    original: Any, extended: Any, reduce_op: Any, value_destination_pairs: Any, options: Any = None
) -> Any:
    """``StrategyExtended.batch_reduce_to``, called once for all replicas: hands gradients to :func:`_all_reduce`."""
    import tensorflow as tf

    if _config is None:
        return original(extended, reduce_op, value_destination_pairs, options)
    pairs = list(value_destination_pairs)
    values = [value for value, _ in pairs]
    firsts = [extended._local_results(value)[0] for value in values]
    if not _choose(extended._container_strategy(), firsts)[0]:
        return original(extended, reduce_op, pairs, options)

    def reduce(replica_values: Any) -> Any:
        return tf.distribute.get_replica_context().all_reduce(reduce_op, replica_values, options)

    return extended.call_for_each_replica(reduce, args=(values,))


def _choose(strategy: Any, tensors: list[Any]) -> tuple[list[int], Any]:
    """Which tensors are summed in 16 bit, and in which type: the same on all replicas, which run the same program."""
    try:
        chosen = [number for number, tensor in enumerate(tensors) if is_carried_narrow(tensor)]
        dtype = _narrow_type(strategy) if chosen else None
    except Exception as error:
        _warn("failed", f"gradients stay in float32 ({type(error).__name__}: {error})", "Please report this")
        return [], None
    return (chosen, dtype) if dtype is not None else ([], None)


def _sum_narrow(sum_up: Callable[[Any], Any], tensors: list[Any], dtype: Any) -> list[Any]:
    """Sums float32 tensors over replicas in a 16-bit type; each replica gets the same float32 results."""
    import tensorflow as tf

    if dtype != tf.float16:
        return [tf.cast(total, tf.float32) for total in sum_up([tf.cast(tensor, dtype) for tensor in tensors])]
    # In float16 the factors themselves would be infinite. A scope must not span a sum: other replicas are traced
    # meanwhile, in the same graph.
    with scope("float32"):
        bounds = bounds_of(tensors)
    bounds = sum_up(bounds)
    with scope("float32"):
        before, after = map(tf.unstack, scales(bounds))
        scaled = [tf.cast(tensor * factor, dtype) for tensor, factor in zip(tensors, before, strict=True)]
    totals = sum_up(scaled)
    with scope("float32"):
        return [tf.cast(total, tf.float32) * factor for total, factor in zip(totals, after, strict=True)]


def scales(bounds: Any) -> tuple[Any, Any]:
    """The powers of two for each tensor of a group.

    Args:
        bounds: float32 vector, one entry for each tensor, the same on all replicas; 0, infinity and NaN may occur.

    Returns:
        Two float32 vectors of the same length: what to multiply by before the sum, and after it. Both are finite powers
        of two, and their product is 1.
    """
    import tensorflow as tf

    bits = tf.bitcast(bounds, tf.int32)
    exponent = tf.bitwise.bitwise_and(tf.bitwise.right_shift(bits, _FRACTION_BITS), 255)
    field = tf.clip_by_value(2 * _BIAS + _TOP - exponent, 1, _LARGEST_FIELD)
    return _power(field), _power(2 * _BIAS - field)


def bounds_of(tensors: list[Any]) -> Any:
    """The largest magnitude in each tensor: a float32 vector with an entry for each."""
    import tensorflow as tf

    return tf.stack([tf.reduce_max(tf.abs(tensor)) for tensor in tensors])


def _power(field: Any) -> Any:
    import tensorflow as tf

    return tf.bitcast(tf.bitwise.left_shift(field, _FRACTION_BITS), tf.float32)


def _narrow_type(strategy: Any) -> Any:
    """The 16-bit type for a strategy, or ``None``, with one warning that says why."""
    import tensorflow as tf
    from tensorflow.python.distribute import cross_device_ops, mirrored_strategy

    config = _config
    if config is None:
        return None
    extended, name = strategy.extended, type(strategy).__name__
    if not isinstance(extended, mirrored_strategy.MirroredExtended):  # MultiWorkerMirroredStrategy's is one
        if tf.distribute.has_strategy() and not isinstance(strategy, tf.distribute.OneDeviceStrategy):
            _warn(name, f"{name} does not all-reduce gradients, so they stay in float32", _OTHER_STRATEGY)
        return None
    if strategy.num_replicas_in_sync < 2:
        return None
    if config.allreduce == "bfloat16" and isinstance(extended._cross_device_ops, cross_device_ops.NcclAllReduce):
        _warn(name, "the operation NcclAllReduce has no bfloat16, so gradients stay in float32", _OTHER_TYPE)
        return None
    return tf.as_dtype(config.allreduce)


def _warn(strategy: str, what: str, fix: str) -> None:
    notices.warn_once(f"all_reduce.{strategy}", what, where=ALLREDUCE_VAR, fix=fix)


def _is_mean(reduce_op: Any) -> bool:
    return str(getattr(reduce_op, "value", reduce_op)).upper() == "MEAN"


def _count(flat: list[Any], chosen: list[int]) -> None:
    import tensorflow as tf

    sizes = [tensor.shape.num_elements() or 0 if tf.is_tensor(tensor) else 0 for tensor in flat]
    with _lock:
        _elements["narrow"] += sum(sizes[number] for number in chosen)
        _elements["wide"] += sum(size for number, size in enumerate(sizes) if number not in chosen)


def _summary_part() -> str:
    config = _config
    if config is None:
        return ""
    total = _elements["narrow"] + _elements["wide"]
    if not total:
        return f"{ALLREDUCE_VAR}={config.allreduce}: no gradients were summed over replicas"
    return f"gradients summed over replicas in {config.allreduce} ({_elements['narrow'] / total:.1%} of their elements)"
