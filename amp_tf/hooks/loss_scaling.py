"""Automatic loss scaling: what ``TF_ENABLE_AUTO_MIXED_PRECISION_LOSS_SCALING`` does to Keras, tf_keras and TF1.

:func:`install` patches each library that is imported so far and may be called again after another import; TensorFlow's
own patches are in :mod:`amp_tf.hooks.loss_scaling_v1`. A patch acts only if the process' graphs run in float16, which
is asked when an optimizer is used, because devices are not known before. An optimizer that already scales its loss is
left alone.

Optimizers are wrapped after ``compile``, so that files name the bare optimizer and load without amp_tf. The monitor
that ``fit`` adds only logs, and adds nothing to the history; one added by the user raises.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

from amp_tf.config import AmpConfig
from amp_tf.hooks import notices, summary
from amp_tf.hooks import state as process_state
from amp_tf.hooks.patches import Patch, Patches, calling
from amp_tf.loss_scaling import LossScaleOptimizer, is_loss_scaled, ledger
from amp_tf.oplists.targets import resolve_target
from amp_tf.precision import Precision

# library -> what its patches use, which exists once its import is done
_NEEDED = {"keras": ("Model", "optimizers"), "tf_keras": ("Model", "optimizers"), "tensorflow": ("compat",)}
_CUSTOM_LOOP = "loss_scaling.custom_loop"
_MODELS_SHOWN = 3  # in the line at exit, because a hyperparameter search trains hundreds
_CALLBACKS = 5  #: the position of ``callbacks`` among the arguments of ``fit`` after the model, in both libraries

# The wrappers that no user wrote.
_wrapped_here: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


_lock = threading.RLock()
_patches: dict[str, Patches] = {}
_asked: Callable[[], bool] | None = None  # whether graphs run in float16; none once the hook is uninstalled


def runs_in_float16() -> bool:
    """Whether losses are scaled automatically in this process. Asks for the GPUs."""
    asked = _asked
    return asked is not None and asked()


def should_scale(optimizer: Any) -> bool:
    """Whether this optimizer needs a loss scale and does not have one."""
    return optimizer is not None and not is_loss_scaled(optimizer) and runs_in_float16()


def is_told() -> bool:
    """Whether this process was warned already that a loop does not scale its loss."""
    return _CUSTOM_LOOP in notices.said


def warn_bare_loop(where: str) -> None:
    """Warns once that a float16 loop without an optimizer does not scale its loss, and says what to write."""
    notices.warn_once(
        _CUSTOM_LOOP,
        "variables are written by gradients of a loss that is not scaled, in float16, so small gradients are lost",
        where=where,
        fix="Write scaler = amp_tf.LossScaler() before the loop and in the step, in this order, scaled_loss = "
        "scaler.scale(loss) inside the tape, gradients = scaler.unscale(tape.gradient(scaled_loss, variables)), "
        "and scaler.step(apply, gradients), where apply(gradients) writes the variables. For no scaling at all, or "
        "where the program scales its loss itself, set TF_ENABLE_AUTO_MIXED_PRECISION_LOSS_SCALING=0",
    )


def survive(where: str, action: Callable[..., Any], *args: Any) -> Any:
    """Calls a part of a hook; if it fails, warns once and returns ``None``, and the program goes on."""
    try:
        return action(*args)
    except Exception as error:
        notices.warn_once(
            f"loss_scaling.{where}",
            f"automatic loss scaling failed ({type(error).__name__}: {error}); the program goes on without it",
            where=where,
            fix="Wrap the optimizer in amp_tf.LossScaleOptimizer by hand, and please report this",
        )
        return None


def install(config: AmpConfig, runs_in_float16: Callable[[], bool] | None = None) -> bool:
    """Wraps optimizers automatically from now on, in the libraries that are imported; returns whether any is patched.

    With the precision ``bfloat16`` nothing is ever scaled, and nothing is patched. ``runs_in_float16`` is asked each
    time an optimizer is used; by default it resolves the precision on the devices that TensorFlow sees then.
    """
    global _asked
    with _lock:
        if config.precision == "bfloat16":
            uninstall()
            return False
        _asked = runs_in_float16 or functools.partial(resolves_to_float16, config)
        for library, needed in _NEEDED.items():
            # import keras imports tensorflow while keras is half done
            module = vars(sys.modules.get(library, object))
            if library not in _patches and all(name in module for name in needed):
                survive(f"amp_tf.hooks ({library})", _patch, library)
        summary.add_part(describe)
        return bool(_patches)


def resolves_to_float16(config: AmpConfig) -> bool:
    """Whether the graphs of this process run in float16. Asks for the GPUs, so not before a script may choose them."""
    target = resolve_target(config, process_state.hardware()).target
    return target is not None and target.precision is Precision.FLOAT16


def replace(library: str, owner: Any, attribute: str, make: Callable[[Any], Any]) -> None:
    """Adds a patch to those of a library, which :func:`uninstall` takes back; does nothing once they are taken back."""
    with _lock:
        if library in _patches:
            _patches[library].put(owner, attribute, make)


def describe() -> str:
    """The part of the line at exit about loss scaling; empty where no loss was scaled."""
    from amp_tf.reporting import process

    seen, more = ledger.statuses()
    state = process_state.current()
    if state.off == "" and not state.idle and Precision.FLOAT16 not in process.totals().precisions:
        # the rewrite is on and no graph became float16, so no loss needed to be scaled
        seen = [(label, status) for label, status in seen if status.skipped]
    more += len(seen[:-_MODELS_SHOWN])
    is_alone = len(seen) == 1 and not more
    labels = [label for label, _ in seen]
    numbers = {label: itertools.count(1) for label in labels if labels.count(label) > 1}
    names = ["" if is_alone else f"{n} {next(numbers[n])}: " if n in numbers else f"{n}: " for n in labels]
    parts = [
        f"{name}loss scale {ledger.format_scale(status.scale)}, {status.skipped:,} of {status.steps:,} steps skipped"
        for name, (_, status) in list(zip(names, seen, strict=True))[-_MODELS_SHOWN:]
    ]
    return "; ".join([*parts, *([f"{more:,} more model{'s' * (more > 1)}"] if more else [])])


def uninstall() -> None:
    """Takes every patch back; optimizers that were wrapped stay so. Idempotent."""
    global _asked
    with _lock:
        _asked = None
        for patches in _patches.values():
            patches.restore()
        _patches.clear()


def _patch(library: str) -> None:
    is_v1 = library == "tensorflow"
    rows = importlib.import_module("amp_tf.hooks.loss_scaling_v1").patches() if is_v1 else _keras_patches(library)
    _patches[library] = Patches()
    for owner, attribute, make in rows:
        replace(library, owner, attribute, make)


def _keras_patches(library: str) -> list[Patch]:
    """The patches of models, of optimizers, and of the metadata in .h5 files."""
    home = sys.modules[library]
    optimizers = home.optimizers
    rows = [(home.Model, "compile", calling(_compile)), (home.Model, "fit", calling(_fit))]
    if library == "keras":
        metadata = "keras.src.legacy.saving.saving_utils"
        # The last one is Keras' own; amp_tf's wrapper marks its inner step itself.
        steps = [(optimizers.Optimizer, "apply_gradients"), (optimizers.Optimizer, "apply")]
        steps += [(optimizers.LossScaleOptimizer, "apply")]
    else:
        metadata = "tf_keras.src.saving.legacy.saving_utils"
        steps = [(cls, "apply_gradients") for cls in (optimizers.Optimizer, optimizers.legacy.Optimizer)]
        # What tf_keras.Model becomes after tf.compat.v1.disable_v2_behavior(). Its monitor would have nothing to read.
        model_v1 = importlib.import_module("tf_keras.src.engine.training_v1").Model
        rows.append((model_v1, "compile", calling(_compile)))
    rows += [(cls, name, calling(_watch, name)) for cls, name in steps]
    found = [(next(base for base in cls.__mro__ if name in vars(base)), name, make) for cls, name, make in rows]
    with contextlib.suppress(ImportError):  # the module is private: a version may lack it
        make = calling(_model_metadata, home.saving.get_registered_name)
        found.append((importlib.import_module(metadata), "model_metadata", make))
    return found


def _compile(compile: Any, model: Any, /, *args: Any, **kwargs: Any) -> Any:
    given: Any = args[0] if args else kwargs.get("optimizer")
    if _is_wrapped_here(given):  # model.compile(model.optimizer): saved configurations keep the bare one
        bare = given.inner_optimizer
        args, kwargs = ((bare, *args[1:]), kwargs) if args else (args, {**kwargs, "optimizer": bare})
    result = compile(model, *args, **kwargs)
    if _is_wrapped_here(given):
        with model.distribute_strategy.scope():
            model.optimizer = given
    elif kwargs.get("auto_scale_loss", True):
        survive("Model.compile", _wrap_compiled, model)
    return result


def _wrap_compiled(model: Any) -> None:
    if should_scale(getattr(model, "optimizer", None)):
        with model.distribute_strategy.scope():
            model.optimizer = LossScaleOptimizer(model.optimizer)
        _wrapped_here[id(model.optimizer)] = model.optimizer


def _is_wrapped_here(optimizer: Any) -> bool:
    return optimizer is not None and _wrapped_here.get(id(optimizer)) is optimizer


def _model_metadata(registered_name: Any, model_metadata: Any, model: Any, /, *args: Any, **kwargs: Any) -> Any:
    """The metadata of .h5 files and tf_keras' SavedModels, with the bare optimizer's name, as in .keras files."""
    metadata = model_metadata(model, *args, **kwargs)
    training = metadata.get("training_config", {})
    if "optimizer_config" in training and _is_wrapped_here(model.optimizer):
        bare = model.optimizer.inner_optimizer
        training["optimizer_config"] = {"class_name": registered_name(type(bare)), "config": bare.get_config()}
    return metadata


def _fit(fit: Any, model: Any, /, *args: Any, **kwargs: Any) -> Any:
    given = args[_CALLBACKS] if len(args) > _CALLBACKS else kwargs.get("callbacks")
    monitored = survive("Model.fit", _add_monitor, model, given)
    if monitored is not None and len(args) > _CALLBACKS:
        args = (*args[:_CALLBACKS], monitored, *args[_CALLBACKS + 1 :])
    elif monitored is not None:
        kwargs["callbacks"] = monitored
    return fit(model, *args, **kwargs)


def _add_monitor(model: Any, callbacks: Any) -> Any:
    """The user's argument of ``fit`` with a ``LossScaleMonitor`` in front, if amp_tf scales the model's loss."""
    from amp_tf.callbacks import LossScaleMonitor, has_loss_scale

    if not has_loss_scale(model):
        return callbacks
    monitor = LossScaleMonitor(action="log", in_logs=False)
    if hasattr(callbacks, "set_model") and hasattr(callbacks, "callbacks"):  # a CallbackList
        if not any(isinstance(callback, LossScaleMonitor) for callback in callbacks.callbacks):
            monitor.set_model(model)
            callbacks.callbacks.insert(0, monitor)
        return callbacks
    given = [] if callbacks is None else list(callbacks) if isinstance(callbacks, (list, tuple)) else [callbacks]
    return given if any(isinstance(callback, LossScaleMonitor) for callback in given) else [monitor, *given]


def _watch(name: str, step: Any, optimizer: Any, /, *args: Any, **kwargs: Any) -> Any:
    with survive(f"Optimizer.{name}", _watch_step, optimizer, name) or contextlib.nullcontext():
        return step(optimizer, *args, **kwargs)


def _watch_step(optimizer: Any, name: str) -> Any:
    """Warns once if a traced step applies gradients of a loss that nothing scales. Eager steps are never float16.

    Where the optimizer scales its loss, returns a context manager for the step: those inside it need not.
    """
    import tensorflow as tf

    from amp_tf.loss_scaling.calls import is_scaled_step, scaled_step

    if is_loss_scaled(optimizer):
        return scaled_step()
    is_inner = is_scaled_step() or getattr(optimizer, "_is_wrapped_by_loss_scale_optimizer", False)  # by tf_keras
    if not is_inner and not tf.executing_eagerly() and should_scale(optimizer):
        notices.warn_once(
            _CUSTOM_LOOP,
            "a custom training loop runs in float16 without loss scaling, so small gradients are lost",
            where=f"{type(optimizer).__name__}.{name}",
            fix="Write optimizer = amp_tf.LossScaleOptimizer(optimizer) before the loop and, inside the GradientTape, "
            "scaled_loss = optimizer.scale_loss(loss), and take the gradients of that; apply_gradients unscales them. "
            "For no scaling at all set TF_ENABLE_AUTO_MIXED_PRECISION_LOSS_SCALING=0",
        )
    return None
