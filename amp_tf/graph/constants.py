"""The values of constants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from amp_tf.graph import datatypes
from amp_tf.graph.view import GraphView

_BYTES = {datatypes.INT32: 4, datatypes.INT64: 8}


def floats(constant: Any) -> npt.NDArray[np.float32]:
    """The float32 values of a Const node, a repeated one once; none of any other node.

    Args:
        constant: its NodeDef.
    """
    value = constant.attr.get("value")  # a look-up by index would add what a broken graph lacks
    if value is None or value.tensor.dtype != datatypes.FLOAT:
        return np.zeros(0, np.float32)
    content = value.tensor.tensor_content
    if content:
        return np.frombuffer(content, "<f4", count=len(content) // 4)
    return np.asarray(value.tensor.float_val, np.float32)


def of_constants(
    view: GraphView, figure: Callable[[npt.NDArray[np.float32]], Any], dtype: npt.DTypeLike
) -> npt.NDArray[Any]:
    """What is to be known of each Const node: an array with one entry a node, zero for all that are none.

    Args:
        view: a graph.
        figure: is asked with the float32 values, once for each kind.
        dtype: of the array.
    """
    found = np.zeros(view.node_count, dtype)
    constants = np.asarray(view.nodes_with(("Const",)), np.int32)
    _, first, kinds = np.unique(view.kinds[constants], return_index=True, return_inverse=True)
    of_kind = [figure(floats(view.protos[node])) for node in constants[first]]
    found[constants] = np.asarray(of_kind, dtype)[kinds]
    return found


def whole_number(constant: Any) -> int | None:
    """The value of a Const node that is one whole number, ``None`` for any other.

    Args:
        constant: its NodeDef.
    """
    value = constant.attr.get("value")  # a look-up by index would add what a broken graph lacks
    if value is None or value.tensor.dtype not in _BYTES:
        return None
    tensor = value.tensor
    if tensor.tensor_shape.unknown_rank or any(dim.size != 1 for dim in tensor.tensor_shape.dim):
        return None
    content = tensor.tensor_content
    if content:
        return int.from_bytes(content, "little", signed=True) if len(content) == _BYTES[tensor.dtype] else None
    values = tensor.int_val or tensor.int64_val
    return int(values[0]) if values else 0  # TensorFlow leaves zeros out
