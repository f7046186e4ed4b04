"""Reads what the attributes of nodes say: signatures, the type of each slot, the values of
constants.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from amp_tf.errors import GraphError
from amp_tf.graph import datatypes
from amp_tf.graph.edits import attribute
from amp_tf.graph.templates import Signature, Templates

ARG_OP = "_Arg"
CONST_OP = "Const"
#: Holds the name of an argument that callers give. What a trace captured has none there, or a
#: number, or, if it is a variable, :data:`CAPTURED`.
USER_NAME = "_user_specified_name"
CAPTURED = b"resource"
#: Set on products that a rewrite left to their float32 kernels: the 16-bit type to which what they
#: read and give is rounded. TensorFlow runs its optimizers twice, and the second rewrite must not
#: begin again.
ROUNDED_ATTR = "_amp_tf_rounded"
BROKEN = "The graph is broken; TensorFlow would refuse it too"


def place_of(function: str, node: str) -> str:
    """The place of a node, for a message; of a graph's, the function is empty."""
    return f"{f'function {function!r}, ' if function else ''}node {node!r}"


def read_signatures(
    protos: Iterable[Any], templates: Templates, function: str = ""
) -> list[Signature]:
    """The signature of each NodeDef of a graph, or of a function.

    Raises:
        GraphError: an op is unknown, or an attribute that gives a number of ports is missing or
            negative.
    """
    found = []
    for proto in protos:
        try:
            found.append(templates.find(proto.op).signature(proto))
        except GraphError as error:
            raise GraphError(
                error.what, where=place_of(function, proto.name), fix=error.fix
            ) from None
    return found


def nodes_with(protos: Sequence[Any], attr: str) -> Iterator[tuple[int, Any]]:
    """The nodes that have an attribute: their numbers and protos.

    ``None`` among the protos is skipped.
    """
    for number, proto in enumerate(protos):
        if proto is not None and attr in proto.attr:
            yield number, proto


def read_types(
    protos: Sequence[Any], signatures: Sequence[Signature], function: str = ""
) -> list[int]:
    """The ``DataType`` number of each slot of each NodeDef, in order.

    Raises:
        GraphError: a type is missing and has no default, or is a reference.
    """
    types = []
    for proto, signature in zip(protos, signatures, strict=True):
        attributes = proto.attr
        for slot in signature.slots:
            if not slot.attr or slot.attr not in attributes:
                found = slot.fixed  # or the default of its op
            elif slot.index < 0:
                found = attributes[slot.attr].type
            else:
                found = attributes[slot.attr].list.type[slot.index]
            if not found or found > datatypes.LAST_BASE:
                wrong = (
                    f"{datatypes.type_name(found)}, expected a type that is not a reference"
                    if found
                    else "missing"
                )
                raise GraphError(
                    f"type attribute {slot} is {wrong}",
                    where=place_of(function, proto.name),
                    fix=BROKEN,
                )
            types.append(found)
    return types


def value_of(node: Any, name: str) -> Any:
    """The ``AttrValue`` of a node's attribute; an empty one where the node lacks it, which indexing
    would add.
    """
    return node.attr[name] if name in node.attr else attribute()


_BYTES = {datatypes.INT32: 4, datatypes.INT64: 8}


def floats(constant: Any) -> npt.NDArray[np.float32]:
    """The float32 values of a Const node, a repeated one once; none of any other node."""
    tensor = value_of(constant, "value").tensor
    if tensor.dtype != datatypes.FLOAT:
        return np.zeros(0, np.float32)
    content = tensor.tensor_content
    if content:
        return np.frombuffer(content, "<f4", count=len(content) // 4)
    return np.asarray(tensor.float_val, np.float32)


def whole_number(constant: Any) -> int | None:
    """The value of a Const node that is one whole number, ``None`` for any other."""
    tensor = value_of(constant, "value").tensor
    if tensor.dtype not in _BYTES:
        return None
    if tensor.tensor_shape.unknown_rank or any(dim.size != 1 for dim in tensor.tensor_shape.dim):
        return None
    content = tensor.tensor_content
    if content:
        return (
            int.from_bytes(content, "little", signed=True)
            if len(content) == _BYTES[tensor.dtype]
            else None
        )
    values = tensor.int_val or tensor.int64_val
    return int(values[0]) if values else 0  # TensorFlow leaves zeros out
