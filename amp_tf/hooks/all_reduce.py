"""What replicas and workers must do alike: sums of gradients in 16 bit, and the settings of all
workers of a job.

**Sums** (``AMP_TF_ALLREDUCE``). Keras 3 and custom loops sum gradients by
``ReplicaContext.all_reduce``, tf_keras and TF1 optimizers by ``StrategyExtended.batch_reduce_to``
from the cross-replica context. Both are wrapped: large float32 tensors are cast to 16 bit, summed,
and cast back, where the step is traced: TensorFlow ends the training if replicas disagree about the
type of a collective operation. A mean is a sum, divided in float32. ``scope("float32")`` never
spans a sum, because other replicas are traced meanwhile in the same graph.

The loss-scale optimizer unscales before the sum, so float16, which ends at 65504 and loses digits
below 2^-14, gets a scale of its own. Replica ``w`` holds ``g_w``; the sum over replicas of ``max
|g_w|`` bounds every partial sum, in any order of additions. Scaled by the power of two that brings
this bound below 2^15, no sum overflows, and numbers down to 2^-29 of the bound keep all their
digits. Exponents are computed on the bits: logarithms may differ between machines by a digit, and
replicas that scale differently would be silently wrong.

**Settings.** Where they differ, some workers would skip a step that the others apply. Each worker
of a MultiWorkerMirroredStrategy publishes that amp_tf is on as soon as it is connected, and its
settings at the first ``strategy.run`` after they changed, which all workers make together, in the
key-value store of TensorFlow's coordination service. Where settings differ, every worker stops
there, before anything is trained.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
import threading
from collections.abc import Callable
from typing import Any

from amp_tf.config import ALLREDUCE_VAR, AmpConfig
from amp_tf.errors import ConfigError
from amp_tf.hooks import loss_scaling, notices, summary
from amp_tf.hooks.patches import Patches
from amp_tf.hooks.scope import scope
from amp_tf.hooks.state import patches as patches_of
from amp_tf.hooks.state import settings
from amp_tf.oplists.op_names import registered_rows

# Kernels and tables have two dimensions and more. Losses, metrics, statistics of a batch and flags
# have one at most and stay exact; biases are not worth a cast.
_SMALLEST = 1024

_OTHER_STRATEGY = f"Unset {ALLREDUCE_VAR}, or use MirroredStrategy or MultiWorkerMirroredStrategy"
_OTHER_TYPE = (
    f"Set {ALLREDUCE_VAR}=float16, or give MirroredStrategy no cross_device_ops: its own take "
    "bfloat16"
)

_FRACTION_BITS = 23  # of float32
_BIAS = 127
_TOP = 14  # bounds are brought to [2^14, 2^15)
_LARGEST_FIELD = (
    253  # so that the inverse is a normal number too: some devices flush others to zero
)

_OF_ONE_WORKER = frozenset({"log_path", "report_path"})
_PRESENCE_SECONDS = 60.0  # the others connected together with this one, and published at once
_SETTINGS_SECONDS = 600.0  # until all workers have reached the same step

_lock = threading.Lock()
_elements = {"narrow": 0, "wide": 0}
_is_announced = False
_agreed: AmpConfig | None = None  # the settings that were compared last
_rounds = itertools.count(1)  # of comparisons, which all workers make in the same order


def install(patches: Patches) -> None:
    """Sums gradients in ``AmpConfig.allreduce`` and compares the settings of workers from now on.

    Idempotent.
    """
    from tensorflow.python.distribute import collective_all_reduce_strategy, distribute_lib

    extended = collective_all_reduce_strategy.CollectiveAllReduceExtended
    patches.put(extended, "_initialize_multi_worker", _connect)
    patches.put(distribute_lib.StrategyBase, "run", _run)
    with _surviving():
        _announce()  # the program may have connected before it turned amp_tf on
    if settings().allreduce != "float32":
        patches.put(distribute_lib.ReplicaContextBase, "all_reduce", _all_reduce)
        patches.put(distribute_lib.StrategyExtendedV2, "batch_reduce_to", _batch_reduce_to)
        summary.add_part(_summary_part)


def is_large_gradient(tensor: Any) -> bool:
    """Whether a value that is being summed is a large dense float32 gradient, judged by its static
    shape.
    """
    import tensorflow as tf

    if (
        not tf.is_tensor(tensor)
        or isinstance(tensor, tf.IndexedSlices)
        or tensor.dtype != tf.float32
    ):
        return False
    sizes = tensor.shape.as_list() if tensor.shape.is_fully_defined() else []
    return (
        int(tensor.shape.num_elements() or 0) >= _SMALLEST and sum(size > 1 for size in sizes) >= 2
    )


def _all_reduce(
    original: Any, context: Any, reduce_op: Any, value: Any, options: Any = None
) -> Any:
    import tensorflow as tf

    flat = tf.nest.flatten(value)
    chosen, dtype = _choose(context.strategy, flat)
    if not chosen:
        return original(context, reduce_op, value, options)
    rest = [number for number in range(len(flat)) if number not in chosen]
    sum_up = functools.partial(original, context, "SUM", options=options)
    sums = _sum_narrow(sum_up, [flat[number] for number in chosen], dtype)
    if (
        str(getattr(reduce_op, "value", reduce_op)).upper() == "MEAN"
    ):  # in float32: TensorFlow would divide in 16 bit
        sums = [total / context.num_replicas_in_sync for total in sums]
    others = (
        original(context, reduce_op, [flat[number] for number in rest], options) if rest else []
    )
    results = dict(zip([*chosen, *rest], [*sums, *others], strict=True))
    _count(flat, chosen)
    return tf.nest.pack_sequence_as(value, [results[number] for number in range(len(flat))])


def _batch_reduce_to(
    original: Any, extended: Any, reduce_op: Any, value_destination_pairs: Any, options: Any = None
) -> Any:
    """``StrategyExtended.batch_reduce_to``, called once for all replicas: hands gradients to
    :func:`_all_reduce`.
    """
    import tensorflow as tf

    pairs = list(value_destination_pairs)
    values = [value for value, _ in pairs]
    firsts = [extended._local_results(value)[0] for value in values]
    if not _choose(extended._container_strategy(), firsts)[0]:
        return original(extended, reduce_op, pairs, options)

    def reduce(replica_values: Any) -> Any:
        return tf.distribute.get_replica_context().all_reduce(reduce_op, replica_values, options)

    return extended.call_for_each_replica(reduce, args=(values,))


def _choose(strategy: Any, tensors: list[Any]) -> tuple[list[int], Any]:
    """Which tensors are summed in 16 bit, and in which type: the same on all replicas, which run
    the same program.
    """
    chosen, dtype = list[int](), None
    fix = "Please report this"
    with notices.surviving(
        "all_reduce.failed", "gradients stay in float32", where=ALLREDUCE_VAR, fix=fix
    ):
        chosen = [number for number, tensor in enumerate(tensors) if is_large_gradient(tensor)]
        dtype = _narrow_type(strategy) if chosen else None
    return (chosen, dtype) if dtype is not None else ([], None)


def _sum_narrow(sum_up: Callable[[Any], Any], tensors: list[Any], dtype: Any) -> list[Any]:
    """Sums float32 tensors over replicas in a 16-bit type; each replica gets the same float32
    results.
    """
    import tensorflow as tf

    if dtype != tf.float16:
        return [
            tf.cast(total, tf.float32)
            for total in sum_up([tf.cast(tensor, dtype) for tensor in tensors])
        ]
    with scope("float32"):  # in float16 the factors themselves would be infinite
        bounds = tf.stack([tf.reduce_max(tf.abs(tensor)) for tensor in tensors])
    bounds = sum_up(bounds)
    with scope("float32"):
        before, after = map(tf.unstack, scales(bounds))
        scaled = [
            tf.cast(tensor * factor, dtype) for tensor, factor in zip(tensors, before, strict=True)
        ]
    totals = sum_up(scaled)
    with scope("float32"):
        return [
            tf.cast(total, tf.float32) * factor for total, factor in zip(totals, after, strict=True)
        ]


def scales(bounds: Any) -> tuple[Any, Any]:
    """What to multiply the tensors of a group by before the sum, and after it: finite powers of
    two, inverse.

    ``bounds`` is a float32 vector, one entry for each tensor, the same on all replicas; 0, infinity
    and NaN may occur.
    """
    import tensorflow as tf

    bits = tf.bitcast(bounds, tf.int32)
    exponent = tf.bitwise.bitwise_and(tf.bitwise.right_shift(bits, _FRACTION_BITS), 255)
    field = tf.clip_by_value(2 * _BIAS + _TOP - exponent, 1, _LARGEST_FIELD)
    before, after = (
        tf.bitcast(tf.bitwise.left_shift(each, _FRACTION_BITS), tf.float32)
        for each in (field, 2 * _BIAS - field)
    )
    return before, after


def _narrow_type(strategy: Any) -> Any:
    """The 16-bit type for a strategy, or ``None``, with one warning that says why."""
    import tensorflow as tf
    from tensorflow.python.distribute import cross_device_ops, mirrored_strategy

    allreduce = settings().allreduce
    if allreduce == "float32":  # by now
        return None
    extended, name = strategy.extended, type(strategy).__name__
    if not isinstance(
        extended, mirrored_strategy.MirroredExtended
    ):  # MultiWorkerMirroredStrategy's is one
        if tf.distribute.has_strategy() and not isinstance(
            strategy, tf.distribute.OneDeviceStrategy
        ):
            _warn(
                name,
                f"{name} does not all-reduce gradients, so they stay in float32",
                _OTHER_STRATEGY,
            )
        return None
    if strategy.num_replicas_in_sync < 2:
        return None
    if allreduce == "bfloat16" and isinstance(
        extended._cross_device_ops, cross_device_ops.NcclAllReduce
    ):
        _warn(
            name,
            "the operation NcclAllReduce has no bfloat16, so gradients stay in float32",
            _OTHER_TYPE,
        )
        return None
    return tf.as_dtype(allreduce)


def _warn(strategy: str, what: str, fix: str) -> None:
    notices.warn_once(f"all_reduce.{strategy}", what, where=ALLREDUCE_VAR, fix=fix)


def _count(flat: list[Any], chosen: list[int]) -> None:
    import tensorflow as tf

    with _lock:
        for number, tensor in enumerate(flat):
            size = tensor.shape.num_elements() if tf.is_tensor(tensor) else 0
            _elements["narrow" if number in chosen else "wide"] += size or 0


def _summary_part() -> str:
    allreduce = settings().allreduce
    if not patches_of(__name__) or allreduce == "float32":
        return ""
    narrow, total = _elements["narrow"], sum(_elements.values())
    if not total:
        return f"{ALLREDUCE_VAR}={allreduce}: no gradients were summed over replicas"
    return f"gradients summed over replicas in {allreduce} ({narrow / total:.1%} of their elements)"


def _connect(original: Any, *args: Any, **kwargs: Any) -> Any:
    result = original(*args, **kwargs)
    with _surviving():
        _announce()
    return result


def _run(original: Any, strategy: Any, /, *args: Any, **kwargs: Any) -> Any:
    global _agreed
    if settings() is not _agreed:
        _agreed = settings()
        difference = ""
        with _surviving():
            difference = _compare()
        if difference:
            raise ConfigError(
                difference,
                where=f"MultiWorkerMirroredStrategy, {_name(_key(_server()))}",
                fix="Set the same variables of amp_tf for every worker, AMP_TF_PRECISION where their devices differ: "
                "what one of them skips, all must skip",
            )
    return original(strategy, *args, **kwargs)


def _surviving() -> contextlib.AbstractContextManager[None]:
    what, where = "the settings of the workers are not compared", "MultiWorkerMirroredStrategy"
    return notices.surviving("workers", what, where=where, fix="Set the same ones for each worker")


def _announce() -> None:
    """Tells the other workers that amp_tf is on here, if this process is a worker that is
    connected.
    """
    global _is_announced
    from tensorflow.python.eager import context

    with _lock:
        if not _is_announced and (server := _server()) is not None:
            context.context().set_config_key_value(_key(server), "on")
            _is_announced = True


def _compare() -> str:
    """How the settings of another worker differ from those here; empty where none do."""
    server = _server()
    if server is None:
        return ""
    from tensorflow.python.eager import context

    _announce()
    facts = {
        name: value
        for name, value in dataclasses.asdict(settings()).items()
        if name not in _OF_ONE_WORKER
    }
    facts["loss scaling"] = loss_scaling.runs_in_float16()
    facts |= {f"the list of op {row.op}": row.op_list for row in registered_rows()}
    mine: dict[str, Any] = json.loads(json.dumps(facts))  # as the others read it
    suffix = f"/{next(_rounds)}"
    context.context().set_config_key_value(_key(server) + suffix, json.dumps(mine))
    jobs = [job for job in server.cluster.job if job.name in ("chief", "worker")]
    others = [f"amp_tf/{job.name}/{task}" for job in jobs for task in job.tasks]
    present = _read(others, _PRESENCE_SECONDS)
    for other in others:
        if other not in present:
            return f"{_name(other)} runs without amp_tf"
    found = _read([other + suffix for other in others], _SETTINGS_SECONDS)
    context.context().set_config_key_value(f"{_key(server)}{suffix}/read", "yes")
    for other in others:
        if other + suffix not in found:
            raise TimeoutError(
                f"{_name(other)} publishes none within {_SETTINGS_SECONDS / 60:.0f} minutes"
            )
        theirs = json.loads(found[other + suffix])
        if differing := [name for name in {**theirs, **mine} if theirs.get(name) != mine.get(name)]:
            _read(
                [f"{key}{suffix}/read" for key in others], _PRESENCE_SECONDS
            )  # a coordinator's end cuts them off
            both = (
                f"{name} is {theirs.get(name)!r} there and {mine.get(name)!r} here"
                for name in differing
            )
            return f"{_name(other)} and this one differ in amp_tf's settings: {'; '.join(both)}"
    return ""


def _read(keys: list[str], seconds: float) -> dict[str, str]:
    """The values of those keys that arrive within a number of seconds."""
    from tensorflow.python.eager import context

    found: dict[str, str] = {}

    def read() -> None:
        for key in keys:
            found[key] = context.context().get_config_key_value(key)

    reader = threading.Thread(
        target=read, name="amp_tf workers", daemon=True
    )  # it may wait for ever
    reader.start()
    reader.join(seconds)
    return found


def _server() -> Any:
    """The ServerDef of this worker, if it is connected."""
    from tensorflow.python.eager import context

    running = context.context_safe()
    is_connected = (
        running is not None and running._initialized and running.coordination_service is not None
    )
    return running._collective_ops_server_def if is_connected else None


def _key(server: Any) -> str:
    return f"amp_tf/{server.job_name}/{server.task_index}"


def _name(key: str) -> str:
    return " ".join(key.split("/")[1:3])
