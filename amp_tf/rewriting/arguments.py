"""Checks the arguments of :func:`amp_tf.rewrite`, and takes the GraphDef of what it is given."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from amp_tf.config import check_config
from amp_tf.errors import ConfigError, GraphError
from amp_tf.oplists.hardware import Hardware
from amp_tf.values import check_names

_NO_HARDWARE = 'To convert for a GPU, or for any CPU, write amp_tf.AmpConfig(target="gpu") or "cpu"'
_NO_LIBRARY = "Of a GraphDef that is graph_def.library; leave it out where no functions are called"
_NO_SHAPES = "Leave it out: the nodes of as_graph_def(add_shapes=True) carry theirs"


def graph_def_of(graph: Any, preserve: Iterable[str]) -> tuple[Any, Iterable[str]]:
    """Returns the GraphDef, with shapes, of a ``tf.Graph`` or concrete function; else the graph.

    Returns the nodes to preserve, too: those that are given, and the inputs and outputs of a
    concrete function.
    """
    if hasattr(graph, "as_graph_def"):
        return graph.as_graph_def(add_shapes=True), preserve
    if all(hasattr(graph, name) for name in ("graph", "inputs", "outputs", "structured_outputs")):
        names = [preserve] if isinstance(preserve, str) else list(preserve)
        names += [tensor.op.name for tensor in (*graph.inputs, *graph.outputs)]
        return graph.graph.as_graph_def(add_shapes=True), names
    return graph, preserve


def check_arguments(
    graph: Any, config: Any, preserve: Iterable[str], hardware: Any, library: Any, shapes: Any
) -> frozenset[str]:
    """Returns the nodes to preserve.

    Raises:
        GraphError: it is not a graph.
        ConfigError: an argument is of another kind, or ``preserve`` holds other things than names.
    """
    if not hasattr(graph, "node_def") and not hasattr(graph, "library"):
        raise GraphError(
            "expected a GraphDef, FunctionDef, tf.Graph or concrete function, got "
            f"{type(graph).__name__}",
            where="rewrite(graph)",
            fix=(
                "A tf.function gives one with get_concrete_function(…); convert_saved_model "
                "converts models"
            ),
        )
    if config is not None:
        check_config(config, where="rewrite(config)")
    if hardware is not None and not isinstance(hardware, Hardware):
        raise _wrong_kind("hardware", hardware, "an amp_tf.Hardware", _NO_HARDWARE)
    if library is not None and not hasattr(library, "function"):
        raise _wrong_kind("library", library, "a FunctionDefLibrary", _NO_LIBRARY)
    if shapes is not None and not hasattr(shapes, "output_shapes"):
        raise _wrong_kind("shapes", shapes, "an object with output_shapes(node)", _NO_SHAPES)
    where = "rewrite(preserve=…)"
    names = check_names(preserve, where=where)
    for name in names:
        if ":" in name or name.startswith("^"):
            raise ConfigError(
                f"{name!r} is not a node name, so it would preserve nothing",
                where=where,
                fix="Name nodes: 'logits' has the output 'logits:0'. A tensor's node is "
                "tensor.op.name",
            )
    return frozenset(names)


def _wrong_kind(name: str, value: object, wanted: str, fix: str) -> ConfigError:
    """Returns the error for an argument of another kind."""
    return ConfigError(f"expected {wanted}, got {value!r}", where=f"rewrite({name}=…)", fix=fix)
