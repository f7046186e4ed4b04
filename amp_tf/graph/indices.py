"""What the numbers of a graph in memory mean, and its arrays of them."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Node: TypeAlias = int  #: a node, by its place in the graph
Unit: TypeAlias = int  #: a slot of a node, by its place among the slots of all nodes
Port: TypeAlias = int  #: an output of a node

Indices: TypeAlias = npt.NDArray[np.int32]  #: nodes, units, ports, or kinds of nodes, or how many of them
Mask: TypeAlias = npt.NDArray[np.bool_]  #: which of them
Flags: TypeAlias = npt.NDArray[np.integer[Any]]  #: a mask as bytes (uint8), which Python's own loops read faster
