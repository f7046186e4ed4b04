"""Rewrites functions that XLA compiles when TensorFlow creates them.

``jit_compile=True`` functions never reach Grappler, so a graph optimizer cannot see them. All of
them pass through ``atomic_function.from_func_graph``, which is wrapped here: the new function's
definition is rewritten and registered again under the same name, so that every way to call it
(eagerly, from another function, from a v1 graph) runs the rewritten one. Functions that it calls
are cloned under new names; the function's list of children keeps the clones alive, so clones live
as long as their caller.

A need in one of these functions reaches the values that another one computes, as if all were one
(:mod:`amp_tf.painting.programs`). XLA inlines calls, so a control edge from a call does not order
what the call is given: whatever waits for the call must also wait for a read that was moved in
front of it. TensorLists that functions share hold 16 bit where that rounds nothing
(:mod:`amp_tf.rewriting.sharing`). Under ``auto`` on a CPU XLA is given exactly the programs of
float32, so it cannot be slower there. TensorFlow has no way to register a definition with stack
traces, so XLA's errors lose the source line.

Whoever asks for the definition of a function (a frozen graph, a GraphDef, a SavedModel, a converter
for TFLite or ONNX) gets the one that the program wrote: only TensorFlow's runtime has the rewritten
one. Input pipelines and the Python code that they call run copies of the originals
(:mod:`amp_tf.hooks.input_pipelines`). So does all that calls them once amp_tf is off: a function of
a SavedModel is created when it is loaded, and never traced anew.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from amp_tf.config import AmpConfig
from amp_tf.graph.templates import referenced
from amp_tf.hooks import internals, notices
from amp_tf.hooks import state as process_state
from amp_tf.hooks.patches import Patches
from amp_tf.hooks.state import count_failure, find_function, record, settings
from amp_tf.oplists.hardware import Hardware
from amp_tf.reporting import reports
from amp_tf.reporting.reports import RewriteReport
from amp_tf.rewriting import pipeline
from amp_tf.rewriting.pipeline import RewriteResult

#: FunctionDefs, or their AtomicFunctions, by name
Definitions = dict[str, Any]


class _Rewritten(weakref.WeakValueDictionary[str, Any]):
    """The AtomicFunctions that were rewritten, by name, as long as they live."""


# Begins the names of copies, as of functions of input pipelines: the plugin leaves both alone.
COPY = "Dataset_as_written_"


def install(patches: Patches) -> None:
    """Rewrites each function that XLA will compile from now on. Idempotent."""
    # These stay: what was rewritten must be given in its original form even after amp_tf was turned
    # off, and then called so.
    staying = process_state.patches(f"{__name__}, staying")
    internals.DESCRIBE_GRAPH.surround(staying, _describe_graph)
    internals.DESCRIBE_FUNCTION.surround(staying, _describe_function)
    internals.ADD_FUNCTION.patch(staying, _add_function)
    internals.CALL_FUNCTION.patch(staying, call_function)
    # Last: without those, nothing is rewritten.
    internals.MAKE_FUNCTION.patch(patches, _make_and_rewrite)


def hardware() -> Hardware:
    """Describes what XLA can do on the devices of this process."""
    return dataclasses.replace(process_state.hardware(), is_xla=True)


def _make_and_rewrite(
    from_func_graph: Any, /, name: Any, graph: Any, attrs: Any, *args: Any, **kwargs: Any
) -> Any:
    function = from_func_graph(name, graph, attrs, *args, **kwargs)
    record(_Rewritten).pop(function.name.decode(), None)  # it was overwritten
    mark = (attrs or {}).get("_XlaMustCompile", False)
    if getattr(mark, "b", mark):
        try:
            _convert(function, settings())
        except Exception as error:  # the program goes on with the original function
            count_failure(error)
            notices.warn_of_error(
                "xla.failed",
                "stays in float32",
                error,
                where=f"function {function.name.decode()!r} for XLA",
                fix=notices.REPORT,
            )
    return function


def _convert(function: Any, config: AmpConfig) -> None:
    """Rewrites a function that was just registered, and registers the clones that it calls."""
    from tensorflow.core.framework.function_pb2 import FunctionDefLibrary

    original = find_function(function.name)

    def find_as_written(name: str) -> Any:
        if _is_rewritten(name):
            return None
        return find_function(name)

    # The types of the arguments depend on whether any called function computes products.
    library = FunctionDefLibrary(function=called_by(original, find_function).values())
    callees = called_by(original, find_as_written)
    known = notices.known_only(config)
    given = [*callees.values()]
    results = pipeline.rewrite_program(original, given, known, hardware(), library, traced=function)
    result, *of_callees = results
    changed = pipeline.name_clones([*given, original], [*of_callees, result])
    if changed:
        _register(function, original, changed)
        notices.warn_if_slow(config)
    graphs = tuple(graph for result in results for graph in result.report.graphs)
    reports.record(RewriteReport(graphs), way="xla")


def called_by(definition: Any, find: Callable[[str], Any]) -> Definitions:
    """Finds the FunctionDefs that a FunctionDef calls, directly or not, by name, in postorder.

    The search is depth first. It does not recurse, because Python's stack is too short for a chain
    of a thousand calls.

    Args:
        find: returns the FunctionDef of a name, or ``None``.
    """
    found: Definitions = {}
    visited = {definition.signature.name}
    waiting: list[tuple[str, Any]] = [(name, None) for name in _calls(definition)]
    while waiting:
        name, function = waiting.pop()
        if function is not None:  # all that it calls was found
            found[name] = function
        elif name not in visited:
            visited.add(name)
            function = find(name)
            if function is not None:
                waiting.append((name, function))
                waiting += [(called, None) for called in _calls(function)]
    return found


def _calls(definition: Any) -> Iterator[str]:
    for node in definition.node_def:
        yield from referenced(node)


def _register(function: Any, original: Any, changed: Definitions) -> None:
    """Puts the last definition that changed in a function's place, and registers the clones."""
    clones = _replace(function, original, changed)
    function._amp_tf_original = original.SerializeToString()
    function._amp_tf_rewritten = [*changed.values()][-1].SerializeToString()
    function._amp_tf_clones = frozenset(clones)
    record(_Rewritten)[function.name.decode()] = function


