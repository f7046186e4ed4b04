"""Scales losses automatically in TensorFlow itself.

It patches TF1's optimizers, sessions and savers, and watches loops without an optimizer.

*TF1.* ``minimize`` calls ``compute_gradients`` and ``apply_gradients``, and so do optimizers that
wrap another (Horovod's), so these two methods are patched. A class may have an ``apply_gradients``
of its own that never calls the base class's (BERT's); such methods are patched when an optimizer of
the class is created. A class that also computes its gradients itself is left alone: it mostly
passes both calls to another optimizer. Old checkpoints restore into new graphs. The state of loss
scaling in a session is read when it closes, because then its variables are gone.

*Loops* that train variables by unscaled gradients lead to one warning. As for wrapped optimizers,
only calls count. A variable is marked if its gradient is taken in a trace in which no scaler was
called; the latest trace decides, as in meta-learning. A trace that writes a marked variable trains
it without scaling. A loop that scales its loss by hand gets the warning, too, and an eager update
is not noticed. The Python functions of the ops that write variables are wrapped.

*Graphs that were built before amp_tf was on*, or in another program, and concrete functions, cannot
be given a scale. One warning says so when they train without one. A ``tf.function`` that was traced
before is traced anew (:mod:`amp_tf.hooks.scope`).
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from amp_tf.errors import first_line
from amp_tf.hooks import gradients, internals, notices, state
from amp_tf.hooks.loss_scaling import CUSTOM_LOOP, runs_in_float16, should_scale, surviving
from amp_tf.hooks.patches import Patches
from amp_tf.loss_scaling import calls, finite, is_loss_scaled, ledger

# Attributes of an optimizer: its wrappers by graph (or eager code), to which variables belong; and
# whether the program wrapped it itself.
_WRAPPERS = "_amp_tf_wrappers"
_BY_HAND = "_amp_tf_is_wrapped_by_hand"
# An attribute of a graph: its wrappers, each with the steps of the session that made the most.
_WATCHED = "_amp_tf_loss_scales"
# An attribute of a variable's handle: whether its gradient was last taken where no loss was scaled.
_UNSCALED = "_amp_tf_is_unscaled"
_SCALE_VARIABLES = ("current_loss_scale", "good_steps", "loss_scale_counters")

_NO_SCALING = (
    "For no scaling at all, or where the program scales its loss itself, set "
    "TF_ENABLE_AUTO_MIXED_PRECISION_LOSS_SCALING=0"
)
_WRITE_THREE_LINES = (
    "Write scaler = amp_tf.LossScaler() before the loop and in the step, in this order, "
    "scaled_loss = scaler.scale(loss) inside the tape, gradients = "
    "scaler.unscale(tape.gradient(scaled_loss, variables)), and scaler.step(apply, gradients), "
    f"where apply(gradients) writes the variables. {_NO_SCALING}"
)
#: the key of the warning that gradients were taken before amp_tf was on
_BUILT_BEFORE = "loss_scaling.built_before"


def install(patches: Patches) -> None:
    """Patches sessions, optimizers and savers, and what computes gradients and writes variables.

    Idempotent.
    """
    internals.TF1_SESSION_CLOSES.patch(patches, look_and_close)
    internals.RUN_FUNCTION.surround(patches, _run_function)
    internals.RUN_FETCHES.surround(patches, _run_fetches)
    internals.RUN_NAMES.surround(patches, _run_names)
    internals.TF1_OPTIMIZER.surround(patches, _init)
    internals.TF1_GRADIENTS.patch(patches, _call)
    internals.TF1_WRAPPER.surround(patches, _remember_wrapped)
    internals.TF1_SAVER.patch(patches, _restore)
    internals.TF1_SAVES.surround(patches, _save)
    gradients.watch(patches, _note_sources)
    internals.WRITE_VARIABLES.surround(patches, _write)


def wrapper_of(optimizer: Any, *, reaches_base: bool = True) -> Any:
    """The wrapper of this optimizer in the current graph, created at the first request.

    It is ``None`` if the optimizer needs none, or if its class never calls the base class's method
    (``reaches_base``) and computes its gradients itself.
    """
    from amp_tf.loss_scaling import v1

    if calls.is_inner_call() or _BY_HAND in vars(optimizer) or not should_scale(optimizer):
        return None
    base = tf.compat.v1.train.Optimizer
    is_of_base = type(optimizer).compute_gradients is base.compute_gradients
    with finite.lifted():
        graph, *_ = calls.places()
        by_graph = vars(optimizer).setdefault(_WRAPPERS, {})
        if graph not in by_graph and (reaches_base or is_of_base):
            wrapper = v1.LossScaleOptimizer(optimizer)
            vars(optimizer).pop(_BY_HAND, None)  # the program did not wrap it
            by_graph[graph] = wrapper
            if not tf.executing_eagerly():
                state.watch_collections()
                setattr(graph, _WATCHED, {**getattr(graph, _WATCHED, {}), wrapper: 1})
                if tf.distribute.has_strategy() and "tf_keras" in sys.modules:
                    # It initializes the variables that it knows, in a session of its own.
                    for variable in wrapper.variables():
                        sys.modules["tf_keras"].__internal__.backend.track_variable(variable)
    return by_graph.get(graph)


def patch_overrides(optimizer: Any) -> None:
    """Patches the ``apply_gradients`` methods that an optimizer's own classes define, once each."""
    patches = state.patches(__name__)
    if is_loss_scaled(optimizer) or not patches:
        return
    for cls in type(optimizer).__mro__:
        # The base class's is patched already, and is no such function.
        if inspect.isfunction(vars(cls).get("apply_gradients")):
            patches.put(cls, "apply_gradients", _override)


