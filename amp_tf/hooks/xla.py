"""Rewrites functions that XLA compiles when TensorFlow creates them.

``jit_compile=True`` functions never reach Grappler, so a graph optimizer cannot see them. All of
them pass through ``atomic_function.from_func_graph``, which is wrapped here: the new function's
definition is rewritten and registered again under the same name, so that every way to call it
(eagerly, from another function, from a v1 graph) runs the rewritten one. Functions that it calls
are cloned under new names; the function's list of children keeps the clones alive, so clones live
as long as their caller.

XLA inlines calls, so a control edge from a call does not order what the call is given: whatever
waits for the call must also wait for a read that was moved in front of it. TensorLists that
functions share hold 16 bit where that rounds nothing (:mod:`amp_tf.rewriting.sharing`). Under
``auto`` on a CPU XLA is given exactly the programs of float32, so it cannot be slower there.
TensorFlow has no way to register a definition with stack traces, so XLA's errors lose the source
line.

Whoever asks for the definition of a function (a frozen graph, a GraphDef, a SavedModel, a converter
for TFLite or ONNX) gets the one that the program wrote: only TensorFlow's runtime has the rewritten
one. Input pipelines and the Python code that they call run copies of the originals
(:mod:`amp_tf.hooks.input_pipelines`).
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from amp_tf.config import AmpConfig
from amp_tf.graph.templates import referenced
from amp_tf.hooks import notices
from amp_tf.hooks import state as process_state
from amp_tf.hooks.patches import Patches
from amp_tf.oplists.hardware import Hardware
from amp_tf.reporting import reports
from amp_tf.reporting.reports import RewriteReport
from amp_tf.rewriting import pipeline
from amp_tf.rewriting.pipeline import RewriteResult

_rewritten: weakref.WeakValueDictionary[bytes, Any] = (
    weakref.WeakValueDictionary()
)  # AtomicFunctions, by name


def install(patches: Patches) -> None:
    """Rewrites each function that XLA will compile from now on; what was rewritten stays so.

    Idempotent.
    """
    from tensorflow.python.eager import context
    from tensorflow.python.eager.polymorphic_function import atomic_function
    from tensorflow.python.framework import ops

    patches.put(atomic_function, "from_func_graph", _make_and_rewrite)
    # These stay: what was rewritten must be given in its original form even after amp_tf was turned
    # off.
    staying = process_state.patches(f"{__name__}, staying")
    staying.put(ops.Graph, "_as_graph_def", _describe_graph)
    staying.put(context.Context, "get_function_def", _describe_function)
    staying.put(context.Context, "add_function_def", _add_function)


def hardware() -> Hardware:
    """What XLA can do on the devices of this process."""
    return dataclasses.replace(process_state.hardware(), is_xla=True)


def _make_and_rewrite(
    from_func_graph: Any, /, name: Any, graph: Any, attrs: Any, *args: Any, **kwargs: Any
) -> Any:
    function = from_func_graph(name, graph, attrs, *args, **kwargs)
    _rewritten.pop(function.name, None)  # it was overwritten
    mark = (attrs or {}).get("_XlaMustCompile", False)
    if getattr(mark, "b", mark):
        try:
            _convert(function, process_state.settings())
        except Exception as error:  # the program goes on with the original function
            process_state.count_failure(error)
            where = f"function {function.name.decode()!r} for XLA"
            notices.warn_of_error(
                "xla.failed", "stays in float32", error, where=where, fix=notices.REPORT
            )
    return function


def _convert(function: Any, config: AmpConfig) -> None:
    """Rewrites a function that was just registered, and registers the clones of functions that it
    needs.
    """
    from tensorflow.core.framework.function_pb2 import FunctionDefLibrary

    context = function._bound_context
    original = context.get_function_def(function.name)
    known = context.list_function_names() - {
        original.signature.name
    }  # str, although they are looked up by bytes

    def find(name: str) -> Any:
        return context.get_function_def(name.encode()) if name in known else None

    # What becomes of the arguments depends on whether any called function computes products.
    library = FunctionDefLibrary(function=called_by(original, find).values())
    callees = called_by(original, lambda name: None if name.encode() in _rewritten else find(name))
    settings = notices.known_only(config)
    results = pipeline.rewrite_program(
        original, [*callees.values()], settings, hardware(), library, traced=function
    )
    if changed := pipeline.name_clones([*callees.values(), original], [*results[1:], results[0]]):
        _register(function, original, changed)
        notices.warn_if_slow(config)
    graphs = tuple(graph for result in results for graph in result.report.graphs)
    reports.record(RewriteReport(graphs), way="xla")


def called_by(definition: Any, find: Callable[[str], Any]) -> dict[str, Any]:
    """The FunctionDefs that a FunctionDef calls, directly or not, by name, each after those that it
    calls itself.

    ``find`` gives ``None`` for what is none. Python's stack is too short for a chain of a thousand
    calls.
    """
    found: dict[str, Any] = {}
    seen, path = {definition.signature.name}, [(definition, _calls(definition))]
    while path:
        function, calls = path[-1]
        called = next((name for name in calls if name not in seen), None)
        if called is None:
            found[function.signature.name] = path.pop()[0]
        elif (inner := find(called)) is not None:
            path.append((inner, _calls(inner)))
        seen.add(called)
    del found[definition.signature.name]
    return found


def _calls(definition: Any) -> Iterator[str]:
    return (name for node in definition.node_def for name in referenced(node))


def _register(function: Any, original: Any, changed: Mapping[str, Any]) -> None:
    """Puts its new definition, which is the last that changed, in a function's place, and registers
    the clones.
    """
    clones = _replace(function, original, changed)
    function._amp_tf_original = original.SerializeToString()
    function._amp_tf_rewritten = [*changed.values()][-1].SerializeToString()
    function._amp_tf_clones = frozenset(clones)
    _rewritten[function.name] = function


def _replace(function: Any, original: Any, changed: Mapping[str, Any]) -> dict[str, Any]:
    """Gives a function another definition, the last that changed; returns the clones that it calls,
    which it keeps.
    """
    context = function._bound_context
    definition = [*changed.values()][-1]
    clones = _register_clones(function, changed)
    context.remove_function(function.name)
    try:
        context.add_function_def(definition)
    except Exception:
        context.add_function_def(original)
        raise
    function._cached_definition = None
    function._children = [*function._children, *clones.values()]
    return clones


def _register_clones(function: Any, changed: Mapping[str, Any]) -> dict[str, Any]:
    """Registers all that changed but the last, as long as the returned objects live; they have the
    new names.
    """
    clones: dict[str, Any] = {}
    for name, clone in [*changed.items()][:-1]:
        clones[clone.signature.name] = _atomic_clone(function, name.encode(), clone, clones)
    return clones


def _atomic_clone(function: Any, original: bytes, clone: Any, made: dict[str, Any]) -> Any:
    """Registers a clone, as long as the returned object lives, which has the graph that the user
    wrote.
    """
    from tensorflow.python.eager.polymorphic_function import atomic_function, function_type_utils
    from tensorflow.python.framework import function_def_to_graph

    source = next(
        (child for child in function._children if getattr(child, "name", None) == original), None
    )
    if isinstance(source, atomic_function.AtomicFunction):
        function_type, graph, options = (
            source.function_type,
            source._cached_graph,
            source.call_options,
        )
    else:
        graph = function_def_to_graph.function_def_to_graph(clone)
        function_type = function_type_utils.derive_from_graph(graph)
        options = atomic_function.CallOptions(is_stateful=clone.signature.is_stateful)
    context = function._bound_context
    context.add_function_def(clone)
    return atomic_function.AtomicFunction(
        clone.signature.name, context, function_type, list(made.values()), options, graph
    )


def call_originals(function: Any) -> None:
    """Makes a function call the definitions that the program wrote, under other names."""
    if _calls_rewritten(function):
        changed = _as_written(function)
        _replace(function, function.definition, changed)


def original_of(function: Any) -> Any:
    """A function that computes what the program wrote: the same one if nothing in it was rewritten,
    else a copy.
    """
    if function.name not in _rewritten and not _calls_rewritten(function):
        return function
    if not hasattr(function, "_amp_tf_as_written"):
        from tensorflow.python.eager.polymorphic_function import atomic_function

        context = function._bound_context
        changed = _as_written(function)
        clones = _register_clones(function, changed)
        definition = [*changed.values()][-1]
        definition.signature.name += f"_amp_tf_as_written_{next(pipeline.clone_numbers)}"
        context.add_function_def(definition)
        children = [*function._children, *clones.values()]
        function._amp_tf_as_written = atomic_function.AtomicFunction(
            definition.signature.name,
            context,
            function.function_type,
            children,
            function.call_options,
            function.graph,
        )
    return function._amp_tf_as_written


def _calls_rewritten(function: Any) -> bool:
    return any(_key(child.name) in _rewritten for child in function._children)


def _as_written(function: Any) -> dict[str, Any]:
    """The original definitions of a function and of those that it calls, under new names, if they
    are needed.

    By the names that they had; the function itself comes last, and keeps its name.
    """
    context = function._bound_context
    known = context.list_function_names()
    root = context.get_function_def(function.name)
    callees = called_by(
        root, lambda name: context.get_function_def(name.encode()) if name in known else None
    )
    given = [*callees.values(), root]
    results = []
    for definition in given:
        is_rewritten = _key(definition.signature.name) in _rewritten
        results.append(RewriteResult(definition, RewriteReport(), is_rewritten))
    return pipeline.name_clones(given, results)


def _key(name: str | bytes) -> bytes:
    return name if isinstance(name, bytes) else name.encode()


def _describe_graph(describe: Any, graph: Any, /, *args: Any, **kwargs: Any) -> Any:
    definition, version = describe(graph, *args, **kwargs)
    what = "functions for XLA are written as they were rewritten, in 16 bit"
    fix = "Export in a process with AMP_TF_DISABLE=1, and please report this"
    with notices.surviving("exporting", what, where="tf.Graph.as_graph_def", fix=fix):
        restore(definition.library)
    return definition, version


def _describe_function(describe: Any, context: Any, /, name: str | bytes) -> Any:
    definition = describe(context, name)
    if function := _rewritten.get(_key(name)):
        definition.ParseFromString(function._amp_tf_original)
    return definition


def _add_function(add: Any, context: Any, /, definition: Any) -> None:
    """Who adds what was given by the two functions above means the function that is there, or was."""
    function = _rewritten.get(_key(definition.signature.name))
    if function is not None and definition == type(definition).FromString(
        function._amp_tf_original
    ):
        if context.has_function(function.name):
            return
        definition = type(definition).FromString(function._amp_tf_rewritten)
    add(context, definition)


def restore(library: Any) -> None:
    """Puts the original functions back into a FunctionDefLibrary, in place, and takes the clones
    out.
    """
    if not _rewritten:
        return
    present = {definition.signature.name: definition for definition in library.function}
    clones: set[str] = set()
    for name, function in list(_rewritten.items()):
        if definition := present.get(name.decode()):
            definition.ParseFromString(function._amp_tf_original)
            clones |= function._amp_tf_clones
    if clones.isdisjoint(present):
        return
    kept = type(library)(
        function=(definition for name, definition in present.items() if name not in clones)
    )
    del library.function[:]
    library.MergeFrom(kept)
