"""Makes random ops draw the same numbers in each run, so that all versions of a step have the same masks.

Ops that have a stateless counterpart are replaced by it. A session keeps the state of the others, so it is made again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from amp_tf.oplists.table import PYTHON, STATELESS_TWINS

_SEEDS = ("seed", "seed2")


def set_seeds(graph: Any) -> None:
    """Sets the seeds of random ops that would choose their own, the same for all versions of a step.

    Args:
        graph: a GraphDef, which is changed.
    """
    for number, node in enumerate(graph.node, 1):
        if _is_seeded(node) and not any(node.attr[name].i for name in _SEEDS):
            node.attr[_SEEDS[0]].i = number


def make_stateless(graph: Any) -> None:
    """Replaces random ops by their stateless counterparts.

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


def keeping_state(graph: Any) -> list[str]:
    """The nodes of the graph and its functions that draw random numbers and whose state a session keeps, by name."""
    return [node.name for node in every_node(graph) if _is_seeded(node) and not node.op.startswith("Stateless")]


def by_python(graph: Any) -> list[str]:
    """The nodes that call Python, which may return something else each time, by name."""
    return [node.name for node in every_node(graph) if node.op in PYTHON]


def every_node(graph: Any) -> Iterator[Any]:
    """The nodes of a GraphDef and of its functions."""
    yield from graph.node
    for function in graph.library.function:
        yield from function.node_def


def _is_seeded(node: Any) -> bool:
    return all(name in node.attr for name in _SEEDS)


_INT32 = 3  # DT_INT32
