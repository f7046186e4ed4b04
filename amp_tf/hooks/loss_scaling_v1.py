"""Automatic loss scaling in TensorFlow itself: TF1's optimizers, sessions and savers, and loops
without an optimizer.

*TF1.* ``minimize`` calls ``compute_gradients`` and ``apply_gradients``, and so do optimizers that
wrap another (Horovod's), so these two methods are patched. A class may have an ``apply_gradients``
of its own that never calls the base class's (BERT's); such methods are patched when an optimizer of
the class is created. A class that also computes its gradients itself is left alone: it mostly
passes both calls to another optimizer. Old checkpoints restore into new graphs. What loss scaling
did in a session is read when it closes, because then its variables are gone.

*Loops* that train variables by unscaled gradients lead to one warning. Only calls count, as for
wrapped optimizers: variables whose gradients are taken in a trace in which no scaler was called are
marked (the latest trace decides, as in meta-learning), and a trace that then writes one of them
trains it without scaling. A loop that scales its loss by hand gets the warning, too; an eager
update is not noticed. The Python functions of the ops that write are wrapped.
"""

from __future__ import annotations

import contextlib
import inspect
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from amp_tf.hooks import notices, state
from amp_tf.hooks.loss_scaling import CUSTOM_LOOP, runs_in_float16, should_scale, surviving
from amp_tf.hooks.patches import Patches
from amp_tf.loss_scaling import calls, is_loss_scaled, ledger

# of an optimizer: its wrappers by graph (or "eager"), to which the variables belong
_WRAPPERS = "_amp_tf_wrappers"
# optimizers that the program wrapped itself
_wrapped_by_hand: weakref.WeakSet[Any] = weakref.WeakSet()
# of a graph: its wrappers, each with the steps of the session that made the most
_WATCHED = "_amp_tf_loss_scales"
_SCALE_VARIABLES = ("current_loss_scale", "good_steps", "loss_scale_counters")

_VARIABLE_OPS = ("assign_variable_op", "assign_add_variable_op", "assign_sub_variable_op")
_SCATTER_OPS = ("resource_scatter_add", "resource_scatter_sub", "resource_scatter_update")
_REF_OPS = ("assign", "assign_add", "assign_sub", "scatter_add", "scatter_sub")

# The handles of variables whose gradients were last taken where no loss was scaled, by id, as long
# as they live.
_unscaled: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def install(patches: Patches) -> None:
    """Patches sessions, optimizers and savers, and what computes gradients and writes variables.

    Idempotent.
    """
    from tensorflow.python.client import session
    from tensorflow.python.eager import backprop
    from tensorflow.python.ops import gen_resource_variable_ops, gen_state_ops, gradients_util

    v1 = tf.compat.v1
    rows: tuple[tuple[Any, ...], ...] = (
        (session.BaseSession, "close", look_and_close),
        (v1.train.Optimizer, "__init__", _init),
        *(
            (v1.train.Optimizer, name, _call, name)
            for name in ("compute_gradients", "apply_gradients")
        ),
        (v1.mixed_precision.MixedPrecisionLossScaleOptimizer, "__init__", _remember_wrapped),
        (v1.train.Saver, "restore", _restore),
        (backprop.GradientTape, "gradient", _gradient, 2),
        (gradients_util, "_GradientsHelper", _gradient, 1),
        *((gen_resource_variable_ops, name, _write) for name in (*_VARIABLE_OPS, *_SCATTER_OPS)),
        *((gen_state_ops, name, _write) for name in _REF_OPS),
    )
    for row in rows:
        patches.put(*row)


def wrapper_of(optimizer: Any, *, reaches_base: bool = True) -> Any:
    """The wrapper of this optimizer in the current graph, created at the first request; none if it
    needs none.

    Nor for a class that never calls the base class's method and computes its gradients itself.
    """
    from amp_tf.loss_scaling import v1

    if calls.is_inner_call() or optimizer in _wrapped_by_hand or not should_scale(optimizer):
        return None
    with tf.init_scope():
        graph = "eager" if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        by_graph = vars(optimizer).setdefault(_WRAPPERS, {})
        is_of_base = (
            type(optimizer).compute_gradients is tf.compat.v1.train.Optimizer.compute_gradients
        )
        if graph not in by_graph and (reaches_base or is_of_base):
            by_graph[graph] = v1.LossScaleOptimizer(optimizer)
            if graph != "eager":
                state.watch_collections()
                setattr(graph, _WATCHED, {**getattr(graph, _WATCHED, {}), by_graph[graph]: 1})
            _wrapped_by_hand.discard(optimizer)
    return by_graph.get(graph)


