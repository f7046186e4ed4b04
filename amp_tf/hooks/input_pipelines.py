"""Keeps input pipelines (tf.data) in float32: rounding would change images, and labels beside them.

TensorFlow does not say what a graph is for, but each graph has the name of its function, and
tf.data names a function after the transformation that calls it, such as ``Dataset_map_prepare``.
The name does not depend on when the function was traced, so a pipeline made before amp_tf was
turned on is exact too. Three kinds of code belong to a pipeline:

- *Its functions*, with what TensorFlow inlines into them. The shim leaves out graphs with such
  names (shim.c). That takes no Python, so a pipeline never waits for Python's lock.
- *Functions that XLA compiles*, which TensorFlow does not inline. A function of a pipeline that
  calls one is pointed, when it is created, at copies as the program wrote them
  (:mod:`amp_tf.hooks.xla`).
- *Python code*: ``tf.py_function``, ``tf.numpy_function``, the generator of ``from_generator``.
  TensorFlow functions that it calls run as the program wrote them, and without plugins. TensorFlow
  keeps these graphs apart from those of the same functions in the training step, because the
  options of a call are part of the key under which it caches graphs. So it is in threads that this
  code starts, in the workers of a ``keras.utils.PyDataset``, and for the first batches of a
  generator, which Keras takes before it makes the pipeline.

Two kinds of functions hold training steps, and are no pipelines. ``reduce`` is a loop. AutoGraph
makes ``for batch in dataset`` inside a tf.function a ``scan`` with a function of its own,
``scan_body``; any other function of ``scan`` is a pipeline's.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterator
from typing import Any

from amp_tf.hooks import notices, state, xla
from amp_tf.hooks.patches import Patches

_BY_PYTHON = ("Dataset_", "tf_data_experimental_", "map_on_gpu_")
_BY_OPTIMIZER = ("fused_map", "fused_predicate", "fused_filter", "map_fusion_funcs/")  # of tf.data
BEGINNINGS = (*_BY_PYTHON, *_BY_OPTIMIZER)  #: how the names of a pipeline's functions begin
LOOPS = ("Dataset_reduce_", "Dataset_scan_scan_body")  #: how those of loops begin
_WHERE = "input pipeline"


class PythonCalls:
    """Tells which Python functions pipelines call; TensorFlow's graphs call them by tokens."""

    def __init__(self) -> None:
        self._of_pipelines: set[str] = set()
        self._of_others: set[str] = set()
        self._searched: set[str] = set()  # names of functions

    def is_of_pipeline(self, token: str) -> bool:
        """Whether a function of a pipeline calls the token, itself or through other functions."""
        if token not in self._of_pipelines and token not in self._of_others:
            self._search()
            if token not in self._of_pipelines:
                self._of_others.add(token)
        return token in self._of_pipelines

    def forget_others(self) -> None:
        """Makes the next call of each other token search again: there is a new function of a
        pipeline.
        """
        self._of_others.clear()

    def _search(self) -> None:
        functions = state.functions()
        for name in functions.keys() - self._searched:
            self._searched.add(name)
            if not is_of_pipeline(name):
                continue
            definition = functions[name]()
            called = xla.called_by(definition, lambda inner: functions.get(inner, _none)())
            for function in (definition, *called.values()):
                for node in function.node_def:
                    if "token" in node.attr:
                        self._of_pipelines.add(node.attr["token"].s.decode())


def _none() -> None:
    return None


_python_calls = PythonCalls()


def install(patches: Patches) -> None:
    """Keeps what pipelines call in float32 from now on, whenever it was traced. Idempotent."""
    from tensorflow.python.eager.polymorphic_function import atomic_function
    from tensorflow.python.ops import script_ops

    patches.put(atomic_function, "from_func_graph", _make_function)
    patches.put(atomic_function.AtomicFunction, "call_flat", _call_function)
    patches.put(script_ops.FuncRegistry, "__call__", _call_python)
    # Keras takes the first two batches of a generator before it makes the pipeline.
    if adapter := sys.modules.get("keras.src.trainers.data_adapters.generator_data_adapter"):
        patches.put(adapter, "peek_and_restore", _call_in_pipeline)


def is_of_pipeline(name: str) -> bool:
    """Whether a function is one of a pipeline, by its name."""
    name = name.removeprefix(state.TRACED)
    return name.startswith(BEGINNINGS) and not name.startswith(LOOPS)


def is_in_pipeline() -> bool:
    """Whether this thread runs Python code that a pipeline called."""
    return getattr(state.current().here, "is_in_pipeline", False)


def beginnings() -> tuple[list[str], list[str]]:
    """How names begin, in full: those of pipelines' functions, and of loops among them."""
    traced_pipelines = [state.TRACED + name for name in BEGINNINGS]
    traced_loops = [state.TRACED + name for name in LOOPS]
    return [*BEGINNINGS, *traced_pipelines], [*LOOPS, *traced_loops]


def _make_function(from_func_graph: Any, /, name: Any, *args: Any, **kwargs: Any) -> Any:
    function = from_func_graph(name, *args, **kwargs)
    text = function.name.decode()
    if is_of_pipeline(text):
        _python_calls.forget_others()
        what = (
            f"functions that {text!r} calls are computed by XLA as they were rewritten, in 16 bit"
        )
        with notices.surviving("pipeline.xla", what, where=_WHERE):
            xla.call_originals(function)
    return function


def _call_python(call: Any, registry: Any, /, token: str, *args: Any, **kwargs: Any) -> Any:
    is_inner = is_in_pipeline()
    what = "Python code that it calls may be computed in 16 bit"
    with notices.surviving("pipeline.python", what, where=_WHERE):
        is_inner = is_inner or _python_calls.is_of_pipeline(token)
    with _pipeline() if is_inner else contextlib.nullcontext():
        return call(registry, token, *args, **kwargs)


@contextlib.contextmanager
def _pipeline() -> Iterator[None]:
    """Makes the block's code, on this thread, a pipeline's."""
    here = state.current().here
    before = is_in_pipeline()
    here.is_in_pipeline = True
    try:
        yield
    finally:
        here.is_in_pipeline = before


def _call_in_pipeline(call: Any, /, *args: Any) -> Any:
    with _pipeline():
        return call(*args)


def _call_function(call_flat: Any, function: Any, /, *args: Any) -> Any:
    context = function._bound_context
    if not is_in_pipeline() or not context.executing_eagerly():
        return call_flat(function, *args)
    what = "a TensorFlow function that its Python code calls may be computed in 16 bit"
    options = context.function_call_options
    exact = function
    with notices.surviving("pipeline.function", what, where=_WHERE):
        exact = xla.original_of(function)
        context.function_call_options = _without_plugins(
            options.config_proto_serialized, options.executor_type
        )
    try:
        return call_flat(exact, *args)
    finally:
        context.function_call_options = options


@functools.lru_cache(maxsize=16)
def _without_plugins(config: bytes | None, executor_type: str | None) -> Any:
    from tensorflow.core.protobuf import config_pb2, rewriter_config_pb2
    from tensorflow.python.eager import context

    options = config_pb2.ConfigProto.FromString(config or b"")
    options.graph_options.rewrite_options.use_plugin_optimizers = (
        rewriter_config_pb2.RewriterConfig.OFF
    )
    return context.FunctionCallOptions(executor_type=executor_type, config_proto=options)
