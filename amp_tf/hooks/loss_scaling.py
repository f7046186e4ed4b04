"""Scales losses automatically in Keras and tf_keras.

``TF_ENABLE_AUTO_MIXED_PRECISION_LOSS_SCALING`` turns it on. The part for TensorFlow itself is
:mod:`amp_tf.hooks.loss_scaling_v1`. A patch acts only if the process' graphs run in float16. It
finds that out when an optimizer is used, because devices are not known before. An optimizer that
already scales its loss is left alone.

Optimizers are wrapped after ``compile``, or at the next ``fit`` if amp_tf was turned on later. The
wrapper shows the class and the settings of the bare one, so that programs find what they gave, and
files load without amp_tf. The monitor that ``fit`` adds only logs, and adds nothing to the history;
one added by the user raises.
"""

from __future__ import annotations

import contextlib
from typing import Any

from amp_tf.callbacks import LossScaleMonitor, has_loss_scale
from amp_tf.hooks import internals, notices, summary
from amp_tf.hooks import state as process_state
from amp_tf.hooks.patches import Patches
from amp_tf.loss_scaling import LossScaleOptimizer, find_adapter, is_loss_scaled, ledger
from amp_tf.oplists.targets import resolve_target
from amp_tf.precision import Precision
from amp_tf.reporting import reports

#: the key of the warning that a loop does not scale its loss
CUSTOM_LOOP = "loss_scaling.custom_loop"
_WRITE_TWO_LINES = (
    "Write optimizer = amp_tf.LossScaleOptimizer(optimizer) before the loop and, inside the "
    "GradientTape, scaled_loss = optimizer.scale_loss(loss), and take the gradients of that; "
    "apply_gradients unscales them. For no scaling at all set "
    "TF_ENABLE_AUTO_MIXED_PRECISION_LOSS_SCALING=0"
)
_MODELS_SHOWN = 3  # in the summary line, because a hyperparameter search trains hundreds
#: the position of ``callbacks`` among the arguments of ``fit`` after the model, in both libraries
_CALLBACKS = 5

_ENTERED = "_amp_tf_is_entered"  # marks the libraries' own wrappers that took a step
#: an attribute of an optimizer: whether the program lets ``compile`` scale its loss
_MAY_SCALE = "_amp_tf_may_scale"
_OWNERS = {"keras": "Keras'", "tf_keras": "tf_keras'"}


def runs_in_float16() -> bool:
    """Tells whether this process' graphs run in float16, so that losses are scaled.

    It looks for GPUs, so it must not be called before a script can choose them.
    """
    if not process_state.current().switches.loss_scaling:
        return False
    target = resolve_target(process_state.settings(), process_state.hardware()).target
    return target is not None and target.precision is Precision.FLOAT16


def should_scale(optimizer: Any) -> bool:
    """Tells whether this optimizer needs a loss scale and does not have one.

    One whose model the program compiled with ``auto_scale_loss=False`` needs none.
    A list of optimizers, as of tf_keras' ``WideDeepModel``, and tf_keras' ``TFOptimizer`` do not:
    their training steps scale no loss.
    """
    is_bare = bool(find_adapter(optimizer)) and not is_loss_scaled(optimizer)
    return is_bare and vars(optimizer).get(_MAY_SCALE, True) and runs_in_float16()


def surviving(where: str) -> contextlib.AbstractContextManager[None]:
    """Warns once if a block of a hook fails, and lets the program go on."""
    return notices.surviving(
        f"loss_scaling.{where}",
        "automatic loss scaling failed",
        where=where,
        fix=(
            "Wrap the optimizer in amp_tf.LossScaleOptimizer by hand, and please report this; "
            "training goes on"
        ),
    )


