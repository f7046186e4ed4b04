"""Keeps input pipelines (tf.data) in float32: rounding would change images, and labels beside them.

TensorFlow does not say what a graph is for, but each graph has the name of its function, and
tf.data names a function after the transformation that calls it, such as ``Dataset_map_prepare``.
The name does not depend on when the function was traced, so a pipeline made before amp_tf was
turned on is exact too. A name can mislead: the program may call a function of its own so, and in
tf.data's debug mode all have the same one. tf.data also marks its functions by an attribute, so a
function that is traced from then on gets a name that tells. Three kinds of code belong to a
pipeline:

- *Its functions*, with what TensorFlow inlines into them. The shim leaves out graphs with such
  names (shim.c). That takes no Python, so a pipeline never waits for Python's lock.
- *Functions that TensorFlow does not inline*: XLA compiles them, or they are marked ``_noinline``.
  A function of a pipeline that calls one is pointed, when it is created, at copies that compute
  what the program wrote (:mod:`amp_tf.hooks.xla`). Their names begin as those of pipelines do.
- *Python code*: ``tf.py_function``, ``tf.numpy_function``, the generator of ``from_generator``.
  Such code calls copies of the TensorFlow functions, too. So do the workers of a
  ``keras.utils.PyDataset``, and the code from which Keras takes first batches before it makes the
  pipeline. Other threads that this code starts are not recognized.

Two kinds of functions hold training steps, and are no pipelines. ``reduce`` is a loop. AutoGraph
makes ``for batch in dataset`` inside a tf.function a ``scan`` with a function of its own,
``scan_body``; any other function of ``scan`` is a pipeline's.

All this goes on after amp_tf was turned off, because what ran before stays converted.
"""

from __future__ import annotations

from typing import Any

from amp_tf.hooks import internals, notices, state, xla
from amp_tf.hooks.patches import Patches

# tf.data's graph optimizers give their functions these names.
_BY_OPTIMIZER = ("fused_map", "fused_predicate", "fused_filter", "map_fusion_funcs/", "inject/")
_TRACED = tuple(state.TRACED + name for name in state.OF_TRANSFORMATIONS)
#: how the names of a pipeline's functions begin
BEGINNINGS = (*state.OF_TRANSFORMATIONS, *_TRACED, *_BY_OPTIMIZER)
_LOOPS = ("Dataset_reduce_", "Dataset_scan_scan_body")
#: how the names of those begin that are loops
LOOPS = (*_LOOPS, *(state.TRACED + name for name in _LOOPS))
_PREFIX = "Dataset_in_"  # of functions of pipelines that have unusual names
# The code of AutoGraph's loops over datasets.
_OF_AUTOGRAPH = "tensorflow.python.data.ops.dataset_autograph"
_WHERE = "input pipeline"
_MISTAKEN = "a pipeline's function may be computed in 16 bit, or another one in float32"


class _Tokens(set[str]):
    """The tokens of the Python functions that pipelines call, directly or not.

    TensorFlow's graphs call Python functions by tokens.
    """


def install(patches: Patches) -> None:
    """Keeps what pipelines call in float32 from now on, whenever it was traced. Idempotent."""
    # These stay: what was converted stays so after amp_tf was turned off, and pipelines call it.
    staying = state.patches(f"{__name__}, staying")
    internals.TRACE_FOR_DATASET.patch(staying, _trace)
    if internals.MAKE_FUNCTION.patch(staying, _make_function):
        names = filter(is_of_pipeline, state.function_names())
        for function in state.find_functions(names):
            _note_calls(function)
    internals.CALL_FUNCTION.patch(staying, _call_function)
    internals.CALL_PYTHON.surround(staying, _call_python)
    # Keras calls the program's code by these on threads of its own, or ahead of the pipeline.
    internals.KERAS_BATCHES.surround(staying, _call_in_pipeline)


def is_of_pipeline(name: str) -> bool:
    """Tells whether a function is one of a pipeline, by its name."""
    return name.startswith(BEGINNINGS) and not name.startswith(LOOPS)


def _trace(
    init: Any, wrapper: Any, /, func: Any, transformation_name: str, *args: Any, **kwargs: Any
) -> None:
    """Traces a function for a transformation: as a pipeline's, or as the body of a loop.

    A loop inside of a pipeline's function is a part of the pipeline. The arguments have
    TensorFlow's names, because tf.data's service passes them by name.
    """
    outer = getattr(state.current().here, "is_traced_for_pipeline", None)
    is_by_autograph = getattr(func, "__module__", "") == _OF_AUTOGRAPH
    is_loop = is_by_autograph or transformation_name.endswith("reduce()")
    with state.within(is_traced_for_pipeline=bool(outer) or not is_loop):
        init(wrapper, func, transformation_name, *args, **kwargs)


def _make_function(
    from_func_graph: Any, /, name: Any, graph: Any, attrs: Any, *args: Any, **kwargs: Any
) -> Any:
    with notices.surviving("pipeline.name", _MISTAKEN, where=_WHERE):
        from tensorflow.python.eager.polymorphic_function import attributes

        name = _name(name, is_by_dataset=attributes.TF_DATA_FUNCTION in (attrs or {}))
    function = from_func_graph(name, graph, attrs, *args, **kwargs)
    text = function.name.decode()
    if is_of_pipeline(text):
        with notices.surviving(
            "pipeline.calls",
            f"functions that {text!r} calls may be computed in 16 bit",
            where=_WHERE,
        ):
            _note_calls(function.definition)
            xla.call_copies(function)
    return function


def _note_calls(definition: Any) -> None:
    """Notes the Python functions that a FunctionDef of a pipeline calls."""
    tokens = state.record(_Tokens)
    called = xla.called_by(definition, state.find_function)
    for function in (definition, *called.values()):
        for node in function.node_def:
            if "token" in node.attr:
                tokens.add(node.attr["token"].s.decode())


def _name(name: str | bytes, *, is_by_dataset: bool) -> str:
    """Returns a name for a new function that says whether a pipeline calls it.

    Args:
        name: the name that TensorFlow chose.
        is_by_dataset: whether tf.data traced the function, for a pipeline or for a loop.
    """
    text = name.decode() if isinstance(name, bytes) else name
    plain = text.removeprefix(state.TRACED)
    looks_so = is_of_pipeline(text)
    belongs = plain.startswith(xla.COPY)
    if is_by_dataset:
        belongs = looks_so  # of a SavedModel there is only the name
        is_traced_for_pipeline = getattr(state.current().here, "is_traced_for_pipeline", None)
        if is_traced_for_pipeline is not None:
            belongs = is_traced_for_pipeline
    if belongs == looks_so:
        return text
    begin = text.removesuffix(plain)
    if belongs:
        return f"{begin}{_PREFIX}{plain}"
    return f"{begin}_{plain}"


def _call_python(call: Any) -> Any:
    token = call.args[1]
    if token in state.record(_Tokens):
        return _call_in_pipeline(call)
    return call()


def _call_in_pipeline(call: Any) -> Any:
    with state.within(is_in_pipeline=True):
        return call()


def _call_function(call_flat: Any, function: Any, /, *args: Any) -> Any:
    called = function
    is_in_pipeline = getattr(state.current().here, "is_in_pipeline", False)
    if is_in_pipeline and function._bound_context.executing_eagerly():
        with notices.surviving(
            "pipeline.function",
            "a TensorFlow function that its Python code calls may be computed in 16 bit",
            where=_WHERE,
        ):
            called = xla.copy_as_written(function)
    return call_flat(called, *args)
