"""Keeps an optimizer's moments in bfloat16, and everything else in float32 (``AMP_TF_OPTIMIZER_STATE``).

Keras 3 and tf_keras create what an optimizer keeps for a weight by ``add_variable_from_reference``. There a moment,
known by its name, gets another type; the optimizer's arithmetic stays in float32. Also in float32 stay variables from
which weights are computed (averages, FTRL's ``linear``, what ScheduleFreeAdamW calls its momentum, sums of gradients),
those whose names Keras does not use, and the two moments of a centered RMSprop, which divides by the root of their
difference. TF1's optimizers and tf_keras' legacy ones update their slots by kernels that take one type.

The variable is float32 to whoever reads, writes or saves it, as Keras' AutoCastVariable: it wraps what TensorFlow or a
distribution strategy made, and passes through what has nothing to do with its type.

What is written is rounded to bfloat16 at random, up or down with the odds that leave the mean where it is: 16 random
bits are added below the 16 that stay, and what is below is then cut off. A second moment changes by a thousandth of
itself in a step (Adam's ``beta_2``), and half the distance between two bfloat16 numbers is two to four thousandths:
rounded to nearest it never changes again (Gupta et al., "Deep Learning with Limited Numerical Precision", 2015).

The bits of a matrix are those of its row and its column, one XOR the other: each is uniform, any two are independent,
and few have to be made. They are a hash, because TensorFlow's generator takes as long as ten additions, and XLA would
call it for each element. They follow from the step and the variable's number alone, so that replicas get the same. All
integers are unsigned, because TensorFlow keeps int32 in the CPU's memory.
"""

from __future__ import annotations

import functools
import math
import operator
import sys
import threading
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import distribute_lib
from tensorflow.python.ops import control_flow_util, resource_variable_ops

from amp_tf.config import OPTIMIZER_STATE_VAR, AmpConfig
from amp_tf.hooks import notices, summary
from amp_tf.hooks.patches import Patches

_NAMES = ("accumulated_delta_var", "accumulated_grad", "accumulator", "average_gradient", "momentum", "norm")
MOMENTS = frozenset((*_NAMES, "velocity", "velocity_hat", "m", "u", "v", "vhat"))  #: the last four are tf_keras' names
_SMALLEST = 4096  # elements; below, rounding takes more than it saves: biases, scales, small kernels
_DELEGATED = (
    *("_constraint", "_shared_name", "aggregation", "constraint", "device", "graph", "initializer", "name", "op"),
    *("shape", "synchronization", "trainable"),
)  # what tf.Variable itself defines; the rest finds its way through __getattr__
_FIX = "There is nothing to do; docs/memory.md says what is kept in bfloat16"
_VALUE = "VARIABLE_VALUE"  # the name in a checkpoint
_STEP, _NUMBER, _MIX = 0x85EBCA6B, 0xC2B2AE35, 0x2C1B3C6D  # odd, and far from each other's small multiples
_SAFE = 3e38  # far enough below the largest bfloat16
_GOLDEN = 0x9E3779B9  # 2³² / the golden ratio: neighbours are far from each other

_patches = Patches()
_lock = threading.Lock()
_elements = {"narrow": 0, "wide": 0}
_here = threading.local()


def install(config: AmpConfig) -> None:
    """Keeps moments in bfloat16 from now on. Idempotent; optimizers built before stay."""
    for library in ("keras", "tf_keras"):
        optimizers: Any = getattr(sys.modules.get(library), "optimizers", None)
        if not hasattr(optimizers, "Optimizer"):
            continue
        if library == "keras" and sys.modules["keras"].backend.backend() != "tensorflow":
            continue
        for name, ours in (
            ("add_variable_from_reference", _add_variable),
            ("_distributed_tf_update_step", _step),  # Keras 3
            ("_distributed_apply_gradients_fn", _step),  # tf_keras
        ):
            if hasattr(optimizers.Optimizer, name):
                _patches.put(optimizers.Optimizer, name, ours)
        if library == "tf_keras":
            _patches.put(optimizers.legacy.Optimizer, "__init__", _warn_of_slots)
    _patches.put(tf.compat.v1.train.Optimizer, "__init__", _warn_of_slots)
    summary.add_part(_summary_part)


uninstall = _patches.restore  #: moments are made in float32 from now on; those that are in bfloat16 stay


def _add_variable(original: Any, optimizer: Any, /, *args: Any, **kwargs: Any) -> Any:
    reference = args[0] if args else kwargs.get("reference_variable", kwargs.get("model_variable"))
    name = args[1] if len(args) > 1 else kwargs.get("name", kwargs.get("variable_name"))
    is_narrow, key = False, "optimizer_state.failed"
    with notices.surviving(key, "a state stays in float32", where=OPTIMIZER_STATE_VAR, fix=_FIX):
        is_narrow = _is_narrow(optimizer, reference, name)  # which fails for a class that is unlike Keras' own
    if not is_narrow:
        return original(optimizer, *args, **kwargs)
    with tf.variable_creator_scope(_creator(optimizer)):
        return original(optimizer, *args, **kwargs)


