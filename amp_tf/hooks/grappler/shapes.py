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

    def output_shapes(self, node: str) -> Sequence[Shape | None]:
        """The shapes of a node's output ports; empty where TensorFlow cannot tell."""
        if self._properties is None and not self._infer_failed:
            self._infer()
        return self._read(node.encode()) if self._properties is not None else ()

    def close(self) -> None:
        """Gives the inferred shapes back."""
        if self._properties is not None:
            _library().TF_DeleteGraphProperties(self._properties)
            self._properties = None
        self._infer_failed = True

    def _infer(self) -> None:
        library = _library()
        status = library.TF_NewStatus()
        try:
            properties = library.TF_NewGraphProperties(self._item)
            library.TF_InferStatically(properties, 0, 0, 0, 0, status)
            if library.TF_GetCode(status) == _TF_OK:
                self._properties = properties
            else:
                library.TF_DeleteGraphProperties(properties)
                self._infer_failed = True
        finally:
            library.TF_DeleteStatus(status)

    def _read(self, node: bytes) -> list[Shape | None]:
        from tensorflow.core.grappler.costs.op_performance_data_pb2 import OpInfo

        library = _library()
        status = library.TF_NewStatus()
        count = ctypes.c_int()
        buffers: Any = ()
        try:
            library.TF_GetOutputPropertiesListSize(self._properties, node, ctypes.byref(count), status)
            if library.TF_GetCode(status) != _TF_OK or not count.value:
                return []
            buffers = (ctypes.POINTER(_Buffer) * count.value)()
            for number in range(count.value):
                buffers[number] = ctypes.cast(library.TF_NewBuffer(), ctypes.POINTER(_Buffer))
            library.TF_GetOutputPropertiesList(self._properties, node, buffers, count, status)
            if library.TF_GetCode(status) != _TF_OK:
                return []
            texts = [ctypes.string_at(buffer.contents.data, buffer.contents.length) for buffer in buffers]
            return [read_shape(OpInfo.TensorProperties.FromString(text).shape) for text in texts]
        finally:
            for buffer in buffers:
                library.TF_DeleteBuffer(buffer)
            library.TF_DeleteStatus(status)


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
