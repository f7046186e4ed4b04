"""The patches of ``tf.compat.v1.train``: optimizers scale by themselves, and old checkpoints restore into new graphs.

``minimize`` calls ``compute_gradients`` and ``apply_gradients``, and so do optimizers that wrap another (Horovod's),
so these two are all there is to patch.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from amp_tf.hooks import notices
from amp_tf.hooks.loss_scaling import Context, survive

# The attribute of an optimizer that holds its wrappers by graph (or "eager"): the variables belong to one graph.
_WRAPPERS = "_amp_tf_wrappers"
# optimizers that somebody wrapped on purpose
_wrapped_by_hand: weakref.WeakSet[Any] = weakref.WeakSet()
# the base class's methods as they were; a subclass that overrides one reaches the patched one by super()
_base_methods: dict[str, Any] = {}
_SCALE_VARIABLES = ("current_loss_scale", "good_steps", "loss_scale_counters")


def patches(context: Context) -> list[tuple[Any, str, Callable[[Any], Any]]]:
    """Rows of owner, attribute, and what makes its replacement from the original.

    Args:
        context: what decides whether to act.
    """
    import tensorflow as tf

    v1 = tf.compat.v1
    return [
        (v1.train.Optimizer, "compute_gradients", lambda original: _method(original, "compute_gradients", context)),
        (v1.train.Optimizer, "apply_gradients", lambda original: _method(original, "apply_gradients", context)),
        (v1.mixed_precision.MixedPrecisionLossScaleOptimizer, "__init__", _remember_wrapped),
        (v1.train.Saver, "restore", _restore),
    ]


def wrapper_of(optimizer: Any, context: Context) -> Any:
    """The wrapper that stands for this optimizer in the current graph, made when first asked for.

    Args:
        optimizer: a ``tf.compat.v1.train.Optimizer``.
        context: what decides whether it needs one.

    Returns:
        The wrapper, or ``None`` if the optimizer is to go on by itself.
    """
    from amp_tf.loss_scaling import usage, v1

    if usage.is_inner_call() or optimizer in _wrapped_by_hand or not context.should_scale(optimizer):
        return None
    import tensorflow as tf

    with tf.init_scope():
        graph = "eager" if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        by_graph = vars(optimizer).setdefault(_WRAPPERS, {})
        if graph not in by_graph:
            by_graph[graph] = v1.LossScaleOptimizer(optimizer)
            by_graph[graph].stand_below(_base_methods)
            _wrapped_by_hand.discard(optimizer)
    return by_graph[graph]


def _method(original: Any, name: str, context: Context) -> Any:
    _base_methods[name] = original

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        wrapper = survive(f"tf.compat.v1.train.Optimizer.{name}", wrapper_of, self, context)
        if wrapper is None:
            return original(self, *args, **kwargs)
        return getattr(wrapper, name)(*args, **kwargs)

    return method


def _remember_wrapped(original: Any) -> Any:
    def __init__(self: Any, opt: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - the method it replaces
        original(self, opt, *args, **kwargs)
        survive("MixedPrecisionLossScaleOptimizer", _wrapped_by_hand.add, opt)

    return __init__


def _restore(original: Any) -> Any:
    def restore(self: Any, sess: Any, save_path: Any) -> Any:
        missing = survive("tf.compat.v1.train.Saver.restore", find_missing_scale, self, sess, save_path)
        if missing:
            return restore_without_scale(self, sess, save_path, missing)
        return original(self, sess, save_path)

    return restore


def find_missing_scale(saver: Any, session: Any, path: Any) -> list[Any]:
    """The variables of loss scaling that a saver would restore and a checkpoint does not have.

    Args:
        saver: a ``tf.compat.v1.train.Saver``.
        session: the session that would restore.
        path: of the checkpoint.

    Returns:
        The variables; none where anything else is missing too, which is for ``Saver.restore`` to tell.
    """
    import tensorflow as tf

    targets = _targets(saver, session)
    scale = {name for name, variable in targets.items() if _is_scale(variable)}
    if not scale:
        return []
    stored = {name for name, _ in tf.train.list_variables(path)}
    absent = targets.keys() - stored
    return [targets[name] for name in sorted(absent)] if absent and absent <= scale else []


def restore_without_scale(saver: Any, session: Any, path: Any, missing: list[Any]) -> None:
    """Restores a checkpoint of a run without loss scaling: everything that is in it; the scale starts anew.

    Adds nothing to the graph, which a MonitoredSession has finalized.

    Args:
        saver, session, path: as for ``Saver.restore``.
        missing: the variables that the checkpoint does not have.
    """
    import tensorflow as tf

    reader = tf.train.load_checkpoint(path)
    absent = {variable.op.name for variable in missing}
    for name, variable in _targets(saver, session).items():
        if variable.op.name in absent:
            session.run(variable.initializer)
        else:
            session.run(variable.initializer, {variable.initializer.inputs[1]: reader.get_tensor(name)})
    notices.warn_once(
        "loss_scaling.saver",
        "the checkpoint is from a run without loss scaling; all its variables are restored and the loss scale starts "
        "at its initial value",
        where=f"Saver.restore({str(path)!r})",
        fix="There is nothing to do; the next checkpoint holds the loss scale",
    )


def _targets(saver: Any, session: Any) -> dict[str, Any]:
    """What a saver restores, by its name in the checkpoint; nothing if it restores more than plain variables."""
    wanted = saver._var_list
    if wanted is None:
        if session.graph.get_collection("saveable_objects"):
            return {}
        wanted = session.graph.get_collection("variables")
    named = dict(wanted) if isinstance(wanted, dict) else {getattr(v, "op", v).name: v for v in wanted}
    return named if all(hasattr(variable, "initializer") for variable in named.values()) else {}


def _is_scale(variable: Any) -> bool:
    return variable.op.name.rpartition("/")[2].rstrip("0123456789").rstrip("_") in _SCALE_VARIABLES