def _replace(function: Any, original: Any, changed: Definitions) -> Definitions:
    """Gives a function another definition, the last that changed.

    Returns the clones that it calls, which it keeps alive.
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


def _register_clones(function: Any, changed: Definitions) -> Definitions:
    """Registers all changed definitions except the last, as long as the returned objects live.

    Returns the objects by their new names.
    """
    clones: Definitions = {}
    for name, clone in [*changed.items()][:-1]:
        clones[clone.signature.name] = _atomic_clone(function, name.encode(), clone, clones)
    return clones


def _atomic_clone(function: Any, original: bytes, clone: Any, made: Definitions) -> Any:
    """Registers a clone, as long as the returned object lives.

    The object has the graph that the user wrote.
    """
    from tensorflow.python.eager.polymorphic_function import atomic_function, function_type_utils
    from tensorflow.python.framework import function_def_to_graph

    sources = {child.name: child for child in function._children if hasattr(child, "name")}
    source = sources.get(original)
    if isinstance(source, atomic_function.AtomicFunction):
        function_type = source.function_type
        graph = source._cached_graph
        options = source.call_options
    else:
        graph = function_def_to_graph.function_def_to_graph(clone)
        function_type = function_type_utils.derive_from_graph(graph)
        options = atomic_function.CallOptions(is_stateful=clone.signature.is_stateful)
    context = function._bound_context
    context.add_function_def(clone)
    return atomic_function.AtomicFunction(
        clone.signature.name, context, function_type, list(made.values()), options, graph
    )


def call_copies(function: Any) -> None:
    """Makes a function of an input pipeline call copies of what TensorFlow does not inline into it.

    The copies compute what the program wrote, and graph optimizers leave them alone.
    """
    if any(_is_rewritten_alone(child.definition) for child in function._children):
        _replace(function, function.definition, _define_copies(function))


def call_function(call_flat: Any, function: Any, /, *args: Any) -> Any:
    """Calls a function; the plugin finds its arguments on the stack."""
    called = function
    is_off = not process_state.current().switches.graph_rewrite
    # A graph that calls it may be saved, and must name the function itself.
    is_eager = function._bound_context.executing_eagerly()
    if is_off and is_eager and _reaches_rewritten(function):
        with notices.surviving(
            "xla.off",
            "a function that was created while amp_tf was on may be computed in 16 bit",
            where=f"function {function.name.decode()!r}",
        ):
            called = copy_as_written(function)
    return call_flat(called, *args)


def _reaches_rewritten(function: Any) -> bool:
    """Tells whether an AtomicFunction was rewritten, or one that it calls."""
    reached = (function, *function._children)
    return any(hasattr(each, "_amp_tf_original") for each in reached)


def copy_as_written(function: Any) -> Any:
    """Returns a copy of an AtomicFunction that computes what the program wrote; it is made once.

    Graph optimizers leave the copy alone.
    """
    if not hasattr(function, "_amp_tf_as_written"):
        from tensorflow.python.eager.polymorphic_function import atomic_function

        changed = _define_copies(function)
        clones = _register_clones(function, changed)
        function_name, definition = [*changed.items()][-1]
        definition.signature.name = f"{COPY}{function_name}_{next(pipeline.clone_numbers)}"
        function._bound_context.add_function_def(definition)
        function._amp_tf_as_written = atomic_function.AtomicFunction(
            definition.signature.name,
            function._bound_context,
            function.function_type,
            [*function._children, *clones.values()],
            function.call_options,
            function.graph,
        )
    return function._amp_tf_as_written


def _is_rewritten_alone(definition: Any) -> bool:
    """Tells whether a function may be rewritten other than as a part of the graph that calls it."""
    is_apart = "_noinline" in definition.attr and definition.attr["_noinline"].b
    return is_apart or _is_rewritten(definition.signature.name)


def _is_rewritten(name: str) -> bool:
    return name in record(_Rewritten)


def _define_copies(function: Any) -> Definitions:
    """Defines copies of the functions that a function calls and that may be rewritten alone.

    Returns the new definitions by the names that they had: the copies, then functions that call
    them, and last, under its own name, the given one.
    """
    root = find_function(function.name)
    given = [*called_by(root, find_function).values(), root]
    results = []
    for definition in given:
        is_copied = definition is root or _is_rewritten_alone(definition)
        results.append(RewriteResult(definition, RewriteReport(), is_copied))
    return pipeline.name_clones(given, results, prefix=COPY)


def _describe_graph(call: Any) -> Any:
    definition, version = call()
    with notices.surviving(
        "exporting",
        "functions for XLA are written as they were rewritten, in 16 bit",
        where="tf.Graph.as_graph_def",
        fix="Export in a process with AMP_TF_DISABLE=1, and please report this",
    ):
        restore(definition.library)
    return definition, version


def _describe_function(call: Any) -> Any:
    definition = call()
    function = record(_Rewritten).get(definition.signature.name)
    if function is not None:
        definition.ParseFromString(function._amp_tf_original)
    return definition


def _add_function(add: Any, context: Any, /, fdef: Any) -> None:
    """Adds a FunctionDef.

    The two functions above give out definitions as the program wrote them. In the place of such a
    one, the rewritten definition is added.
    """
    function = record(_Rewritten).get(fdef.signature.name)
    if function is not None:
        parse = type(fdef).FromString
        if fdef == parse(function._amp_tf_original):
            if context.has_function(function.name):
                return
            fdef = parse(function._amp_tf_rewritten)
    add(context, fdef)


def restore(library: Any) -> None:
    """Puts the original functions back into a FunctionDefLibrary, in place, without the clones."""
    rewritten = record(_Rewritten)
    if not rewritten:
        return
    present = {definition.signature.name: definition for definition in library.function}
    clones: set[str] = set()
    for name, function in list(rewritten.items()):
        definition = present.get(name)
        if definition is not None:
            definition.ParseFromString(function._amp_tf_original)
            clones |= function._amp_tf_clones
    for number, definition in reversed([*enumerate(library.function)]):
        if definition.signature.name in clones:
            del library.function[number]