def _init(call: Any) -> None:
    call()
    with surviving("tf.compat.v1.train.Optimizer"):
        patch_overrides(call.args[0])


def _call(original: Any, optimizer: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Replaces a method of the base class; a subclass that overrides it reaches it by super()."""
    name = original.__name__
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
    if not args:
        args = (kwargs.pop("grads_and_vars"),)
    given, *others = args

    def apply(inner: Any, pairs: Any, **_: Any) -> Any:
        return apply_gradients(inner, pairs, *others, **kwargs)

    wrapper.delegate_to({"apply_gradients": apply})
    pairs = list(given)
    try:
        return wrapper.apply_gradients(pairs)
    except Exception as error:  # it may not work inside a condition
        if tf.executing_eagerly() or tf.distribute.has_strategy():
            raise
        # This raises the error, too, if it is the program's own mistake.
        step = wrapper.apply_zeros_for_nonfinite(pairs)
        why = f"{type(error).__name__}: {first_line(error)}"
        notices.warn_once(
            "loss_scaling.unconditional",
            f"the step cannot be built inside a condition ({why}), so steps with nonfinite "
            "gradients are made with zero gradients instead of being skipped",
            where=where,
            fix=(
                "Make variables in the optimizer's constructor or with an initializer that is a "
                "callable"
            ),
        )
        return step


def _remember_wrapped(call: Any) -> None:
    call()
    with surviving("MixedPrecisionLossScaleOptimizer"):
        vars(call.args[0]._optimizer)[_BY_HAND] = True


def _restore(restore: Any, saver: Any, /, sess: Any, save_path: Any) -> Any:
    """Restores all other variables of a checkpoint that lacks nothing but the loss scale."""
    try:
        return restore(saver, sess, save_path)
    except tf.errors.NotFoundError:
        if sess is None:  # in eager code, where no scale is among its variables
            raise
        targets: list[tuple[str, Any]] = []
        with surviving("tf.compat.v1.train.Saver.restore"):
            targets = _without_scale(saver, sess.graph, save_path)
        if not targets:
            raise
    reader = tf.train.load_checkpoint(save_path)
    # Adds nothing to the graph, which a MonitoredSession has finalized.
    for name, variable in targets:
        fed = {}
        if reader.has_tensor(name):
            fed[variable.initializer.inputs[1]] = _part_of(variable, reader.get_tensor(name))
        sess.run(variable.initializer, fed)
    notices.warn_once(
        "loss_scaling.saver",
        "the checkpoint is from a run without loss scaling; all its variables are restored and "
        "the loss scale starts at its initial value",
        where=f"Saver.restore({str(save_path)!r})",
        fix="There is nothing to do; the next checkpoint holds the loss scale",
    )
    return None


def _save(call: Any) -> Any:
    """Saves a session, whose program may have initialized no variables but its own."""
    _, *given = call.args
    session = call.keywords.get("sess", given and given[0])
    if session:  # in eager code there is none
        # Saving meets the errors of the session itself, such as that it is closed.
        of_session = contextlib.suppress(RuntimeError, tf.errors.OpError)
        with surviving("tf.compat.v1.train.Saver.save"), of_session:
            _initialize_scales(session)
    return call()


def _initialize_scales(session: Any) -> None:
    """Gives the loss scales of a session their initial values, if it has not initialized them."""
    variables: list[Any] = []
    for wrapper in getattr(session.graph, _WATCHED, {}):
        memory = wrapper._scaler.memory
        for variable in (memory.scale, *memory.counters):
            variables += getattr(variable, "values", None) or [variable]
    # Adds nothing to the graph, which a MonitoredSession has finalized.
    are_ready = session.run([variable._is_initialized_op for variable in variables])
    for variable, is_ready in zip(variables, are_ready, strict=True):
        if not is_ready:
            session.run(variable.initializer)


def _without_scale(saver: Any, graph: Any, save_path: Any) -> list[tuple[str, Any]]:
    """The variables that a saver wants, by their names, if a checkpoint lacks only the loss scale.

    The parts of a partitioned variable have one name. The list is empty if the checkpoint has all
    variables, or lacks others.
    """
    wanted = saver._var_list
    if wanted is None and not graph.get_collection("saveable_objects"):
        wanted = graph.get_collection("variables")
    if isinstance(wanted, dict):
        named = list(wanted.items())
    else:
        named = []
        for variable in wanted or ():
            named.append((_name_in_checkpoints(variable), variable))
    known = {name for name, _ in tf.train.list_variables(save_path)}
    absent = [variable for name, variable in named if name not in known]
    can_assign = all(hasattr(variable, "initializer") for _, variable in named)
    if not absent or not can_assign or not all(map(is_scale, absent)):
        return []
    return named


def _name_in_checkpoints(variable: Any) -> str:
    part = getattr(variable, "_save_slice_info", None)
    if part is not None:
        return str(part.full_name)
    return str(getattr(variable, "op", variable).name)


def _part_of(variable: Any, value: Any) -> Any:
    """Returns the part of a saved array that a variable holds: all, unless it is partitioned."""
    part = getattr(variable, "_save_slice_info", None)
    if part is None:
        return value
    corners = zip(part.var_offset, part.var_shape, strict=True)
    return value[tuple(slice(begin, begin + size) for begin, size in corners)]


def is_scale(variable: Any) -> bool:
    """Tells whether a TF1 variable holds a loss scale or its counters, by its name."""
    return variable.op.name.rpartition("/")[2].rstrip("0123456789").rstrip("_") in _SCALE_VARIABLES


def look_and_close(close: Callable[[Any], None], session: Any, /) -> None:
    """Replaces a session's ``close``: reads the loss scales first."""
    # A remote server may be gone by now, and nobody would want to wait for it.
    if not session.sess_str and not state.is_collecting():
        watched = getattr(session.graph, _WATCHED, {})
        for wrapper in list(watched):
            # A session that is closed, broken or not initialized has nothing to report.
            with contextlib.suppress(Exception):
                _look(wrapper, session, watched)
    close(session)


def _look(wrapper: Any, session: Any, watched: dict[Any, int]) -> None:
    """Records the status of a wrapper, if no other session made more steps with it.

    One that scaled no loss and skipped no step has nothing to say.
    """
    status = wrapper.status(session)
    scaler = wrapper._scaler
    if status.steps < watched[wrapper] or not (scaler.calls.is_used or status.skipped):
        return
    watched[wrapper] = status.steps
    if scaler.number is None:
        scaler.number = ledger.enter(wrapper.inner_optimizer.get_name())
    ledger.note_look(scaler.number, status)


def _note_sources(sources: Any, taken: Any) -> None:
    """Records the variables whose gradients are taken in the graph that is being traced."""
    if not tf.executing_eagerly() and CUSTOM_LOOP not in state.current().warned:
        with surviving("GradientTape.gradient"):
            is_scaled = calls.is_scaled_place()
            for source in tf.nest.flatten(sources):
                for handle in gradients.handles(source):
                    setattr(handle, _UNSCALED, not is_scaled)


def _write(call: Any) -> Any:
    """Warns once if a variable that gradients train is written where no loss is scaled."""
    if not tf.executing_eagerly() and CUSTOM_LOOP not in state.current().warned:
        with surviving("Variable.assign"):
            written = call.keywords.get("resource", call.keywords.get("ref"))
            if call.args:
                written = call.args[0]
            is_scaled = calls.is_scaled_place() or calls.is_scaled_step() or calls.is_inner_call()
            is_trained = any(
                getattr(handle, _UNSCALED, False) for handle in gradients.handles(written)
            )
            if is_trained and not is_scaled and runs_in_float16():
                _warn_of_loop()
    return call()


def _run_function(call: Any) -> Any:
    graph = call.args[0].graph
    _look_at_run(graph, lambda: [*_ops_of(graph.outputs), *graph.control_outputs])
    return call()


def _run_fetches(call: Any) -> None:
    """Looks at what a session was asked for, in any form."""
    call()
    handler, graph, *_ = call.args
    _look_at_run(graph, lambda: [*_ops_of(handler.fetches()), *handler.targets()])


def _run_names(call: Any) -> Any:
    session, options = call.args
    names = [*options.target, *(name.partition(":")[0] for name in options.fetch)]
    graph = session.graph
    _look_at_run(graph, lambda: map(graph.get_operation_by_name, names))
    return call()


def _ops_of(tensors: Iterable[Any]) -> list[Any]:
    return [tensor.op for tensor in tensors]


def _look_at_run(graph: Any, ops: Callable[[], Iterable[Any]]) -> None:
    """Warns once if ops that run train by gradients that were taken before amp_tf was on."""
    if _BUILT_BEFORE in state.current().warned:
        return
    with surviving("running a graph"):
        if gradients.train_unscaled(graph, ops) and runs_in_float16():
            notices.warn_once(
                _BUILT_BEFORE,
                "it trains by gradients that were taken before amp_tf was turned on, or in another "
                "program. Their loss is not scaled, so small gradients are lost where it runs in "
                "float16",
                where=_describe([graph]),
                fix=(
                    "Turn amp_tf on first, and build the graph, or get the concrete function, "
                    f"after that. {_NO_SCALING}"
                ),
            )


def _warn_of_loop() -> None:
    notices.warn_once(
        CUSTOM_LOOP,
        "variables are written by gradients of a loss that is not scaled, in float16, so small "
        "gradients are lost",
        where=_describe(calls.places()),
        fix=_WRITE_THREE_LINES,
    )


def _describe(graphs: Iterable[Any]) -> str:
    """Names the outermost function of nested graphs."""
    # The graph around all has no name.
    functions = [graph.name for graph in graphs if hasattr(graph, "name")]
    if functions:
        return f"function {functions[-1]!r}"
    return "a TF1 graph"
