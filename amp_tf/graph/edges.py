"""Edges as arrays of integers: parallel ones, and rows of neighbours in compressed form."""

from __future__ import annotations

import dataclasses
import itertools
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from amp_tf.graph.datatypes import Indices, Unit


@dataclasses.dataclass(frozen=True)
class Edges:
    """All data edges, as parallel arrays of 32-bit integers.

    They are in the order of the nodes that they go to, and of these nodes' inputs.

    Attributes:
        src_node, src_port: where the tensor comes from.
        dst_node, dst_position: where it goes: the node and the number of its data input.
        src_unit, dst_unit: the units that the edge connects.
    """

    src_node: Indices
    src_port: Indices
    dst_node: Indices
    dst_position: Indices
    src_unit: Indices
    dst_unit: Indices

    def __len__(self) -> int:
        return len(self.src_node)

    def at(self, numbers: npt.NDArray[Any]) -> Edges:
        """Returns some of the edges, by their numbers or a mask."""
        if numbers.dtype == np.bool_:
            numbers = np.flatnonzero(numbers)  # once for all columns
        return Edges(*(column[numbers] for column in vars(self).values()))

    def rows(self, *columns: str) -> Iterator[Any]:
        """Yields some columns, row by row, as tuples of Python integers.

        Python works with these faster than with numpy's.
        """
        return zip(*(getattr(self, column).tolist() for column in columns), strict=True)


NO_EDGES = Edges(*[np.zeros(0, np.int32)] * 6)


class Adjacency:
    """The neighbours of each unit, in both directions, as flat arrays.

    Attributes:
        inward, outward: the units that each unit reads, and those that read it.
    """

    def __init__(self, sources: Indices, readers: Indices, count: int) -> None:
        self.inward = compress(readers, sources, count)
        self.outward = compress(sources, readers, count)

    def fanins(self, unit: Unit) -> list[Unit]:
        starts, units = self.inward
        return units[starts[unit] : starts[unit + 1]].tolist()

    def fanouts(self, unit: Unit) -> list[Unit]:
        starts, units = self.outward
        return units[starts[unit] : starts[unit + 1]].tolist()


#: Rows in compressed form: where each row starts, with the number of values at the end; the values.
Rows: TypeAlias = "tuple[array[int], array[int]]"


def compress(keys: Indices, values: Indices, count: int) -> Rows:
    """Sorts values into rows by their keys (compressed sparse rows).

    Args:
        keys: the row of each value, below ``count``.
        values: the values, which keep their order within a row.
        count: the number of rows.
    """
    small_keys = keys.astype(np.min_scalar_type(count))  # numpy sorts two bytes faster
    order = np.argsort(small_keys, kind="stable")
    starts = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(np.bincount(keys, minlength=count), out=starts[1:])
    return compact(starts), compact(values[order])


def compact(values: npt.NDArray[Any] | Iterable[int]) -> array[int]:
    """Returns integers in four bytes each; a list takes several times that."""
    if isinstance(values, np.ndarray):
        return array("i", values.astype(np.int32).tobytes())
    return array("i", values)


class Table:
    """Rows of different lengths, for many look-ups at once."""

    def __init__(self, rows: Sequence[Sequence[int]]) -> None:
        self.counts = np.array([len(row) for row in rows], np.int32)
        self._values = np.array(list(itertools.chain.from_iterable(rows)), np.int32)
        self._starts = np.cumsum(self.counts, dtype=np.int32) - self.counts

    def at(self, rows: Indices, places: Indices) -> Indices:
        """Returns the values at some places of some rows, as parallel arrays."""
        found: Indices = self._values[self._starts[rows] + places]
        return found
