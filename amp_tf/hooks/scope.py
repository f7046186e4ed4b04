"""``amp_tf.scope``: the precision of the ops made inside a ``with`` block, and of their gradients.

NVIDIA's TensorFlow had the same idea (``auto_mixed_precision_scope``): ops carry an attribute that
the rewrite reads. TensorFlow gives it to every op of the graph that is being built
(``Graph._attr_scope``). Three things more are needed, and each is one small patch, put in place
when a scope is first used:

- functions traced inside the block (loop bodies, branches, nested tf.functions) start with the
  attribute;
- ``GradientTape`` remembers it with the record of each op, whose outputs may be dropped before its
  gradient is built;
- ``tf.gradients``, which TensorFlow uses for functions, loops and v1 graphs, sets it again for an
  op's gradient.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Literal, get_args

from amp_tf.graph.edits import attribute
from amp_tf.hooks import internals, state
from amp_tf.painting.eligibility import SCOPE_ATTR
from amp_tf.values import check_choice, check_patterns, dtype_name

ScopeName = Literal["float32", "f16", "float16", "bfloat16"]
PRECISIONS: tuple[str, ...] = get_args(ScopeName)


@contextlib.contextmanager
def scope(precision: ScopeName, *patterns: str) -> Iterator[None]:
    """Ops created inside, and their gradients, keep or get a precision.

    Use it in model code that is traced: in a layer's ``call``, a ``tf.function`` or while a v1
    graph is built. Around code that runs eagerly it changes nothing, because that code is never
    rewritten. The innermost scope counts.

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
    _install()
    value = "\t".join((name, *patterns)).encode()
    outer = _current()
    if patterns and outer is not None:
        value += b"\n" + outer
    with _entering(value):
        yield


@contextlib.contextmanager
def _entering(value: bytes) -> Iterator[None]:
    import tensorflow as tf

    here = state.current().here
    outer = getattr(here, "scope", None)
    here.scope = value
    around: Any = contextlib.nullcontext()
    if not tf.executing_eagerly():
        around = tf.compat.v1.get_default_graph()._attr_scope({SCOPE_ATTR: attribute(s=value)})
    try:
        with around:
            yield
    finally:
        here.scope = outer


def _install() -> None:
    from tensorflow.python import pywrap_tfe
    from tensorflow.python.eager import backprop

    patches = state.patches(__name__)
    internals.NEW_GRAPH.patch(patches, _mark_new_graph)
    internals.RECORD_GRADIENT.patch(patches, _remember_scope)
    internals.GRAPH_GRADIENT.patch(patches, _follow_op)
    if internals.TAPE_GRADIENT.patch(patches, _recall_scope):
        pywrap_tfe.TFE_Py_RegisterGradientFunction(backprop._gradient_function)


def _current() -> bytes | None:
    """Returns the scope of the code that is being traced.

    On threads of a strategy's replicas the graph holds it.
    """
    import tensorflow as tf

    value: bytes | None = getattr(state.current().here, "scope", None)
    if value is not None or tf.executing_eagerly():
        return value
    mark = tf.compat.v1.get_default_graph()._attr_scope_map.get(SCOPE_ATTR)
    if mark is None:
        return None
    found: bytes = mark.s
    return found


def _mark_new_graph(init: Any, graph: Any, /, *args: Any, **kwargs: Any) -> None:
    value = _current()  # before the graph is created: the scope of the one around it
    init(graph, *args, **kwargs)
    if value is not None:
        graph._attr_scope_map[SCOPE_ATTR] = attribute(s=value)


def _remember_scope(
    record_gradient: Any, op_name: str, inputs: Any, attrs: Any, outputs: Any
) -> Any:
    value = _current()
    if value is not None:
        attrs = (*(attrs or ()), SCOPE_ATTR, value)
    return record_gradient(op_name, inputs, attrs, outputs)


def _recall_scope(gradient_function: Any, op_name: str, attr_tuple: Any, *args: Any) -> Any:
    names = (attr_tuple or ())[::2]
    if SCOPE_ATTR not in names:
        return gradient_function(op_name, attr_tuple, *args)
    value = attr_tuple[2 * names.index(SCOPE_ATTR) + 1]
    with _entering(value):
        return gradient_function(op_name, attr_tuple, *args)


def _follow_op(maybe_compile: Any, name_scope: str, op: Any, func: Any, grad_fn: Any) -> Any:
    try:
        value = op.get_attr(SCOPE_ATTR)
    except ValueError:  # the op was not made inside a scope
        return maybe_compile(name_scope, op, func, grad_fn)
    with _entering(value):
        return maybe_compile(name_scope, op, func, grad_fn)
