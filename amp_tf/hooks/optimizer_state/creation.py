"""Makes the moments of Keras 3's and tf_keras' optimizers in bfloat16 (``AMP_TF_OPTIMIZER_STATE``).

Both libraries create what an optimizer keeps for a weight by ``add_variable_from_reference``, so this is the one place
where a moment gets another type; the optimizer's arithmetic stays as it is, in float32. A moment is known by its name.
What weights are made of stays in float32: averages of weights, FTRL's ``linear``, what ScheduleFreeAdamW calls its
momentum, sums of gradients, and every name that is none of Keras' own. So do the two moments of a centered RMSprop: it
divides by the root of their difference, which would be negative where the rounding is larger than the variance.

TF1's optimizers and tf_keras' legacy ones update their slots by kernels that take one type, so these are left alone.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

from amp_tf.config import OPTIMIZER_STATE_VAR, AmpConfig
from amp_tf.hooks.patches import Patches, calling
from amp_tf.hooks.process import notices, summary

_NAMES = ("accumulated_delta_var", "accumulated_grad", "accumulator", "average_gradient", "momentum", "norm")
MOMENTS = frozenset((*_NAMES, "velocity", "velocity_hat", "m", "u", "v", "vhat"))  #: the last four are tf_keras' names
_SCHEDULE_FREE, _WEIGHTS = "ScheduleFreeAdamW", {"momentum"}  # its momentum is where the weights go
_SMALLEST = 4096  # elements; below, rounding takes more than it saves: biases, scales, small kernels

_patches = Patches()
_lock = threading.Lock()
_elements = {"narrow": 0, "wide": 0}


def install(config: AmpConfig) -> None:
    """Keeps moments in bfloat16 from now on, or leaves Keras alone. Idempotent; optimizers built before stay."""
    if config.optimizer_state == "float32":
        uninstall()
        return
    import tensorflow as tf

    for library in ("keras", "tf_keras"):
        optimizers: Any = getattr(sys.modules.get(library), "optimizers", None)
        if not hasattr(optimizers, "Optimizer") or (library == "keras" and not _runs_on_tensorflow()):
            continue
        for name, ours in (
            ("add_variable_from_reference", _add_variable),
            ("_distributed_tf_update_step", _step),  # Keras 3
            ("_distributed_apply_gradients_fn", _step),  # tf_keras
        ):
            if hasattr(optimizers.Optimizer, name):
                owner = next(cls for cls in optimizers.Optimizer.__mro__ if name in vars(cls))
                _patches.put(owner, name, calling(ours))
        if hasattr(optimizers, "legacy") and library == "tf_keras":
            _patches.put(optimizers.legacy.Optimizer, "__init__", calling(_left))
    if hasattr(tf, "compat"):
        _patches.put(tf.compat.v1.train.Optimizer, "__init__", calling(_left))
    summary.add_part(_summary_part)


def uninstall() -> None:
    """Makes moments in float32 from now on; those that are in bfloat16 stay. Idempotent."""
    _patches.restore()


def _runs_on_tensorflow() -> bool:
    return bool(sys.modules["keras"].backend.backend() == "tensorflow")


def _add_variable(original: Any, optimizer: Any, /, *args: Any, **kwargs: Any) -> Any:
    """``add_variable_from_reference(variable, name, …)``, as both libraries have it."""
    import tensorflow as tf

    reference = args[0] if args else kwargs.get("reference_variable", kwargs.get("model_variable"))
    name = args[1] if len(args) > 1 else kwargs.get("name", kwargs.get("variable_name"))
    try:
        is_narrow = _is_narrow(optimizer, reference, name)
    except Exception as error:  # a class that is unlike Keras' own
        is_narrow = False
        _warn("failed", f"a state stays in float32 ({type(error).__name__}: {error})")
    if not is_narrow:
        return original(optimizer, *args, **kwargs)
    with tf.variable_creator_scope(_creator(optimizer)):
        return original(optimizer, *args, **kwargs)


def _is_narrow(optimizer: Any, reference: Any, name: Any) -> bool:
    """Whether the variable that is about to be made is a moment of a large float32 weight."""
    import tensorflow as tf

    dtype = getattr(reference, "true_dtype", reference.dtype)  # of tf_keras' AutoCastVariable
    size = tf.TensorShape(reference.shape).num_elements() or 0
    if tf.as_dtype(dtype) != tf.float32 or size < _SMALLEST:
        return False
    if left := _why_left(optimizer, name):
        kind = type(optimizer).__name__
        _warn(f"{kind}.{name}", f"{name!r} of {kind} stays in float32: {left}")
    with _lock:
        _elements["wide" if left else "narrow"] += size
    return not left


def _why_left(optimizer: Any, name: Any) -> str:
    """Why a variable stays in float32; empty for a moment that does not."""
    import tensorflow as tf

    if isinstance(tf.distribute.get_strategy(), tf.distribute.experimental.ParameterServerStrategy):
        return "its variables are on parameter servers"
    if getattr(optimizer, "_mesh", None) is not None:
        return "its variables are on a mesh of DTensor"
    if getattr(optimizer, "centered", False) and name != "momentum":
        return "the difference of two moments counts"
    names = MOMENTS - _WEIGHTS if any(cls.__name__ == _SCHEDULE_FREE for cls in type(optimizer).__mro__) else MOMENTS
    return "" if name in names else "it is not known as a moment"


def _creator(optimizer: Any) -> Any:
    """What makes the next variable in bfloat16."""
    import tensorflow as tf

    from amp_tf.hooks.optimizer_state.variable import NarrowVariable

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
    from amp_tf.hooks.optimizer_state.variable import step

    with step():
        return original(optimizer, *args, **kwargs)


def _left(init: Any, optimizer: Any, /, *args: Any, **kwargs: Any) -> None:
    init(optimizer, *args, **kwargs)
    kind = type(optimizer).__name__
    _warn("v1", f"the state of {kind} stays in float32: its kernels update slots of the weights' type alone")


def _warn(key: str, what: str) -> None:
    fix = "There is nothing to do; docs/memory.md says what is kept in bfloat16"
    notices.warn_once(f"optimizer_state.{key}", what, where=OPTIMIZER_STATE_VAR, fix=fix)


def _summary_part() -> str:
    narrow, total = _elements["narrow"], sum(_elements.values())
    return f"{narrow / total:.1%} of the optimizers' state in bfloat16" if total else ""
