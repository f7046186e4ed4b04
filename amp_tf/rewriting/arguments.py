"""The arguments of a rewrite: graphs of a running program become GraphDefs, and what is of another kind is refused."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from amp_tf.config import check_config
from amp_tf.errors import ConfigError, GraphError
from amp_tf.oplists.hardware import Hardware

_NO_HARDWARE = 'To convert for a GPU, or for any CPU, write amp_tf.AmpConfig(target="gpu") or "cpu"'
_NO_LIBRARY = "Of a GraphDef that is graph_def.library; leave it out where no functions are called"
_NO_SHAPES = "Leave it out: the nodes of as_graph_def(add_shapes=True) carry theirs"


def graph_def_of(graph: Any, preserve: Iterable[str]) -> tuple[Any, Iterable[str]]:
    """The GraphDef of a ``tf.Graph`` or a concrete function, with its shapes, and the nodes to preserve.

    Args:
        graph: one of these, or anything else, which is given back.
        preserve: names of nodes; those of a concrete function's inputs and outputs come on top.
    """
    if hasattr(graph, "as_graph_def"):
        return graph.as_graph_def(add_shapes=True), preserve
    if all(hasattr(graph, name) for name in ("graph", "inputs", "outputs", "structured_outputs")):
        ends = [tensor.op.name for tensor in (*graph.inputs, *graph.outputs)]
        given = [preserve] if isinstance(preserve, str) else preserve
        return graph.graph.as_graph_def(add_shapes=True), [*given, *ends]
    return graph, preserve


def check_arguments(
    graph: Any, config: Any, preserve: Iterable[str], hardware: Any, library: Any, shapes: Any
) -> frozenset[str]:
    """Returns the nodes to preserve.

    Raises:
        GraphError: it is not a graph.
        ConfigError: an argument is of another kind, or what is to be preserved are no names of nodes.
    """
    if not hasattr(graph, "node_def") and not hasattr(graph, "library"):
        raise GraphError(
            f"expected a GraphDef, FunctionDef, tf.Graph or concrete function, got {type(graph).__name__}",
            where="rewrite(graph)",
            fix="A tf.function gives one with get_concrete_function(…); convert_saved_model converts models",
        )
    if config is not None:
        check_config(config, where="rewrite(config)", fix='Write for instance amp_tf.AmpConfig(precision="bfloat16")')
    others = (
        ("hardware", hardware, isinstance(hardware, Hardware), "an amp_tf.Hardware", _NO_HARDWARE),
        ("library", library, hasattr(library, "function"), "a FunctionDefLibrary", _NO_LIBRARY),
        ("shapes", shapes, hasattr(shapes, "output_shapes"), "something that tells shapes", _NO_SHAPES),
    )
    for name, value, is_one, wanted, fix in others:
        if value is not None and not is_one:
            raise ConfigError(f"expected {wanted}, got {value!r}", where=f"rewrite({name}=…)", fix=fix)
    if not isinstance(preserve, Iterable):
        raise ConfigError(
            f"{preserve!r} is not a list of node names", where="rewrite(preserve=…)", fix="Write preserve=['A', 'B']"
        )
    if isinstance(preserve, str):
        raise ConfigError(
            f"{preserve!r} is one string, not several node names",
            where="rewrite(preserve=…)",
            fix=f"Write preserve=[{preserve!r}]",
        )
    names = list(preserve)
    for name in names:
        if not isinstance(name, str) or ":" in name or name.startswith("^"):
            raise ConfigError(
                f"{name!r} is not a node name, so it would preserve nothing",
                where="rewrite(preserve=…)",
                fix="Name nodes: 'logits' has the output 'logits:0'. A tensor's node is tensor.op.name",
            )
    return frozenset(names)


def serialize(graph: Any) -> bytes:
    """The bytes of a GraphDef.

    Raises:
        GraphError: they are too many.
    """
    from google.protobuf.message import EncodeError

    try:
        return graph.SerializeToString()  # type: ignore[no-any-return]
    except EncodeError as error:
        raise GraphError(
            f"the graph cannot be serialized ({error})",
            where="rewrite(graph)",
            fix="A GraphDef holds at most 2 GiB; keep large constants in variables",
        ) from error
