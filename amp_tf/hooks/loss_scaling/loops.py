"""The patches for loops without a known optimizer: a warning where variables are trained by unscaled gradients.

Calls alone count, as for wrapped optimizers: a trace that takes gradients of variables, in which nothing called a
scaler, marks these variables; a trace that then writes one of them trains it, and is warned once. Where gradients are
taken twice, as in meta-learning, the last time counts. A loop that scales its loss by hand is warned, too, and may turn
loss scaling off. An eager update is not noticed.

The Python functions of the ops that write are wrapped, because only there is known what is written.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from amp_tf.hooks.loss_scaling.automatic import Context, survive
from amp_tf.hooks.patches import Patch, calling
from amp_tf.loss_scaling import calls

_VARIABLE_OPS = ("assign_variable_op", "assign_add_variable_op", "assign_sub_variable_op")
_SCATTER_OPS = ("resource_scatter_add", "resource_scatter_sub", "resource_scatter_update")
_REF_OPS = ("assign", "assign_add", "assign_sub", "scatter_add", "scatter_sub")

# The handles of variables whose gradients were last taken where no loss was scaled, by id, as long as they live.
_unscaled: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def patches(context: Context) -> list[Patch]:
    """The patches of TensorFlow's functions that compute gradients, and of those that write variables."""
    from tensorflow.python.eager import backprop
    from tensorflow.python.ops import gen_resource_variable_ops, gen_state_ops, gradients_util

    writers = [
        *((gen_resource_variable_ops, name) for name in (*_VARIABLE_OPS, *_SCATTER_OPS)),
        *((gen_state_ops, name) for name in _REF_OPS),
    ]
    return [
        (backprop.GradientTape, "gradient", calling(_gradient, context, 2)),
        (gradients_util, "_GradientsHelper", calling(_gradient, context, 1)),
        *((owner, name, calling(_write, context)) for owner, name in writers),
    ]


def _gradient(context: Context, place: int, gradient: Any, /, *args: Any, **kwargs: Any) -> Any:
    if not tf.executing_eagerly() and not context.is_told:
        sources = args[place] if len(args) > place else kwargs.get("sources", kwargs.get("xs"))
        survive("GradientTape.gradient", note_gradients, sources)
    return gradient(*args, **kwargs)


def note_gradients(sources: Any) -> None:
    """Records that gradients of a nest of tensors or variables are taken in the graph that is being traced."""
    is_scaled = calls.is_scaled_place()
    for handle in (handle for source in tf.nest.flatten(sources) for handle in _handles(source)):
        _unscaled.pop(id(handle), None)
        if not is_scaled:
            _unscaled[id(handle)] = handle


def _write(context: Context, write: Any, /, *args: Any, **kwargs: Any) -> Any:
    if _unscaled and not context.is_told and not tf.executing_eagerly():
        written = args[0] if args else kwargs.get("resource", kwargs.get("ref"))
        survive("Variable.assign", look_at_write, written, context)
    return write(*args, **kwargs)


def look_at_write(written: Any, context: Context) -> None:
    """Warns once if a variable that gradients train is written where nothing scales a loss.

    Args:
        written: the variable, or its handle.
        context: whether this process' graphs run in float16.
    """
    if not any(_unscaled.get(id(handle)) is handle for handle in _handles(written)):
        return
    if calls.is_scaled_place() or calls.is_scaled_step() or calls.is_inner_call() or not context.runs_in_float16():
        return
    functions = [graph.name for graph in calls.places() if hasattr(graph, "name")]  # the graph around all has none
    context.warn_bare_loop(where=f"function {functions[-1]!r}" if functions else "a TF1 graph")


def _handles(source: Any) -> Iterator[Any]:
    """The handles of a variable, of a Keras variable, or of a variable of several replicas; none for other tensors."""
    if isinstance(source, tf.Tensor) and (source.dtype == tf.resource or source.dtype._is_ref_dtype):
        yield source
    variable = source if isinstance(source, tf.Variable) else getattr(source, "value", None)
    if isinstance(variable, tf.Variable):
        yield from (part.handle for part in getattr(variable, "values", None) or [variable])
