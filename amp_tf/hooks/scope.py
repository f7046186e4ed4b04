"""``amp_tf.scope``: the precision of the ops made inside a ``with`` block, and of their gradients.

NVIDIA's TensorFlow had the same idea (``auto_mixed_precision_scope``): ops carry an attribute that
the rewrite reads. Each thread has one scope, and an op gets that of the thread that creates it.
TensorFlow postpones some work, or gives it to other threads. It gets the scope of

- the forward op: its gradient by ``tf.gradients``, which builds that of functions and loops, too,
  and what ``tf.vectorized_map`` makes of it;
- the record on the tape: the gradient of an op, and a custom gradient;
- the thread that starts them: the replicas of a strategy, and what they let it do for all.

The trace of a ``tf.function`` is kept for calls in the same scope under the same settings, that of
loss scaling included: what was traced before is optimized already, and may scale no loss. All of
this is in place while amp_tf is on, because graphs of files have scopes, too.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, Literal, get_args

from amp_tf.graph.edits import attribute
from amp_tf.hooks import internals, state
from amp_tf.hooks.patches import Patches
from amp_tf.painting.eligibility import SCOPE_ATTR
from amp_tf.values import check_choice, check_patterns, dtype_name

ScopeName = Literal["float32", "f16", "float16", "bfloat16"]
PRECISIONS: tuple[str, ...] = get_args(ScopeName)


@contextlib.contextmanager
def scope(precision: ScopeName, *patterns: str) -> Iterator[None]:
    """Ops created inside, and their gradients, keep or get a precision.

    Use it in model code that is traced: in a layer's ``call``, a ``tf.function`` or while a v1
    graph is built. Around code that runs eagerly it changes nothing, because that code is never
    rewritten. A ``tf.function`` is traced for each scope in which it is called. The innermost scope
    counts.

    Args:
        precision: ``"float32"`` keeps the ops in float32. ``"f16"`` converts them wherever their op
            can be, whatever list it is on. ``"float16"`` and ``"bfloat16"`` do so only where that
            is the 16-bit type in use. Dtypes such as ``tf.float32`` are taken for their names.
        *patterns: which nodes the scope is for, as in ``AmpConfig.keep_float32``:
            ``"layer:encoder/block_3"`` and regular expressions for names of nodes. Without
            patterns it is for all. For the other nodes the scope around this one counts.

    Raises:
        ConfigError: another precision is asked for, or a pattern is none.
    """
    name = check_choice(dtype_name(precision), PRECISIONS, where="amp_tf.scope")
    check_patterns(patterns, where="amp_tf.scope")
    install(state.patches(__name__))  # a graph may be built before amp_tf is on
    value = "\t".join((name, *patterns)).encode()
    outer = _current()
    if patterns and outer is not None:
        value += b"\n" + outer
    with _entering(value):
        yield


def install(patches: Patches) -> None:
    """Marks the ops that are created in scopes from now on. Idempotent."""
    from tensorflow.python import pywrap_tfe
    from tensorflow.python.eager import backprop

    internals.FINISH_OP.patch(patches, _mark)
    internals.OPS_FOR_AN_OP.patch(patches, _follow_op)
    internals.RECORD_GRADIENT.patch(patches, _remember_scope)
    in_current = functools.partial(change_backward, _in_current)
    internals.RECORD_OPERATION.patch(patches, in_current)
    if internals.TAPE_GRADIENT.patch(patches, _recall_scope):
        pywrap_tfe.TFE_Py_RegisterGradientFunction(backprop._gradient_function)
    internals.REPLICA_THREADS.patch(patches, _hand_on)
    internals.TRACES.patch(patches, _tell_traces_apart)


def _current() -> bytes | None:
    """Returns the scope of this thread."""
    return getattr(state.current().here, "scope", None)


def _entering(value: bytes | None) -> contextlib.AbstractContextManager[None]:
    """Runs a block in a scope; ``None`` changes nothing."""
    return state.within(scope=value or _current())


def _in_current(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function, to be called later in the scope of now."""
    value = _current()
    if value is None:
        return function

    def in_scope(*args: Any, **kwargs: Any) -> Any:
        with _entering(value):
            return function(*args, **kwargs)

    return in_scope


def _scope_of(op: Any) -> bytes | None:
    try:
        value: bytes = op.get_attr(SCOPE_ATTR)
    except (AttributeError, ValueError):  # no attribute; a whole loop, in tf.vectorized_map
        return None
    return value


def _mark(finish_op: Any, graph: Any, op: Any, /, **kwargs: Any) -> None:
    value = _current()
    if value is not None and _scope_of(op) is None:
        op._set_attr(SCOPE_ATTR, attribute(s=value))
    finish_op(graph, op, **kwargs)


@contextlib.contextmanager
def _follow_op(original_op: Any, graph: Any, op: Any, /) -> Iterator[None]:
    with original_op(graph, op), _entering(_scope_of(op)):
        yield


def _remember_scope(
    record_gradient: Any, op_name: str, inputs: Any, attrs: Any, outputs: Any
) -> Any:
    value = _current()
    if value is not None:
        attrs = (*(attrs or ()), SCOPE_ATTR, value)
    return record_gradient(op_name, inputs, attrs, outputs)


def _recall_scope(gradient_function: Any, op_name: str, attr_tuple: Any, *args: Any) -> Any:
    values = attr_tuple or ()
    attrs = dict(zip(values[::2], values[1::2], strict=True))
    with _entering(attrs.get(SCOPE_ATTR)):
        return gradient_function(op_name, attr_tuple, *args)


def change_backward(
    change: Callable[[Any], Any],
    record_operation: Any,
    op_type: str,
    output_tensors: Any,
    input_tensors: Any,
    backward_function: Any,
    forward_function: Any = None,
) -> None:
    """Records a function for a tape, with another function for its gradient."""
    backward = change(backward_function)
    record_operation(op_type, output_tensors, input_tensors, backward, forward_function)


def _hand_on(call: Any, owner: Any, function: Any, args: Any, kwargs: Any, /) -> Any:
    return call(owner, _in_current(function), args, kwargs)


def _tell_traces_apart(make_function_context: Any, scope_type: Any = None) -> Any:
    value = _current()
    switches = state.current().switches
    settings = None
    if switches.graph_rewrite:
        settings = switches, state.settings()
    if settings is not None or value is not None:
        scope_type = scope_type, settings, value
    return make_function_context(scope_type)
