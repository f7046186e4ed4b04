"""Gives names to numbers.

Some are TensorFlow's data types (``DataType`` of types.proto), others the indices of a graph in
memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

INVALID = 0
FLOAT = 1
INT32 = 3
INT64 = 9
BFLOAT16 = 14
HALF = 19
RESOURCE = 20
VARIANT = 21

QUANTIZED = frozenset({11, 12, 13, 15, 16})  # qint8, quint8, qint32, qint16, quint16
# int32, uint8, int16, int8, int64, uint16, uint32, uint64, int4, uint4
INTEGERS = frozenset({3, 4, 5, 6, 9, 17, 22, 23, 29, 30})

#: The types of computed numbers: floating point, complex, and variants, which hold lists of them.
CARRYING = frozenset({FLOAT, 2, 8, BFLOAT16, 18, HALF, VARIANT})

#: Bytes of an element, for the types that have a size.
SIZES = {
    1: 4,
    2: 8,
    3: 4,
    4: 1,
    5: 2,
    6: 1,
    8: 8,
    9: 8,
    10: 1,
    14: 2,
    17: 2,
    18: 16,
    19: 2,
    22: 4,
    23: 8,
}

LAST_BASE = 100  #: A reference type is its base type plus 100.


def type_name(data_type: int) -> str:
    """Returns the name that Python users know, such as ``float32``."""
    from tensorflow.python.framework import dtypes

    try:
        return str(dtypes.as_dtype(data_type).name)
    except TypeError:
        return f"DataType {data_type}" if data_type else "invalid"


Node: TypeAlias = int  #: a node, by its place in the graph
Unit: TypeAlias = int  #: a slot of a node, by its place among the slots of all nodes
Port: TypeAlias = int  #: an output of a node

#: Numbers of nodes, units, ports or kinds of nodes, or counts of them.
Indices: TypeAlias = npt.NDArray[np.int32]
# The masks are one type, because to mypy the result of ``a | b`` is an array, so that distinct
# types would need a cast at each operator.
Mask: TypeAlias = npt.NDArray[np.bool_]  #: a boolean for each node, unit or edge
NodeMask: TypeAlias = Mask  #: one for each node of a graph
UnitMask: TypeAlias = Mask  #: one for each unit of a graph
EdgeMask: TypeAlias = Mask  #: one for each edge of a value graph


def mask_of(numbers: Iterable[int], count: int) -> Mask:
    """Returns the mask of some numbers below a count."""
    found = np.zeros(count, np.bool_)
    if not isinstance(numbers, np.ndarray):
        numbers = list(numbers)
    found[numbers] = True
    return found


def indices(mask: Mask) -> list[int]:
    """Returns the numbers whose entry is set, in order."""
    return mask.nonzero()[0].tolist()  # type: ignore[no-any-return]
