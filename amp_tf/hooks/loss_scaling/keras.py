"""The patches of Keras 3 and tf_keras: ``compile`` wraps optimizers, ``fit`` adds the monitor, loops are warned."""

from __future__ import annotations

import contextlib
import importlib
import weakref
from collections.abc import Callable
from typing import Any

from amp_tf.hooks.loss_scaling.automatic import Context, survive
from amp_tf.hooks.patches import Patch, calling


def keras3_patches(context: Context) -> list[Patch]:
    """Keras 3's: of models, of the metadata in .h5 files, and of optimizers."""
    import keras

    steps = [
        (keras.optimizers.Optimizer, "apply_gradients"),
        (keras.optimizers.Optimizer, "apply"),
        (keras.optimizers.LossScaleOptimizer, "apply"),  # Keras' own; amp_tf's wrapper marks its inner step itself
    ]
    return [
        (_owner(keras.Model, "compile"), "compile", calling(_compile, context)),
        (_owner(keras.Model, "fit"), "fit", calling(_fit)),
        *metadata_rows("keras.src.legacy.saving.saving_utils", keras.saving.get_registered_name),
        *((_owner(cls, name), name, calling(_watch, name, context)) for cls, name in steps),
    ]


def tf_keras_patches(context: Context) -> list[Patch]:
    """tf_keras's: of models, of the metadata in .h5 files, and of optimizers."""
    import tf_keras

    # What tf_keras.Model becomes after tf.compat.v1.disable_v2_behavior(). Its monitor would have nothing to read.
    model_v1 = importlib.import_module("tf_keras.src.engine.training_v1").Model
    optimizers = tf_keras.optimizers.Optimizer, tf_keras.optimizers.legacy.Optimizer
    return [
        (_owner(tf_keras.Model, "compile"), "compile", calling(_compile, context)),
        (_owner(tf_keras.Model, "fit"), "fit", calling(_fit)),
        *metadata_rows("tf_keras.src.saving.legacy.saving_utils", tf_keras.saving.get_registered_name),
        (model_v1, "compile", calling(_compile, context)),
        *(
            (_owner(cls, step), step, calling(_watch, step, context))
            for cls in optimizers
            for step in ["apply_gradients"]
        ),
    ]


def wrap_compiled(model: Any, context: Context) -> None:
    """Wraps a compiled model's optimizer if its loss is to be scaled.

    The configuration that Keras saves keeps the bare optimizer, so the model loads where amp_tf is not installed.
    """
    from amp_tf.loss_scaling import LossScaleOptimizer

    if not context.should_scale(getattr(model, "optimizer", None)):
        return
    with model.distribute_strategy.scope():
        model.optimizer = LossScaleOptimizer(model.optimizer)
    _wrapped_here[id(model.optimizer)] = model.optimizer


def add_monitor(model: Any, callbacks: Any) -> Any:
    """The callbacks with a :class:`~amp_tf.callbacks.LossScaleMonitor` in front, if amp_tf scales the model's loss.

    They are the user's argument of ``fit``: ``None``, a callback, a list of them, or a ``CallbackList``.
    """
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


def _compile(context: Context, compile: Any, model: Any, /, *args: Any, **kwargs: Any) -> Any:
    given: Any = args[0] if args else kwargs.get("optimizer")
    if _is_wrapped_here(given):  # model.compile(model.optimizer): saved configurations keep the bare one
        bare = given.inner_optimizer
        args, kwargs = ((bare, *args[1:]), kwargs) if args else (args, {**kwargs, "optimizer": bare})
    result = compile(model, *args, **kwargs)
    if _is_wrapped_here(given):
        with model.distribute_strategy.scope():
            model.optimizer = given
    elif kwargs.get("auto_scale_loss", True):
        survive("Model.compile", wrap_compiled, model, context)
    return result


def _is_wrapped_here(optimizer: Any) -> bool:
    return optimizer is not None and _wrapped_here.get(id(optimizer)) is optimizer


_CALLBACKS = 5  #: the position of ``callbacks`` among the arguments of ``fit`` after the model, in both libraries


def metadata_rows(module: str, registered_name: Callable[[type], str]) -> list[Patch]:
    """The patch of the metadata in a model's .h5 file, by the library's private module, which a version may lack."""
    try:
        home = importlib.import_module(module)
    except ImportError:
        return []
    return [(home, "model_metadata", calling(_model_metadata, registered_name))]


def _model_metadata(registered_name: Any, model_metadata: Any, model: Any, /, *args: Any, **kwargs: Any) -> Any:
    """The metadata of .h5 files and tf_keras' SavedModels, with the bare optimizer's name, as in .keras files."""
    metadata = model_metadata(model, *args, **kwargs)
    training = metadata.get("training_config", {})
    if "optimizer_config" in training and _is_wrapped_here(model.optimizer):
        bare = model.optimizer.inner_optimizer
        training["optimizer_config"] = {"class_name": registered_name(type(bare)), "config": bare.get_config()}
    return metadata


def _fit(fit: Any, model: Any, /, *args: Any, **kwargs: Any) -> Any:
    if len(args) > _CALLBACKS:
        args = (*args[:_CALLBACKS], _monitored(model, args[_CALLBACKS]), *args[_CALLBACKS + 1 :])
    else:
        kwargs["callbacks"] = _monitored(model, kwargs.get("callbacks"))
    return fit(model, *args, **kwargs)


def _monitored(model: Any, callbacks: Any) -> Any:
    result = survive("Model.fit", add_monitor, model, callbacks)
    return callbacks if result is None else result


def _watch(name: str, context: Context, step: Any, optimizer: Any, /, *args: Any, **kwargs: Any) -> Any:
    with survive(f"Optimizer.{name}", watch_step, optimizer, name, context) or contextlib.nullcontext():
        return step(optimizer, *args, **kwargs)


def watch_step(optimizer: Any, name: str, context: Context) -> Any:
    """Warns once if a traced step applies gradients of a loss that nothing scales. Eager steps are never float16.

    Returns:
        A context manager for the step if the optimizer scales its loss: those inside it need not.
    """
    import tensorflow as tf

    from amp_tf.loss_scaling import is_loss_scaled
    from amp_tf.loss_scaling.calls import is_scaled_step, scaled_step

    if is_loss_scaled(optimizer):
        return scaled_step()
    is_inner = is_scaled_step() or getattr(optimizer, "_is_wrapped_by_loss_scale_optimizer", False)  # by tf_keras
    if not is_inner and not tf.executing_eagerly() and context.should_scale(optimizer):
        context.warn_unscaled_loop(where=f"{type(optimizer).__name__}.{name}")
    return None


def _owner(cls: Any, attribute: str) -> Any:
    return next(base for base in cls.__mro__ if attribute in vars(base))


# The wrappers that no user wrote: files name the optimizers inside them, so that they load without amp_tf.
_wrapped_here: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