def patch_overrides(optimizer: Any) -> None:
    """Patches the ``apply_gradients`` methods that an optimizer's own classes define, once each."""
    patches = state.patches(__name__)
    for cls in () if is_loss_scaled(optimizer) or not patches else type(optimizer).__mro__:
        if inspect.isfunction(
            vars(cls).get("apply_gradients")
        ):  # the base class's is patched already
            patches.put(cls, "apply_gradients", _override)


def _init(init: Any, optimizer: Any, /, *args: Any, **kwargs: Any) -> None:
    init(optimizer, *args, **kwargs)
    with surviving("tf.compat.v1.train.Optimizer"):
        patch_overrides(optimizer)


def _call(name: str, original: Any, optimizer: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Replaces a method of the base class, which a subclass that overrides it reaches by super()."""
    wrapper = None
    with surviving(f"tf.compat.v1.train.Optimizer.{name}"):
        patch_overrides(optimizer)  # it may have been created before this was installed
        wrapper = wrapper_of(optimizer)
    if wrapper is None:
        return original(optimizer, *args, **kwargs)
    wrapper.delegate_to({name: original})
    return getattr(wrapper, name)(*args, **kwargs)


def _override(apply_gradients: Any, optimizer: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Replaces an ``apply_gradients`` that hides the base class's."""
    where = f"{type(optimizer).__name__}.apply_gradients"
    wrapper = None
    with surviving(where):
        wrapper = wrapper_of(optimizer, reaches_base=False)
    if wrapper is None or not (args or "grads_and_vars" in kwargs):
        return apply_gradients(optimizer, *args, **kwargs)
    others = {name: value for name, value in kwargs.items() if name != "grads_and_vars"}

    def apply(inner: Any, pairs: Any, **_: Any) -> Any:
        return apply_gradients(inner, pairs, *args[1:], **others)

    wrapper.delegate_to({"apply_gradients": apply})
    pairs = list(args[0] if args else kwargs["grads_and_vars"])
    try:
        return wrapper.apply_gradients(pairs)
    except Exception as error:  # it may not work inside a condition
        if tf.executing_eagerly() or tf.distribute.has_strategy():
            raise
        step = wrapper.apply_zeros_for_nonfinite(
            pairs
        )  # raises the error if it is the program's own mistake
        notices.warn_once(
            "loss_scaling.unconditional",
            f"the step cannot be built inside a condition ({type(error).__name__}: "
            f"{str(error).splitlines()[0]}), so "
            "steps with nonfinite gradients are made with zero gradients instead of being skipped",
            where=where,
            fix=(
                "Make variables in the optimizer's constructor or with an initializer that is a "
                "callable"
            ),
        )
        return step


def _remember_wrapped(init: Any, wrapper: Any, /, opt: Any, *args: Any, **kwargs: Any) -> None:
    init(wrapper, opt, *args, **kwargs)
    with surviving("MixedPrecisionLossScaleOptimizer"):
        _wrapped_by_hand.add(opt)


def _restore(restore: Any, saver: Any, /, sess: Any, save_path: Any) -> Any:
    """Restores, of a checkpoint that lacks the loss scale and nothing else, all other variables."""
    targets: dict[str, Any] = {}
    with surviving("tf.compat.v1.train.Saver.restore"):
        wanted = saver._var_list
        if wanted is None:
            is_plain = not sess.graph.get_collection("saveable_objects")
            wanted = sess.graph.get_collection("variables") if is_plain else []
        named = (
            dict(wanted)
            if isinstance(wanted, dict)
            else {getattr(v, "op", v).name: v for v in wanted}
        )
        if all(hasattr(v, "initializer") for v in named.values()) and any(
            map(is_scale, named.values())
        ):
            absent = named.keys() - {name for name, _ in tf.train.list_variables(save_path)}
            targets = named if absent and all(is_scale(named[name]) for name in absent) else {}
    if not targets:
        return restore(saver, sess, save_path)
    reader = tf.train.load_checkpoint(save_path)
    for (
        name,
        variable,
    ) in targets.items():  # adds nothing to the graph, which a MonitoredSession has finalized
        value = (
            {variable.initializer.inputs[1]: reader.get_tensor(name)}
            if reader.has_tensor(name)
            else {}
        )
        sess.run(variable.initializer, value)
    notices.warn_once(
        "loss_scaling.saver",
        "the checkpoint is from a run without loss scaling; all its variables are restored and "
        "the loss scale starts "
        "at its initial value",
        where=f"Saver.restore({str(save_path)!r})",
        fix="There is nothing to do; the next checkpoint holds the loss scale",
    )
    return None


def is_scale(variable: Any) -> bool:
    """Whether a TF1 variable holds a loss scale or its counters, by its name."""
    return variable.op.name.rpartition("/")[2].rstrip("0123456789").rstrip("_") in _SCALE_VARIABLES


def look_and_close(close: Callable[[Any], None], session: Any) -> None:
    """Replaces a session's ``close``: reads the loss scales first."""
    # A remote server may be gone by now, and nobody would want to wait for it.
    if not session.sess_str and not state.is_collecting():
        watched = getattr(session.graph, _WATCHED, {})
        for wrapper in list(watched):
            with contextlib.suppress(
                Exception
            ):  # closed, broken or never initialized: there is nothing to report
                status, scaler = wrapper.status(session), wrapper._scaler
                if status.steps >= watched[wrapper]:
                    if scaler.number is None:
                        scaler.number = ledger.enter(wrapper.inner_optimizer.get_name())
                    watched[wrapper] = status.steps
                    ledger.note_look(scaler.number, status)
    close(session)


def _gradient(place: int, gradient: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Records the variables whose gradients are taken in the graph that is being traced."""
    if not tf.executing_eagerly() and CUSTOM_LOOP not in state.current().warned:
        with surviving("GradientTape.gradient"):
            sources = args[place] if len(args) > place else kwargs.get("sources", kwargs.get("xs"))
            is_scaled = calls.is_scaled_place()
            for handle in (
                handle for source in tf.nest.flatten(sources) for handle in _handles(source)
            ):
                _unscaled.pop(id(handle), None)
                if not is_scaled:
                    _unscaled[id(handle)] = handle
    return gradient(*args, **kwargs)


def _write(write: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Warns once if a variable that gradients train is written where no loss is scaled."""
    if _unscaled and CUSTOM_LOOP not in state.current().warned and not tf.executing_eagerly():
        with surviving("Variable.assign"):
            written = args[0] if args else kwargs.get("resource", kwargs.get("ref"))
            is_trained = any(_unscaled.get(id(handle)) is handle for handle in _handles(written))
            is_scaled = calls.is_scaled_place() or calls.is_scaled_step() or calls.is_inner_call()
            if is_trained and not is_scaled and runs_in_float16():
                # the graph around all has no name
                functions = [graph.name for graph in calls.places() if hasattr(graph, "name")]
                notices.warn_once(
                    CUSTOM_LOOP,
                    "variables are written by gradients of a loss that is not scaled, in float16, "
                    "so small gradients "
                    "are lost",
                    where=f"function {functions[-1]!r}" if functions else "a TF1 graph",
                    fix="Write scaler = amp_tf.LossScaler() before the loop and in the step, in this order, "
                    "scaled_loss = scaler.scale(loss) inside the tape, gradients = "
                    "scaler.unscale(tape.gradient(scaled_loss, variables)), and "
                    "scaler.step(apply, gradients), where "
                    "apply(gradients) writes the variables. For no scaling at all, or where the "
                    "program scales its "
                    "loss itself, set TF_ENABLE_AUTO_MIXED_PRECISION_LOSS_SCALING=0",
                )
    return write(*args, **kwargs)


def _handles(source: Any) -> Iterator[Any]:
    """The handles of a variable, of a Keras variable, or of a variable of several replicas; none
    for other tensors.
    """
    if isinstance(source, tf.Tensor) and (
        source.dtype == tf.resource or source.dtype._is_ref_dtype
    ):
        yield source
    variable = source if isinstance(source, tf.Variable) else getattr(source, "value", None)
    if isinstance(variable, tf.Variable):
        parts = getattr(variable, "values", None) or [variable]
        yield from (
            part.handle if hasattr(part, "handle") else part._ref() for part in parts
        )  # TF1's have no handle