def _is_narrow(optimizer: Any, reference: Any, name: Any) -> bool:
    """Whether the variable that is about to be made is a moment of a large float32 weight."""
    dtype = getattr(reference, "true_dtype", reference.dtype)  # of tf_keras' AutoCastVariable
    size = tf.TensorShape(reference.shape).num_elements() or 0
    if tf.as_dtype(dtype) != tf.float32 or size < _SMALLEST:
        return False
    kinds = [cls.__name__ for cls in type(optimizer).__mro__]
    left = ""
    if isinstance(tf.distribute.get_strategy(), tf.distribute.experimental.ParameterServerStrategy):
        left = "its variables are on parameter servers"
    elif getattr(optimizer, "_mesh", None) is not None:
        left = "its variables are on a mesh of DTensor"
    elif getattr(optimizer, "centered", False) and name != "momentum":
        left = "the difference of two moments counts"
    elif name not in MOMENTS or (name == "momentum" and "ScheduleFreeAdamW" in kinds):  # which calls weights so
        left = "it is not known as a moment"
    if left:
        _warn(f"{kinds[0]}.{name}", f"{name!r} of {kinds[0]} stays in float32: {left}")
    with _lock:
        _elements["wide" if left else "narrow"] += size
    return not left


def _creator(optimizer: Any) -> Any:
    """What makes the next variable in bfloat16."""
    number = len(optimizer._variables)  # the same in each run of a program

    def steps() -> Any:
        found = getattr(optimizer, "_iterations", None)
        return tf.convert_to_tensor(optimizer.iterations if found is None else found)  # Keras 3.0 to 3.4

    def create(next_creator: Any, **kwargs: Any) -> Any:
        initial = kwargs["initial_value"]
        kwargs["initial_value"] = lambda: tf.cast(initial() if callable(initial) else initial, tf.bfloat16)
        kwargs["dtype"] = tf.bfloat16
        return NarrowVariable(next_creator(**kwargs), steps, number)

    return create


def _step(original: Any, optimizer: Any, /, *args: Any, **kwargs: Any) -> Any:
    """A step of an optimizer. While it is traced, a variable, asked for several times in one formula, is cast once."""
    outer, _here.kept = getattr(_here, "kept", None), {}
    try:
        return original(optimizer, *args, **kwargs)
    finally:
        _here.kept = outer


def _warn_of_slots(init: Any, optimizer: Any, /, *args: Any, **kwargs: Any) -> None:
    init(optimizer, *args, **kwargs)
    kind = type(optimizer).__name__
    _warn("v1", f"the state of {kind} stays in float32: its kernels update slots of the weights' type alone")


def _warn(key: str, what: str) -> None:
    notices.warn_once(f"optimizer_state.{key}", what, where=OPTIMIZER_STATE_VAR, fix=_FIX)


def _summary_part() -> str:
    narrow, total = _elements["narrow"], sum(_elements.values())
    return f"{narrow / total:.1%} of the optimizers' state in bfloat16" if total else ""


class NarrowVariable(tf.Variable, tf.__internal__.types.Tensor):  # type: ignore[misc]
    """A variable of float32 that is kept in ``variable``, in bfloat16, and rounded stochastically.

    ``steps`` returns the number of the step as values are assigned, the same on all replicas; ``number`` is the
    variable's, so that no two are rounded alike.
    """

    def __init__(self, variable: Any, steps: Callable[[], Any], number: int) -> None:
        self._variable = variable
        self._steps = steps
        self._number = number
        self._should_act_as_resource_variable = True  # a mark that TensorFlow looks for where it saves

    def __getattr__(self, name: str) -> Any:
        if name == "_variable":  # asked for by copy, before it is there
            raise AttributeError(name)
        return getattr(self._variable, name)

    def __repr__(self) -> str:
        return f"<amp_tf.NarrowVariable {self.name!r} shape={self.shape}, float32 kept in bfloat16>"

    @property
    def dtype(self) -> Any:
        """The type of what is read and written."""
        return tf.float32

    @property
    def kept_in(self) -> Any:
        """The variable of bfloat16."""
        return self._variable

    def value(self) -> Any:
        kept, place = _place(self)
        if place not in kept:
            kept[place] = tf.cast(self._variable.value(), tf.float32)
        return kept[place]

    read_value = value

    def numpy(self) -> Any:
        return self.value().numpy()

    def assign(self, value: Any, use_locking: Any = None, name: Any = None, read_value: bool = True) -> Any:
        value = tf.ensure_shape(tf.cast(tf.convert_to_tensor(value), tf.float32), self.shape)
        self._variable.assign(round_stochastically(value, self._steps(), self._number))
        kept, place = _place(self)
        kept.pop(place, None)
        return self

    def assign_add(self, delta: Any, use_locking: Any = None, name: Any = None, read_value: bool = True) -> Any:
        return self.assign(self.value() + delta)

    def assign_sub(self, delta: Any, use_locking: Any = None, name: Any = None, read_value: bool = True) -> Any:
        return self.assign(self.value() - delta)

    def sparse_read(self, indices: Any, name: Any = None) -> Any:
        return tf.cast(self._variable.sparse_read(indices, name=name), tf.float32)

    def _scatter(
        self, combine: Callable[..., Any], sparse_delta: Any, use_locking: Any = False, name: Any = None
    ) -> Any:
        """Changes some rows. All are written again; where nothing changes, they are exact and stay as they are."""
        values = tf.cast(sparse_delta.values, tf.float32)
        return self.assign(combine(self.value(), sparse_delta.indices[:, tf.newaxis], values))

    scatter_add = functools.partialmethod(_scatter, tf.tensor_scatter_nd_add)
    scatter_sub = functools.partialmethod(_scatter, tf.tensor_scatter_nd_sub)
    scatter_update = functools.partialmethod(_scatter, tf.tensor_scatter_nd_update)

    def __tf_tensor__(self, dtype: Any = None, name: Any = None) -> Any:
        return tf.convert_to_tensor(self.value(), dtype=dtype, name=name)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.numpy() if dtype is None else self.numpy().astype(dtype)

    def _serialize_to_tensors(self) -> dict[str, Any]:
        return {_VALUE: self.value()}

    def _restore_from_tensors(self, restored_tensors: dict[str, Any]) -> Any:
        self._variable.assign(tf.cast(restored_tensors[_VALUE], tf.bfloat16))
        return self

    def _gather_saveables_for_checkpoint(self) -> Any:
        return tf.__internal__.tracking.Trackable._gather_saveables_for_checkpoint(self)

    def _write_object_proto(self, proto: Any, options: Any) -> None:
        resource_variable_ops.write_object_proto_for_resource_variable(self, proto, options)

    def _export_to_saved_model_graph(self, object_map: Any, tensor_map: Any, options: Any, **kwargs: Any) -> Any:
        resources = self._variable._export_to_saved_model_graph(object_map, tensor_map, options, **kwargs)
        object_map[self] = object_map[self._variable]
        return resources

    def _copy_trackable_to_cpu(self, object_map: Any) -> None:
        if self in object_map:
            object_map[self].assign(self.value())
        else:
            object_map[self] = tf.Variable(self.value(), trainable=False)


