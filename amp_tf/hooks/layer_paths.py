"""Records which layers open which name scopes while graphs are traced.

So layers are found by their paths. Keras 3 opens a scope for each call of a layer through one
class, tf_keras asks one method for its name. Both are patched to record the layer. A tape names the
gradient of an op after the scope of the op, but not that of a function with a gradient of its own
(``tf.custom_gradient``, ``tf.recompute_grad``, a ``tf.function``); here it does that, too. Eager
code is not recorded; a graph costs a look into a dictionary for each call of a layer, once, when it
is traced.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

from amp_tf.graph.layers import KerasLayer, recorded, scopes
from amp_tf.hooks import state
from amp_tf.hooks.internals import (
    KERAS_SCOPES,
    RECORD_OPERATION,
    TF_KERAS_SCOPES,
)
from amp_tf.hooks.patches import Patches
from amp_tf.hooks.scope import change_backward


def install(patches: Patches) -> None:
    """Records the layers of the Keras libraries that are imported by now.

    Idempotent; call it again after another was imported. The record outlives the hook, because its
    graphs do.
    """
    KERAS_SCOPES.surround(patches, _enter)
    TF_KERAS_SCOPES.patch(patches, _name_scope)
    RECORD_OPERATION.patch(patches, functools.partial(change_backward, _in_scope_of_now))


@contextlib.contextmanager
def recording() -> Iterator[None]:
    """Records the layers of the graphs that a block traces, whether or not amp_tf is on."""
    patches = state.patches(__name__)
    was_on = bool(patches)
    install(patches)
    try:
        yield
    finally:
        if not was_on:
            patches.restore()


def _enter(call: Any) -> Any:
    result = call()
    try:
        # Optimizers and losses open scopes, too.
        if isinstance(call.args[0].caller, sys.modules["keras"].layers.Layer):
            _record(_scope_here())
    except Exception:
        # The names are private. If they change, layers are found by their scopes alone.
        state.patches(__name__).restore()
    return result


def _record(scope: str | None) -> None:
    """Records that the innermost layer of Keras 3 opened a name scope of TensorFlow's."""
    from keras.src.backend.common import global_state, name_scope

    if scope:
        stack = global_state.get_global_attribute("name_scope_stack")
        names = tuple(entry.name for entry in stack)
        recorded.record(scope, KerasLayer(name_scope.current_path(), names))


def _name_scope(name_scope: Any, layer: Any, /) -> Any:
    """The scope that a layer of tf_keras is about to open.

    It ends with a slash where TensorFlow adds no number.
    """
    found = name_scope(layer)
    if isinstance(found, str) and found.endswith("/") and _scope_here() is not None:
        above, _, name = found[:-1].rpartition("/")
        names = (*scopes(f"{above}/"), name)
        recorded.record(found[:-1], KerasLayer("/".join(names), names))
    return found


def _in_scope_of_now(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Names a gradient like that of an op in the same scope."""
    import tensorflow as tf

    scope = _scope_here()
    if not scope:
        return backward

    def in_scope(*args: Any) -> Any:
        with tf.name_scope(f"gradient_tape/{scope}/"):
            return backward(*args)

    return in_scope


def _scope_here() -> str | None:
    """The name scope of the graph that is built; ``None`` in eager code, or for shapes alone."""
    import tensorflow as tf

    if tf.executing_eagerly():
        return None
    graph = tf.compat.v1.get_default_graph()
    # A scratch graph of Keras 3 is thrown away once shapes of results are known.
    if getattr(graph, "name", "").startswith("scratch_graph"):
        return None
    return str(graph.get_name_scope())