def install(patches: Patches) -> None:
    """Wraps optimizers from now on, in the libraries that are imported; they stay wrapped.

    Idempotent.
    """
    # tf_keras.Model becomes that of training_v1 after tf.compat.v1.disable_v2_behavior(). A monitor
    # of its fit would have nothing to read.
    internals.MODELS_COMPILE.patch(patches, _compile)
    internals.MODELS_FIT.patch(patches, _fit)
    internals.TRAIN_ALONE.surround(patches, _train_on_batch)
    internals.KERAS_STEPS.surround(patches, _watch)
    internals.TF_KERAS_WRAPPED_STEPS.surround(patches, _watch)
    summary.add_part(describe)


def describe() -> str:
    """Returns the part of the summary line about loss scaling; empty if no loss was scaled."""
    seen, more = ledger.statuses()
    state = process_state.current()
    if state.off == "" and not state.idle and Precision.FLOAT16 not in reports.totals().precisions:
        # The rewrite is on and no graph became float16, so no loss needed to be scaled.
        seen = [(label, status) for label, status in seen if status.skipped]
    labels = [label for label, _ in seen]
    parts = []
    for place, (label, status) in enumerate(seen, start=1):
        part = f"loss scale {ledger.format_scale(status.scale)}"
        if status.counts_skips:
            part += f", {status.skipped:,} of {status.steps:,} steps skipped"
        elif len(seen) == 1 and not more:
            part += f" of {label}, which does not count skipped steps"
        if labels.count(label) > 1:
            label += f" {labels[:place].count(label)}"
        if len(seen) > 1 or more:
            part = f"{label}: {part}"
        parts.append(part)
    more += len(parts[:-_MODELS_SHOWN])
    shown = parts[-_MODELS_SHOWN:]
    if more:
        shown.append(f"{more:,} more model{'s' * (more > 1)}")
    return "; ".join(shown)


def _enter_foreign(optimizer: Any) -> None:
    """Enters a wrapper of Keras or tf_keras into the ledger, once, after a step.

    The program itself put it around its optimizer. Only its variables are held.
    """
    library, _, _ = type(optimizer).__module__.partition(".")
    if library not in _OWNERS or _ENTERED in vars(optimizer):
        return
    scale = getattr(optimizer, "dynamic_scale", None)  # of Keras 3
    if scale is None:  # of tf_keras: a number, or what holds the variable
        state = getattr(optimizer, "_loss_scale", None)
        scale = getattr(state, "current_loss_scale", state)
    if scale is None:
        return
    vars(optimizer)[_ENTERED] = True
    iterations = optimizer.iterations

    def read() -> ledger.Status:
        now = float(scale.numpy() if hasattr(scale, "numpy") else scale)
        return ledger.Status(now, steps=int(iterations.numpy()), counts_skips=False)

    ledger.enter(f"{_OWNERS[library]} {type(optimizer).__name__}", read)


def _compile(compile: Any, model: Any, /, *args: Any, **kwargs: Any) -> Any:
    result = compile(model, *args, **kwargs)
    optimizer = getattr(model, "optimizer", None)
    if find_adapter(optimizer):
        vars(optimizer)[_MAY_SCALE] = kwargs.get("auto_scale_loss", True)
    _scale_loss_of(model)
    return result


def _scale_loss_of(model: Any) -> None:
    """Wraps a model's optimizer, if it needs a loss scale.

    A training step that was made before is traced anew by :mod:`amp_tf.hooks.scope`. In a TF1
    graph, or if graphs are not rewritten, it keeps its optimizer until the model is compiled again.
    """
    import tensorflow as tf

    with surviving("Model.compile"):
        optimizer = getattr(model, "optimizer", None)
        is_made = getattr(model, "train_function", None) is not None
        is_traced = tf.compat.v1.executing_eagerly_outside_functions()
        is_anew = is_traced and process_state.current().switches.graph_rewrite
        can_wrap = is_anew or not is_made
        if can_wrap and should_scale(optimizer):
            with model.distribute_strategy.scope():
                model.optimizer = _shown_as_inner(LossScaleOptimizer(optimizer))


