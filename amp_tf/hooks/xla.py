"""Rewrites functions that XLA compiles when TensorFlow creates them.

``jit_compile=True`` functions never reach Grappler, so a graph optimizer cannot see them. All of them pass through
``atomic_function.from_func_graph``, which is wrapped here: the new function's definition is rewritten and registered
again under the same name, so that every way to call it (eagerly, from another function, from a v1 graph) runs the
rewritten one. Functions that it calls are cloned under new names; the function's list of children keeps the clones
alive, so clones live as long as their caller.

XLA inlines calls, so a control edge from a call does not order what the call is given: whatever waits for the call must
also wait for a read that was moved in front of it. TensorLists that functions share hold 16 bit where that rounds
nothing (:mod:`amp_tf.rewriting.sharing`). Under ``auto`` on a CPU XLA is given exactly the programs of float32, so it
cannot be slower there. TensorFlow has no way to register a definition with stack traces, so XLA's errors lose the
source line.

A SavedModel that is exported while amp_tf is on gets the original float32 functions, once its meta graph is built.
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

_config = AmpConfig()
_patches, _saving = Patches(), Patches()
_rewritten: weakref.WeakValueDictionary[bytes, Any] = weakref.WeakValueDictionary()  # AtomicFunctions, by name


def install(config: AmpConfig) -> None:
    """Rewrites each function that XLA will compile from now on. A second call only changes the configuration."""
    from tensorflow.python.eager.polymorphic_function import atomic_function
    from tensorflow.python.saved_model import save

    global _config
    _config = config
    _patches.put(atomic_function, "from_func_graph", _make_and_rewrite)
    # This one stays: what was rewritten must be saved in its original form even after amp_tf was turned off.
    _saving.put(save, "_build_meta_graph", _build_and_restore)


uninstall = _patches.restore  #: stops rewriting functions; those that were rewritten stay so


def hardware() -> Hardware:
    """What XLA can do on the devices of this process."""
    return dataclasses.replace(process_state.hardware(), is_xla=True)


def _make_and_rewrite(from_func_graph: Any, /, name: Any, graph: Any, attrs: Any, *args: Any, **kwargs: Any) -> Any:
    function = from_func_graph(name, graph, attrs, *args, **kwargs)
    mark = (attrs or {}).get("_XlaMustCompile", False)
    if getattr(mark, "b", mark):
        try:
            _convert(function, _config)
        except Exception as error:  # the program goes on with the original function
            process_state.count_failure(error)
            where = f"function {function.name.decode()!r} for XLA"
            fix = "Please report this; AMP_TF_DISABLE=1 turns amp_tf off"
            notices.warn_of_error("xla.failed", "stays in float32", error, where=where, fix=fix)
    return function


def _convert(function: Any, config: AmpConfig) -> None:
    """Rewrites a function that was just registered, and registers the clones of functions that it needs."""
    from tensorflow.core.framework.function_pb2 import FunctionDefLibrary

    context = function._bound_context
    original = context.get_function_def(function.name)
    known = context.list_function_names() - {original.signature.name}  # str, although they are looked up by bytes

    def find(name: str) -> Any:
        return context.get_function_def(name.encode()) if name in known else None

    # What becomes of the arguments depends on whether any called function computes products.
    library = FunctionDefLibrary(function=called_by(original, find).values())
    callees = called_by(original, lambda name: None if name.encode() in _rewritten else find(name))
    settings = notices.known_only(config)
    results = pipeline.rewrite_program(original, [*callees.values()], settings, hardware(), library, traced=function)
    if changed := pipeline.name_clones([*callees.values(), original], [*results[1:], results[0]]):
        _register(function, original, changed)
        notices.warn_if_slow(config)
    graphs = tuple(graph for result in results for graph in result.report.graphs)
    reports.record(RewriteReport(graphs), way="xla")


def called_by(definition: Any, find: Callable[[str], Any]) -> dict[str, Any]:
    """The FunctionDefs that a FunctionDef calls, directly or not, by name, each after those that it calls itself.

    ``find`` gives ``None`` for what is none. Python's stack is too short for a chain of a thousand calls.
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
    """Puts its new definition, which is the last that changed, in a function's place, and registers the clones."""
    context = function._bound_context
    *copies, (_, definition) = changed.items()
    clones: dict[str, Any] = {}
    for name, clone in copies:
        clones[clone.signature.name] = _atomic_clone(function, name.encode(), clone, clones)
    context.remove_function(function.name)
    try:
        context.add_function_def(definition)
    except Exception:
        context.add_function_def(original)
        raise
    function._cached_definition = None
    function._children = [*function._children, *clones.values()]
    function._amp_tf_original = original.SerializeToString()
    function._amp_tf_clones = frozenset(clones)
    _rewritten[function.name] = function


def _atomic_clone(function: Any, original: bytes, clone: Any, made: dict[str, Any]) -> Any:
    """Registers a clone, as long as the returned object lives, which has the graph that the user wrote."""
    from tensorflow.python.eager.polymorphic_function import atomic_function, function_type_utils
    from tensorflow.python.framework import function_def_to_graph

    source = next((child for child in function._children if getattr(child, "name", None) == original), None)
    if isinstance(source, atomic_function.AtomicFunction):
        function_type, graph, options = source.function_type, source._cached_graph, source.call_options
    else:
        graph = function_def_to_graph.function_def_to_graph(clone)
        function_type = function_type_utils.derive_from_graph(graph)
        options = atomic_function.CallOptions(is_stateful=clone.signature.is_stateful)
    context = function._bound_context
    context.add_function_def(clone)
    return atomic_function.AtomicFunction(
        clone.signature.name, context, function_type, list(made.values()), options, graph
    )


def _build_and_restore(build: Any, /, *args: Any, **kwargs: Any) -> Any:
    built = build(*args, **kwargs)
    what = "functions for XLA are saved as they were rewritten, in 16 bit"
    fix = "Save in a process with AMP_TF_DISABLE=1, and please report this"
    with notices.surviving("saving", what, where="tf.saved_model.save", fix=fix):
        restore(built[0].graph_def.library)
    return built


def restore(library: Any) -> None:
    """Puts the original functions back into a FunctionDefLibrary, in place, and takes the clones out."""
    present = {definition.signature.name: definition for definition in library.function}
    clones: set[str] = set()
    for name, function in list(_rewritten.items()):
        if definition := present.get(name.decode()):
            definition.ParseFromString(function._amp_tf_original)
            clones |= function._amp_tf_clones
    if clones.isdisjoint(present):
        return
    kept = type(library)(function=(definition for name, definition in present.items() if name not in clones))
    del library.function[:]
    library.MergeFrom(kept)
