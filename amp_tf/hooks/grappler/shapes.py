"""The static shapes that TensorFlow infers for the graph that is being optimized.

Source: ``TF_InferStatically`` and ``TF_GetOutputPropertiesList`` of tensorflow/c/experimental/grappler/grappler.h,
called in the library that TensorFlow has loaded already.

The shapes are read into buffers of our own, which are reused for each tensor: TensorFlow's interface would need a call
to create and to destroy each buffer.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from amp_tf.graph.sizes import Shape, read_shape
from amp_tf.hooks.grappler.item import TF_OK, tensorflow_library

_USUAL_PORTS = 8  #: more output ports than almost every node has

_Deallocator = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t)


class _Buffer(ctypes.Structure):
    """``TF_Buffer`` of tensorflow/c/tf_buffer.h."""

    data: Any  # an address; None where the buffer is empty
    length: int
    data_deallocator: Callable[[Any, int], None]
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("length", ctypes.c_size_t),
        ("data_deallocator", _Deallocator),
    )

    def take(self) -> bytes:
        """Takes the contents out of the buffer, which can then be filled again."""
        content = ctypes.string_at(self.data, self.length)
        self.data_deallocator(self.data, self.length)
        self.data = None
        return content


class _Buffers:
    """Empty buffers, as many as TensorFlow needs to fill."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._each = list((_Buffer * count)())
        self.addresses = (ctypes.POINTER(_Buffer) * count)(*map(ctypes.pointer, self._each))

    def take(self) -> list[bytes]:
        """Takes the contents out of the buffers that were filled."""
        return [buffer.take() for buffer in itertools.takewhile(lambda buffer: buffer.data, self._each)]


class ItemShapes:
    """Asks TensorFlow for shapes; they are inferred at the first request.

    Args:
        item: the address of the ``TF_GrapplerItem`` that the optimizer was called with; valid during the call only.
    """

    def __init__(self, item: int) -> None:
        self._item = item
        self._properties: int | None = None
        self._infer_failed = False
        self._status = 0
        self._known: dict[str, Sequence[Shape | None]] = {}
        self._parsed: dict[bytes, Shape | None] = {}  # most tensors of a graph have one of a few shapes
        self._buffers = _Buffers(_USUAL_PORTS)

    def output_shapes(self, node: str) -> Sequence[Shape | None]:
        """The shapes of a node's output ports; empty where TensorFlow does not know them."""
        if self._properties is None:
            if self._infer_failed:
                return ()
            self._infer()
        shapes = self._known.get(node)
        if shapes is None:
            shapes = self._known[node] = self._read(node.encode()) if self._properties is not None else ()
        return shapes

    def close(self) -> None:
        """Frees the inferred shapes."""
        if self._properties is not None:
            tensorflow_library().TF_DeleteGraphProperties(self._properties)
            self._properties = None
        if self._status:
            tensorflow_library().TF_DeleteStatus(self._status)
            self._status = 0
        self._infer_failed = True

    def _infer(self) -> None:
        library = tensorflow_library()
        self._status = library.TF_NewStatus()
        properties = library.TF_NewGraphProperties(self._item)
        library.TF_InferStatically(properties, 0, 0, 0, 0, self._status)
        if library.TF_GetCode(self._status) == TF_OK:
            self._properties = properties
        else:
            library.TF_DeleteGraphProperties(properties)
            self._infer_failed = True

    def _read(self, node: bytes) -> Sequence[Shape | None]:
        found = self._fill(node, self._buffers)
        if len(found) == _USUAL_PORTS:
            count = ctypes.c_int()
            ask = tensorflow_library().TF_GetOutputPropertiesListSize
            ask(self._properties, node, ctypes.byref(count), self._status)
            if count.value > _USUAL_PORTS:
                found = self._fill(node, _Buffers(count.value))
        return [self._parse(port) for port in found]

    def _fill(self, node: bytes, buffers: _Buffers) -> list[bytes]:
        """The serialized properties of a node's output ports, of at most as many as there are buffers."""
        library = tensorflow_library()
        library.TF_GetOutputPropertiesList(self._properties, node, buffers.addresses, buffers.count, self._status)
        found = buffers.take()
        return found if library.TF_GetCode(self._status) == TF_OK else []

    def _parse(self, properties: bytes) -> Shape | None:
        if properties not in self._parsed:
            self._parsed[properties] = read_shape(_properties_type().FromString(properties).shape)
        return self._parsed[properties]


@functools.cache
def _properties_type() -> Any:
    """The protobuf class ``OpInfo.TensorProperties``."""
    from tensorflow.core.grappler.costs.op_performance_data_pb2 import OpInfo

    return OpInfo.TensorProperties