def _shown_as_inner(wrapper: Any) -> Any:
    """Makes a wrapper that no user wrote show the class and the settings of its inner optimizer.

    ``isinstance`` and ``get_config`` answer as before, and files name the bare optimizer. An
    optimizer that is made of these settings is bare.
    """
    from amp_tf.loss_scaling.wrapping import untrack

    own: Any = type(wrapper)
    inner: Any = type(wrapper.inner_optimizer)
    shown = {
        "__class__": property(lambda _: inner),
        "__module__": own.__module__,
        "get_config": lambda self: self.inner_optimizer.get_config(),
    }
    # Keras 3 pickles the second one, which must be of a class that pickle finds.
    for name in ("from_config", "_unpickle_model"):
        if hasattr(inner, name):
            shown[name] = getattr(inner, name)
    # A call of the class makes a bare optimizer: type(model.optimizer)(0.1).
    calling = {"__call__": lambda _, *args, **settings: inner(*args, **settings)}
    metaclass = type("Shown", (type(own),), calling)
    object.__setattr__(wrapper, "__class__", metaclass(inner.__name__, (own,), shown))
    # A program may assert that a checkpoint holds exactly what its objects do, also one from a run
    # without loss scaling. A run that resumes finds the scale anew.
    untrack(wrapper, "loss_scale")
    return wrapper


def _fit(fit: Any, model: Any, /, *args: Any, **kwargs: Any) -> Any:
    _scale_loss_of(model)
    with surviving("Model.fit"):
        if len(args) > _CALLBACKS:
            monitored = _monitored(model, args[_CALLBACKS])
            args = (*args[:_CALLBACKS], monitored, *args[_CALLBACKS + 1 :])
        else:
            kwargs["callbacks"] = _monitored(model, kwargs.get("callbacks"))
    return fit(model, *args, **kwargs)


def _train_on_batch(call: Any) -> Any:
    _scale_loss_of(call.args[0])
    return call()


def _monitored(model: Any, callbacks: Any) -> Any:
    """Puts a ``LossScaleMonitor`` in front of the user's argument of ``fit``.

    It stays as it is if amp_tf does not scale the model's loss.
    """
    if not has_loss_scale(model):
        return callbacks
    is_list = hasattr(callbacks, "set_model") and hasattr(callbacks, "callbacks")  # a CallbackList
    given = callbacks
    if is_list:
        given = callbacks.callbacks
    if given is None:
        given = []
    elif not isinstance(given, (list, tuple)):
        given = [given]
    if any(isinstance(callback, LossScaleMonitor) for callback in given):
        return callbacks
    monitor = LossScaleMonitor(action="log", in_logs=False)
    if not is_list:
        return [monitor, *given]
    monitor.set_model(model)
    callbacks.callbacks.insert(0, monitor)
    return callbacks


def _watch(call: Any) -> Any:
    """Makes a step of an optimizer. If the optimizer scales its loss, steps inside need not.

    Warns once if a traced step applies gradients of a loss that nothing scales. Eager steps are
    never float16.
    """
    import tensorflow as tf

    from amp_tf.loss_scaling.calls import is_scaled_step, scaled_step

    optimizer = call.args[0]
    name = call.func.__name__
    around: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    with surviving(f"Optimizer.{name}"):
        is_wrapped = getattr(optimizer, "_is_wrapped_by_loss_scale_optimizer", False)  # by tf_keras
        is_inner = is_wrapped or is_scaled_step()
        if is_loss_scaled(optimizer):
            around = scaled_step()
        elif not is_inner and not tf.executing_eagerly() and should_scale(optimizer):
            notices.warn_once(
                CUSTOM_LOOP,
                "a custom training loop runs in float16 without loss scaling, so small gradients "
                "are lost",
                where=f"{type(optimizer).__name__}.{name}",
                fix=_WRITE_TWO_LINES,
            )
    with around:
        result = call()
    with surviving(f"Optimizer.{name}"):
        if is_loss_scaled(optimizer):  # its first step has made the variable
            _enter_foreign(optimizer)
    return result
