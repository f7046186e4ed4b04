"""Reads the attributes of nodes: signatures, the type of each slot, the values of constants."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from amp_tf.errors import GraphError
from amp_tf.graph import datatypes
from amp_tf.graph.edits import attribute
from amp_tf.graph.templates import Signature, Templates

ARG_OP = "_Arg"
CONST_OP = "Const"
#: The attribute with the name of an argument that callers give. An argument that a trace captured
#: has none or a number; if it is a variable, it has :data:`CAPTURED`.
USER_NAME = "_user_specified_name"
CAPTURED = b"resource"
#: Marks a product that a rewrite left to its float32 kernel, and holds the 16-bit type to which its
#: inputs and its result are rounded. TensorFlow runs its optimizers twice, and the second rewrite
#: must not begin again.
ROUNDED_ATTR = "_amp_tf_rounded"
BROKEN = "The graph is broken; TensorFlow would refuse it too"


def place_of(function: str, node: str) -> str:
    """Returns the place of a node, for a message; the function is empty for a graph's node."""
    if function:
        return f"function {function!r}, node {node!r}"
    return f"node {node!r}"


def read_signatures(
    protos: Iterable[Any], templates: Templates, function: str = ""
) -> list[Signature]:
    """Returns the signature of each NodeDef of a graph, or of a function.

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


def read_types(
    protos: Sequence[Any], signatures: Sequence[Signature], function: str = ""
) -> list[int]:
    """Returns the ``DataType`` number of each slot of each NodeDef, in order.

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
                wrong = "missing"
                if found:
                    wrong = f"{datatypes.type_name(found)}, expected a type that is not a reference"
                raise GraphError(
                    f"type attribute {slot} is {wrong}",
                    where=place_of(function, proto.name),
                    fix=BROKEN,
                )
            types.append(found)
    return types


def read_marks(protos: Iterable[Any]) -> list[list[str]]:
    """Returns the names of TensorFlow's marks on each NodeDef: attributes that begin with ``_``."""
    marks = []
    for proto in protos:
        marks.append([name for name in proto.attr if name[:1] == "_"])
    return marks


def value_of(node: Any, name: str) -> Any:
    """Returns the ``AttrValue`` of a node's attribute, or an empty one.

    Indexing the proto would add a missing attribute to it.
    """
    return node.attr[name] if name in node.attr else attribute()


_BYTES = {datatypes.INT32: 4, datatypes.INT64: 8}


def floats(constant: Any) -> npt.NDArray[np.float32]:
    """Returns the float32 values of a Const node, a repeated one once; none of another node."""
    tensor = value_of(constant, "value").tensor
    if tensor.dtype != datatypes.FLOAT:
        return np.zeros(0, np.float32)
    content = tensor.tensor_content
    if content:
        return np.frombuffer(content, "<f4", count=len(content) // 4)
    return np.asarray(tensor.float_val, np.float32)


def whole_number(constant: Any) -> int | None:
    """Returns the value of a Const node that is one whole number, ``None`` for any other."""
    tensor = value_of(constant, "value").tensor
    if tensor.dtype not in _BYTES:
        return None
    if tensor.tensor_shape.unknown_rank or any(dim.size != 1 for dim in tensor.tensor_shape.dim):
        return None
    content = tensor.tensor_content
    if content and len(content) != _BYTES[tensor.dtype]:
        return None
    if content:
        return int.from_bytes(content, "little", signed=True)
    values = tensor.int_val or tensor.int64_val
    return int(values[0]) if values else 0  # TensorFlow leaves zeros out
