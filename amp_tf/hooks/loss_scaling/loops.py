"""The patches for loops without a known optimizer: a warning where variables are written by unscaled gradients.

Gradients of variables are recorded where a graph computes them (``GradientTape.gradient``, ``tf.gradients``); gradients
of inputs are parts of a loss, as in a gradient penalty. When a variable is written, the value is followed back through
what the graph has computed since: if it comes from a gradient and, unlike a metric, has the rank of one, the graph
trains. If that gradient depends on no scalar float variable other than the trained ones, no loss scale was used. The
walk stops at operations older than the first gradient, so that statistics of the forward pass cost nothing.

Which values are written to variables is known only where they are written, so the Python functions of the ops that
write are wrapped, and only graphs that computed gradients are examined. The scalar variable may be a weight of the loss
instead of a scale: better one warning too few than one too many. Two cases are missed: an eager tape around compiled
functions, with an eager update, and an ``apply`` that is a ``tf.function`` of its own and gets the gradients as
arguments.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

from amp_tf.hooks.loss_scaling.automatic import Context, survive
from amp_tf.hooks.patches import Patch, calling
from amp_tf.loss_scaling.recognizing import lineage, usage

_BODIES = ("f", "body", "then_branch", "else_branch")  # attributes of calls, loops and branches that name functions
_VARIABLE_OPS = ("assign_variable_op", "assign_add_variable_op", "assign_sub_variable_op")
_SCATTER_OPS = ("resource_scatter_add", "resource_scatter_sub", "resource_scatter_update")
_REF_OPS = ("assign", "assign_add", "assign_sub", "scatter_add", "scatter_sub")


class _Noted:
    """What is known of the gradients of one graph.

    Attributes:
        names: of the tensors that are gradients.
        first: the number of the oldest operation that computes a gradient.
        ranks: of the tensors; ``None`` for one that is not known.
        trained: the handles of the variables that they are for: eager ones, or what names those of a TF1 graph, which
            would keep the graph alive.
        scaled: of the gradients that depend on a loss scale, those that somebody asked for.
    """

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.first = math.inf
        self.ranks: set[int | None] = set()
        self.trained: dict[Any, Any] = {}
        self.scaled: set[str] = set()


_noted: weakref.WeakKeyDictionary[Any, _Noted] = weakref.WeakKeyDictionary()


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
    result = gradient(*args, **kwargs)
    if not tf.executing_eagerly() and not context.is_told:
        sources = args[place] if len(args) > place else kwargs.get("sources", kwargs.get("xs"))
        survive("GradientTape.gradient", note_gradients, result, sources)
    return result


def _write(context: Context, write: Any, /, *args: Any, **kwargs: Any) -> Any:
    if _noted and not context.is_told and not tf.executing_eagerly():
        survive("Variable.assign", look_at_write, [*args[1:], *kwargs.values()], context)
    return write(*args, **kwargs)


def note_gradients(result: Any, sources: Any) -> None:
    """Records the gradients that were computed in the graph that is being traced.

    Args:
        result: a nest of tensors, ``tf.IndexedSlices`` and ``None``.
        sources: a nest of the tensors or variables that the gradients are for.
    """
    handles, values = [], []
    for leaf, source in zip(tf.nest.flatten(result), tf.nest.flatten(sources), strict=False):
        if found := list(_handles(source)):
            handles += found
            values.append(leaf.values if isinstance(leaf, tf.IndexedSlices) else leaf)
    if not handles:
        return
    trained = {lineage.key_of(handle): handle if hasattr(handle, "numpy") else None for handle in handles}
    for graph in usage.places():  # a loop's body passes its gradients to the graph around it
        noted = _noted.setdefault(graph, _Noted())
        noted.trained.update(trained)
        noted.ranks.update(value.shape.rank for value in values if tf.is_tensor(value))
    for value in values:
        if tf.is_tensor(value) and getattr(value, "graph", None) in _noted:
            noted = _noted[value.graph]
            noted.names.add(value.name)
            noted.first = min(noted.first, _number(value.op))


def look_at_write(values: Iterable[Any], context: Context) -> None:
    """Warns once if a variable is written by a gradient whose loss nothing scaled."""
    if not context.runs_in_float16():  # first: the checks below walk through the graph, for each variable
        return
    around = usage.places()
    if not any(graph in _noted for graph in around) or usage.is_scaled_step() or usage.is_inner_call():
        return
    ranks = {rank for graph in around if graph in _noted for rank in _noted[graph].ranks}
    may_train = [v for v in lineage.tensors_in(list(values)) if v.shape.rank in ranks or None in (v.shape.rank, *ranks)]
    gradients = [gradient for value in may_train for gradient in _gradients_behind(value)]
    if gradients and not _depend_on_scale(gradients, around):
        functions = [graph.name for graph in around if hasattr(graph, "name")]  # the graph around all has none
        context.warn_bare_loop(where=f"function {functions[-1]!r}" if functions else "a TF1 graph")


def _gradients_behind(value: Any) -> Iterator[Any]:
    """The gradients that a value was computed from; the search stops at the first ones on each path."""
    stack, seen = [value], {(id(value.graph), value.name)}
    captures: dict[Any, dict[str, Any]] = {}
    while stack:
        tensor = stack.pop()
        noted = _noted.get(tensor.graph)
        if noted is not None and (tensor.name in noted.names or _runs_noted(tensor.op)):
            yield tensor
            continue
        if noted is not None and _number(tensor.op) < noted.first and noted.names:
            continue
        if tensor.graph not in captures:
            captures[tensor.graph] = lineage.captures_of(tensor.graph)
        outside = captures[tensor.graph].get(tensor.name)
        for source in tensor.op.inputs if outside is None else [outside]:
            if not hasattr(source, "numpy") and (key := (id(source.graph), source.name)) not in seen:
                seen.add(key)
                stack.append(source)


def _runs_noted(operation: Any) -> bool:
    """Whether an operation is a loop, a branch or a call in which gradients were computed."""
    for name in _BODIES:
        try:
            function = operation.get_attr(name)
        except ValueError:
            continue
        body = getattr(operation.graph._get_function(getattr(function, "name", "")), "graph", None)
        if body in _noted and _noted[body].names:
            return True
    return False


def _depend_on_scale(gradients: list[Any], around: list[Any]) -> bool:
    """Whether gradients were computed from a scalar float variable other than those trained: a loss scale."""
    if any(gradient.name in _noted[gradient.graph].scaled for gradient in gradients):
        return True
    trained = {key for graph in around if graph in _noted for key in _noted[graph].trained}
    found = lineage.depend_on_scale(gradients, trained)
    if found:  # an optimizer asks this for each of its variables and slots
        for gradient in gradients:
            _noted[gradient.graph].scaled.add(gradient.name)
    return found


def _handles(source: Any) -> Iterator[Any]:
    """The handles of a variable, of a Keras variable, or of a variable of several replicas; none for other tensors."""
    if isinstance(source, tf.Tensor) and (source.dtype == tf.resource or source.dtype._is_ref_dtype):
        yield source
    variable = source if isinstance(source, tf.Variable) else getattr(source, "value", None)
    if isinstance(variable, tf.Variable):
        yield from lineage.handles_of(variable)


def _number(operation: Any) -> float:
    """The position of an operation in its graph's order of creation."""
    return float(getattr(operation, "_id", math.inf))
