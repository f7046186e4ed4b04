"""Marks the functions of tf.data as they are traced, so that their graphs stay in float32.

Mixed precision is meant for a model. The functions that decode, resize and normalize its data run beside it, and
rounding would change the images and labels. TensorFlow passes the graph of such a function to graph optimizers like any
other and does not say what it is for, so the function's own ops carry a mark. Functions that it calls need none,
because TensorFlow inlines them.

``reduce``, ``scan`` and ``take_while`` are not marked: AutoGraph makes them of ``for batch in dataset`` inside a
tf.function, where they hold the training step.
"""

from __future__ import annotations

import threading
from typing import Any

from amp_tf.config import AmpConfig
from amp_tf.hooks.patches import Patches, calling

MARK = "_amp_tf_input_pipeline"  #: an attribute of the ops of such a function
_TRANSFORMATIONS_OF_LOOPS = ("reduce()", "Dataset.reduce()", "Dataset.scan()", "Dataset.take_while()")

_patches = Patches()
_tracing = threading.local()  # .waits: the next graph made on this thread is that of an input pipeline's function


def install(config: AmpConfig) -> None:
    """Marks the functions of tf.data from now on. Idempotent."""
    from tensorflow.python.data.ops import structured_function
    from tensorflow.python.framework import func_graph

    _patches.put(structured_function.StructuredFunctionWrapper, "__init__", calling(_announce))
    _patches.put(func_graph.FuncGraph, "__init__", calling(_mark_first))


def uninstall() -> None:
    """Stops marking functions; those that are marked stay so. Idempotent."""
    _patches.restore()


def is_marked(serialized: bytes) -> bool:
    """Whether a serialized GraphDef is the graph of an input pipeline's function."""
    return MARK.encode() in serialized


def _announce(init: Any, wrapper: Any, /, func: Any, transformation_name: str, *args: Any, **kwargs: Any) -> None:
    outer = getattr(_tracing, "waits", False)
    _tracing.waits = transformation_name not in _TRANSFORMATIONS_OF_LOOPS
    try:
        init(wrapper, func, transformation_name, *args, **kwargs)
    finally:
        _tracing.waits = outer


def _mark_first(init: Any, graph: Any, /, *args: Any, **kwargs: Any) -> None:
    is_pipeline = getattr(_tracing, "waits", False)
    _tracing.waits = False  # what the function calls has graphs of its own, and other callers
    init(graph, *args, **kwargs)
    if is_pipeline:
        from tensorflow.core.framework import attr_value_pb2

        graph._attr_scope_map[MARK] = attr_value_pb2.AttrValue(b=True)
