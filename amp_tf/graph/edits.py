"""Edits: the changes of a graph, as data. Nothing is changed until the editor applies them.

Edits compose: :meth:`Edits.then` joins the edits of a graph and those of the edited graph. New
nodes are numbered from the first graph's ``node_count`` on, so a number means the same node in all
of them.

    a = MatMul(x, w)        c = Add(a, b)
    Rewire(c, 0, 3, 0) with new = (NewNode.cast("d", (a, 0), …),)  makes  d = Cast(a), c = Add(d, b)

Single edits are named tuples, because there may be thousands and Python makes a frozen dataclass
several times more slowly.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy.typing as npt

from amp_tf.graph.datatypes import Indices, Node, Port

Tensor = tuple[int, int]  #: a node and one of its output ports
Reader = tuple[int, int]  #: a node and one of its data inputs


class SlotType(NamedTuple):
    """Gives one slot of a node another type; the place in a list is -1 for a single type."""

    node: Node
    attribute: str
    place: int
    data_type: int


class Retype(NamedTuple):
    """Gives slots of nodes another type, all the same one; nodes and slots are parallel arrays."""

    nodes: Indices
    slots: npt.NDArray[Any]
    data_type: int

    def each(self) -> Iterator[SlotType]:
        """Yields the changes one by one."""
        for node, slot in zip(self.nodes.tolist(), self.slots, strict=True):
            yield SlotType(node, slot.attr, slot.index, self.data_type)


class Reop(NamedTuple):
    """Gives a node another op, other attributes, and perhaps other data inputs.

    An attribute that is ``None`` is removed; attributes that are not named stay. All inputs stay if
    ``inputs`` is ``None``.
    """

    node: Node
    op: str
    attributes: Mapping[str, Any]
    inputs: tuple[Tensor, ...] | None = None


class Rewire(NamedTuple):
    """Gives a data input of a node another tensor."""

    node: Node
    position: int
    src_node: Node
    src_port: Port


class Wait(NamedTuple):
    """Makes a node wait for one more node."""

    node: Node
    after: int


class NewNode(NamedTuple):
    """Adds a node behind all others, which waits for the nodes of ``after``.

    ``attributes`` is a NodeDef that has the node's attributes and nothing else.
    """

    name: str
    op: str
    device: str
    inputs: tuple[Tensor, ...]
    after: tuple[int, ...]
    attributes: Any

    @classmethod
    def cast(cls, name: str, source: Tensor, device: str, *, of: int, to: int) -> NewNode:
        """Makes a cast of a tensor from one ``DataType`` to another."""
        return cls(name, "Cast", device, (source,), (), _cast_attributes(of, to))


@dataclasses.dataclass(frozen=True)
class Edits:
    """All edits of one graph or function.

    They are made in the order of the attributes, so a Rewire changes the inputs that a Reop gives.

    Attributes:
        reops, retypes, rewires, waits: the changes; the later of two edits of one thing counts.
        new: the new nodes, in the order of their numbers.
    """

    reops: tuple[Reop, ...] = ()
    retypes: tuple[Retype, ...] = ()
    rewires: tuple[Rewire, ...] = ()
    waits: tuple[Wait, ...] = ()
    new: tuple[NewNode, ...] = ()

    def __bool__(self) -> bool:
        return any(getattr(self, field.name) for field in dataclasses.fields(self))

    def then(self, later: Edits) -> Edits:
        """Returns these edits joined with later ones, of the graph that these make."""
        if not self:
            return later
        with_new_inputs = {reop.node for reop in later.reops if reop.inputs is not None}
        rewires = tuple(rewire for rewire in self.rewires if rewire.node not in with_new_inputs)
        return Edits(
            reops=self.reops + later.reops,
            retypes=self.retypes + later.retypes,
            rewires=rewires + later.rewires,
            waits=self.waits + later.waits,
            new=self.new + later.new,
        )

    def remade(self, node_count: int) -> list[int]:
        """Returns, in order, the nodes that are new or get another op, attributes or types.

        Args:
            node_count: the number of old nodes; new ones are behind them.
        """
        remade = set(range(node_count, node_count + len(self.new)))
        for reop in self.reops:
            remade.add(reop.node)
        for retype in self.retypes:
            remade.update(retype.nodes.tolist())
        return sorted(remade)


NO_EDITS = Edits()


def attribute(**value: Any) -> Any:
    """Makes an ``AttrValue`` of one value, such as ``type=…`` or ``s=…``, or of none."""
    from tensorflow.core.framework import attr_value_pb2

    return attr_value_pb2.AttrValue(**value)


def having(**attributes: Any) -> Any:
    """Makes a NodeDef that has these attributes, and nothing else."""
    from tensorflow.core.framework import node_def_pb2

    return node_def_pb2.NodeDef(attr=attributes)


@functools.lru_cache(maxsize=64)
def _cast_attributes(of: int, to: int) -> Any:
    """Makes the attributes that all casts between two types share; there may be thousands."""
    return having(SrcT=attribute(type=of), DstT=attribute(type=to), Truncate=attribute(b=False))
