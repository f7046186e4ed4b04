"""The static shapes that TensorFlow infers for the graph that is being optimized.

Source: ``TF_InferStatically`` and ``TF_GetOutputPropertiesList`` of tensorflow/c/experimental/grappler/grappler.h,
called in the library that TensorFlow has loaded already.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

from amp_tf.graph.sizes import Shape, read_shape
from amp_tf.hooks.grappler.item import tensorflow_library

_TF_OK = 0


class _Buffer(ctypes.Structure):
    """``TF_Buffer`` of tensorflow/c/tf_buffer.h."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("length", ctypes.c_size_t),
        ("data_deallocator", ctypes.c_void_p),
    )


class ItemShapes:
    """Asks TensorFlow for shapes, and has it infer them when it is asked first.

    Args:
        item: the address of the ``TF_GrapplerItem`` that the optimizer was called with; valid during the call only.
    """

    def __init__(self, item: int) -> None:
        self._item = item
        self._properties: int | None = None
        self._infer_failed = False
        self._status = 0
        self._known: dict[str, Sequence[Shape | None]] = {}

    def output_shapes(self, node: str) -> Sequence[Shape | None]:
        """The shapes of a node's output ports; empty where TensorFlow cannot tell."""
        if self._properties is None:
            if self._infer_failed:
                return ()
            self._infer()
        shapes = self._known.get(node)
        if shapes is None:
            shapes = self._known[node] = self._read(node.encode()) if self._properties is not None else ()
        return shapes

    def close(self) -> None:
        """Gives the inferred shapes back."""
        if self._properties is not None:
            _library().TF_DeleteGraphProperties(self._properties)
            self._properties = None
        if self._status:
            _library().TF_DeleteStatus(self._status)
            self._status = 0
        self._infer_failed = True

    def _infer(self) -> None:
        library = _library()
        self._status = library.TF_NewStatus()
        properties = library.TF_NewGraphProperties(self._item)
        library.TF_InferStatically(properties, 0, 0, 0, 0, self._status)
        if library.TF_GetCode(self._status) == _TF_OK:
            self._properties = properties
        else:
            library.TF_DeleteGraphProperties(properties)
            self._infer_failed = True

    def _read(self, node: bytes) -> Sequence[Shape | None]:
        library, status, count = _library(), self._status, ctypes.c_int()
        library.TF_GetOutputPropertiesListSize(self._properties, node, ctypes.byref(count), status)
        if library.TF_GetCode(status) != _TF_OK or not count.value:
            return ()
        buffers = (ctypes.c_void_p * count.value)(*(library.TF_NewBuffer() for _ in range(count.value)))
        try:
            library.TF_GetOutputPropertiesList(self._properties, node, buffers, count, status)
            if library.TF_GetCode(status) != _TF_OK:
                return ()
            return [_parse(_Buffer.from_address(buffer)) for buffer in buffers if buffer is not None]
        finally:
            for buffer in buffers:
                library.TF_DeleteBuffer(buffer)


def _parse(buffer: _Buffer) -> Shape | None:
    properties = _properties_type().FromString(ctypes.string_at(buffer.data, buffer.length))
    return read_shape(properties.shape)


@functools.cache
def _properties_type() -> Any:
    """The class of ``OpInfo.TensorProperties``."""
    from tensorflow.core.grappler.costs.op_performance_data_pb2 import OpInfo

    return OpInfo.TensorProperties


@functools.cache
def _library() -> ctypes.CDLL:
    """The library with the types of the functions that are called here."""
    library = tensorflow_library()
    pointer, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
    library.TF_NewBuffer.restype = pointer
    library.TF_DeleteBuffer.argtypes = [pointer]
    library.TF_DeleteBuffer.restype = None
    library.TF_NewGraphProperties.argtypes = [pointer]
    library.TF_NewGraphProperties.restype = pointer
    library.TF_DeleteGraphProperties.argtypes = [pointer]
    library.TF_DeleteGraphProperties.restype = None
    library.TF_InferStatically.argtypes = [pointer, *[ctypes.c_ubyte] * 4, pointer]
    library.TF_InferStatically.restype = None
    library.TF_GetOutputPropertiesListSize.argtypes = [pointer, text, ctypes.POINTER(number), pointer]
    library.TF_GetOutputPropertiesListSize.restype = None
    library.TF_GetOutputPropertiesList.argtypes = [pointer, text, pointer, number, pointer]
    library.TF_GetOutputPropertiesList.restype = None
    return library