for _name in _DELEGATED:
    setattr(NarrowVariable, _name, property(operator.attrgetter(f"kept_in.{_name}")))
tf.register_tensor_conversion_function(
    NarrowVariable, lambda variable, dtype=None, name=None, as_ref=False: variable.__tf_tensor__(dtype, name)
)


def _place(variable: NarrowVariable) -> tuple[dict[Any, Any], Any]:
    """Where the value of a variable is kept for one graph and, in an update, one replica."""
    kept = getattr(_here, "kept", None)
    if kept is None or tf.executing_eagerly():
        return {}, None
    replica = distribute_lib.get_update_replica_id()  # the updated variable itself where there is one replica
    return kept, (id(variable), tf.compat.v1.get_default_graph(), replica if isinstance(replica, int) else 0)


def round_stochastically(value: Any, step: Any, number: int) -> Any:
    """A float32 tensor of known shape in bfloat16, each element one of its two neighbours there, the value in the mean.

    ``step`` and ``number``, integers, choose the random bits. What is exact in bfloat16 stays, zeros with their sign.
    Elements that are infinite, NaN or beyond 3e38 are rounded towards zero, which keeps infinities and NaNs and makes
    none; outside of XLA so are all beside them, and all where the sum of squares is beyond float32.
    """
    shape = value.shape.as_list()
    cuts = range(len(shape) + 1)  # into the dimensions of rows and of columns, so that their sum is least
    split = min(cuts, key=lambda cut: math.prod(shape[:cut]) + math.prod(shape[cut:]))
    rows, columns = math.prod(shape[:split]), math.prod(shape[split:])
    # As many integers of 16 bits: a hash of their position, which TensorFlow folds, the step and the number.
    golden, by_step, mix, none = (tf.constant(each, tf.uint32) for each in (_GOLDEN, _STEP, _MIX, 0))
    start = tf.cast(step, tf.uint32) * by_step + tf.constant(number * _NUMBER % 2**32, tf.uint32)
    words = tf.cast(tf.range(rows + columns), tf.uint32) * golden + start
    words = tf.bitwise.bitwise_xor(words, tf.bitwise.right_shift(words, tf.constant(15, tf.uint32))) * mix
    words = tf.bitwise.right_shift(words, tf.constant(16, tf.uint32))
    row, column = words[:rows, tf.newaxis], words[rows:]
    if control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        # costs nothing in XLA's loop, which a sum would end
        is_safe = tf.reshape(tf.abs(value) < _SAFE, (rows, columns))
        noise = tf.where(is_safe, tf.bitwise.bitwise_xor(row, column), none)
    else:
        is_safe = tf.math.is_finite(tf.nn.l2_loss(value))  # a pass that writes nothing
        noise = tf.bitwise.bitwise_xor(tf.where(is_safe, row, none), tf.where(is_safe, column, none))
    bits = tf.bitcast(tf.reshape(value, (rows, columns)), tf.uint32)
    high = tf.bitcast(bits + noise, tf.uint16)[..., 1]  # the last dimension is the low half and the high one
    return tf.reshape(tf.bitcast(high, tf.bfloat16), shape)
