"""Random ops that draw the same numbers in each run: forms run one after the other, and must not meet other masks.

Ops that have a twin without state become that twin. Of the others a session keeps the state, so it is made anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from amp_tf.oplists.table import PYTHON, STATELESS_TWINS

_SEEDS = ("seed", "seed2")


def set_seeds(graph: Any) -> None:
    """Gives random ops that choose their own seed one that all forms share.

    Args:
        graph: a GraphDef, which is changed.
    """
    for number, node in enumerate(graph.node, 1):
        if _is_seeded(node) and not any(node.attr[name].i for name in _SEEDS):
            node.attr[_SEEDS[0]].i = number


def make_stateless(graph: Any) -> None:
    """Puts the twins in place.

    Args:
        graph: a GraphDef, which is changed.
    """
    for node in [node for node in graph.node if node.op in STATELESS_TWINS]:
        node.op, place = STATELESS_TWINS[node.op]
        seed = graph.node.add(name=f"{node.name}/seed", op="Const")
        seed.attr["dtype"].type = node.attr["Tseed"].type = _INT32
        tensor = seed.attr["value"].tensor
        tensor.dtype = _INT32
        tensor.tensor_shape.dim.add(size=2)
        tensor.int_val.extend(node.attr.pop(name).i % 2**31 for name in _SEEDS)
        if "Tout" in node.attr:
            node.attr["dtype"].CopyFrom(node.attr.pop("Tout"))
        node.input.insert(place, seed.name)


def keeps_state(graph: Any) -> bool:
    """Whether random ops are left, in the graph or its functions, whose state a session keeps."""
    return any(_is_seeded(node) and not node.op.startswith("Stateless") for node in every_node(graph))


def by_python(graph: Any) -> list[str]:
    """Names of the nodes that call Python, which may do something else each time."""
    return [node.name for node in every_node(graph) if node.op in PYTHON]


def every_node(graph: Any) -> Iterator[Any]:
    """The nodes of a GraphDef and of its functions."""
    yield from graph.node
    for function in graph.library.function:
        yield from function.node_def


def _is_seeded(node: Any) -> bool:
    return all(name in node.attr for name in _SEEDS)


_INT32 = 3  # DT_INT32
