"""The edit plan: what will change in a graph, as data. Nothing is changed until the editor applies it.

The edits are named tuples, because there are thousands and Python makes a frozen dataclass several times more slowly.
"""

from __future__ import annotations

import dataclasses
import itertools
from array import array
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple


class Retype(NamedTuple):
    """A type attribute gets another type."""

    node: int
    slot: int
    data_type: int


class Retypes(Sequence[Retype]):
    """Units of a graph that all get one type: its edits are made when they are looked at.

    Args:
        nodes, slots: of each unit.
        data_type: the ``DataType`` number.
    """

    def __init__(self, nodes: Sequence[int] = (), slots: Sequence[int] = (), data_type: int = 0) -> None:
        self.nodes, self.slots, self.data_type = nodes, slots, data_type

    def where(self, is_wanted: Any) -> Retypes:
        """Some of them.

        Args:
            is_wanted: for each, as an array.
        """
        nodes, slots = itertools.compress(self.nodes, is_wanted), itertools.compress(self.slots, is_wanted)
        return Retypes(array("i", nodes), array("i", slots), self.data_type)

    def __len__(self) -> int:
        return len(self.nodes)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return list(self)[key]
        return Retype(self.nodes[key], self.slots[key], self.data_type)

    def __iter__(self) -> Iterator[Retype]:
        return map(Retype, self.nodes, self.slots, itertools.repeat(self.data_type))


class Rename(NamedTuple):
    """A node's op becomes its successor, which has one type attribute more."""

    node: int
    op: str
    added_attr: str
    added_type: int


class NewCast(NamedTuple):
    """A Cast node after an output port, shared by all readers that need the other type.

    Attributes:
        name: the new node's name.
        src_node, src_port: the tensor that is cast.
        src_type, dst_type: ``DataType`` numbers.
        readers: (node, number of its data input) of each reader that gets the cast's result.
    """

    name: str
    src_node: int
    src_port: int
    src_type: int
    dst_type: int
    readers: tuple[tuple[int, int], ...]


@dataclasses.dataclass(frozen=True)
class EditPlan:
    """All edits of one graph or function."""

    renames: tuple[Rename, ...] = ()
    retypes: Retypes = Retypes()  # noqa: RUF009 - never changed
    casts: tuple[NewCast, ...] = ()

    def edited_nodes(self) -> list[int]:
        """The numbers of the nodes that change, in order."""
        changed = {rename.node for rename in self.renames} | {retype.node for retype in self.retypes}
        changed.update(node for cast in self.casts for node, _ in cast.readers)
        return sorted(changed)

    def __bool__(self) -> bool:
        return bool(self.renames or self.retypes or self.casts)
