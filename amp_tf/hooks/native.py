"""Calls TensorFlow's C API and the shim by ctypes.

They give the nodes to preserve and the static shapes of a graph, and call back for each graph.

A session's feeds and fetches are not marked in the GraphDef. TensorFlow's C API lists them, and the
shapes that it infers (grappler.h); it is called in the library that TensorFlow has loaded already.
Shapes are read into buffers of our own, which are used again: TensorFlow's interface would need a
call to create and to destroy each.

The shim (shim.c) is a library of a few kilobytes that uses no Python and no TensorFlow, so one file
serves every version of both.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import functools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from amp_tf.errors import GraphError

if TYPE_CHECKING:
    from amp_tf.graph.sizes import Shape

TF_OK = 0
_POINTER = ctypes.c_void_p
_TEXT = ctypes.c_char_p
_INT = ctypes.c_int
_SIZE = ctypes.c_size_t
_BOOL = ctypes.c_ubyte
# From tf_status.h and tensorflow/c/experimental/grappler/grappler.h: result, then arguments.
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "TF_NewStatus": (_POINTER,),
    "TF_DeleteStatus": (None, _POINTER),
    "TF_GetCode": (_INT, _POINTER),
    "TF_GetNodesToPreserveListSize": (None, *[_POINTER] * 4),
    "TF_GetNodesToPreserveList": (None, *[_POINTER] * 3, _INT, _POINTER, _SIZE, _POINTER),
    "TF_NewGraphProperties": (_POINTER, _POINTER),
    "TF_DeleteGraphProperties": (None, _POINTER),
    "TF_InferStatically": (None, _POINTER, *[_BOOL] * 4, _POINTER),
    "TF_GetOutputPropertiesListSize": (None, _POINTER, _TEXT, _POINTER, _POINTER),
    "TF_GetOutputPropertiesList": (None, _POINTER, _TEXT, _POINTER, _INT, _POINTER),
}


@functools.cache
def tensorflow_library() -> ctypes.CDLL:
    """TensorFlow's C API in this process.

    Raises an OSError if it is not there or not loaded, and an AttributeError if it lacks a function
    that is called here.
    """
    folder = os.path.dirname(str(sys.modules["tensorflow"].__file__))
    path = os.path.join(folder, "libtensorflow_cc.so.2")
    # RTLD_NOLOAD: a second copy of TensorFlow in the process would be worse than none.
    try:
        library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:  # which does not say what is wrong, if the file is there
        raise OSError(f"TensorFlow has not loaded its C API from {path}") from None
    for name, (result, *arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library


def nodes_to_preserve(item: int) -> frozenset[str]:
    """The names of feeds, fetches, init and keep nodes of the graph that is being optimized.

    ``item`` is the address of the ``TF_GrapplerItem``, valid during the call only. Raises a
    GraphError where TensorFlow does not answer: the graph must then stay as it is, for a fetch
    could change its type.
    """
    library = tensorflow_library()
    status = library.TF_NewStatus()

    def check() -> None:
        code = library.TF_GetCode(status)
        if code != TF_OK:
            raise GraphError(
                f"TensorFlow does not list the nodes to preserve (status code {code})",
                where="Grappler item",
                fix="Please report this with your TensorFlow version",
            )

    try:
        count = ctypes.c_int()
        size = ctypes.c_size_t()
        library.TF_GetNodesToPreserveListSize(item, ctypes.byref(count), ctypes.byref(size), status)
        check()
        starts = (_POINTER * count.value)()
        lengths = (_SIZE * count.value)()
        storage = ctypes.create_string_buffer(max(size.value, 1))  # into which the starts point
        library.TF_GetNodesToPreserveList(item, starts, lengths, count, storage, size, status)
        check()
        places = zip(starts, lengths, strict=True)
        names = [ctypes.string_at(start, length) for start, length in places if start]
        return frozenset(map(bytes.decode, names))
    finally:
        library.TF_DeleteStatus(status)


class _Buffer(ctypes.Structure):
    """``TF_Buffer`` of tensorflow/c/tf_buffer.h."""

    _fields_ = (
        ("data", _POINTER),
        ("length", _SIZE),
        ("data_deallocator", ctypes.CFUNCTYPE(None, _POINTER, _SIZE)),
    )


class ItemShapes:
    """Asks TensorFlow for the shapes of a ``TF_GrapplerItem``.

    They are inferred at the first request.
    """

    def __init__(self, item: int) -> None:
        self._library = tensorflow_library()
        self._item: int | None = item  # until it is asked for shapes
        self._properties: int | None = None  # what was inferred
        self._status: int = self._library.TF_NewStatus()
        self._known: dict[str, Sequence[Shape | None]] = {}
        # Most tensors of a graph have one of a few shapes.
        self._parsed: dict[bytes, Shape | None] = {}
        self._buffers: dict[int, Any] = {}  # arrays of pointers to them, by their number

    def output_shapes(self, node: str) -> Sequence[Shape | None]:
        """The shapes of a node's output ports; empty where TensorFlow does not know them."""
        if self._item is not None:
            self._properties = self._library.TF_NewGraphProperties(self._item)
            self._item = None
            self._library.TF_InferStatically(self._properties, 0, 0, 0, 0, self._status)
            if self._library.TF_GetCode(self._status) != TF_OK:
                self.close()
        if self._properties is None:
            return ()
        if node not in self._known:
            self._known[node] = [self._parse(port) for port in self._read(node.encode())]
        return self._known[node]

    def close(self) -> None:
        """Frees the inferred shapes. Idempotent."""
        if self._properties is not None:
            self._library.TF_DeleteGraphProperties(self._properties)
        if self._status:
            self._library.TF_DeleteStatus(self._status)
        self._item = None
        self._properties = None
        self._status = 0
        self._known.clear()

    def _read(self, node: bytes) -> list[bytes]:
        count = ctypes.c_int()
        self._library.TF_GetOutputPropertiesListSize(
            self._properties, node, ctypes.byref(count), self._status
        )
        if not count.value:
            return []
        if count.value not in self._buffers:
            each = (_Buffer * count.value)()
            pointers = map(ctypes.pointer, each)
            self._buffers[count.value] = (ctypes.POINTER(_Buffer) * count.value)(*pointers)
        buffers = self._buffers[count.value]
        self._library.TF_GetOutputPropertiesList(
            self._properties, node, buffers, count.value, self._status
        )
        found = []
        for pointer in buffers:
            buffer = pointer.contents
            if buffer.data:
                found.append(ctypes.string_at(buffer.data, buffer.length))
                buffer.data_deallocator(buffer.data, buffer.length)
                buffer.data = None
        if self._library.TF_GetCode(self._status) != TF_OK:
            return []
        return found

    def _parse(self, properties: bytes) -> Shape | None:
        if properties not in self._parsed:
            from tensorflow.core.grappler.costs.op_performance_data_pb2 import OpInfo

            from amp_tf.graph.sizes import read_shape

            parsed = OpInfo.TensorProperties.FromString(properties)
            self._parsed[properties] = read_shape(parsed.shape)
        return self._parsed[properties]


FOLDER = Path(__file__).resolve().parent
DEVICE_TYPES = ("CPU", "GPU")

GraphCallback = Callable[[int, int, int, int, int], None]
"""Called with the address and length of a serialized GraphDef, the TF_GrapplerItem, the TF_Buffer
for the result, and the ``threading.get_native_id()`` of the thread that waits for it.
"""

_CALLBACK = ctypes.CFUNCTYPE(None, _POINTER, _SIZE, _POINTER, _POINTER, _SIZE)
_NO_CALLBACK = _CALLBACK()  # a null pointer

#: How long a graph waits for Python's lock while the process computes nothing. A slow disk or
#: network takes less.
PATIENCE_MS = 60_000


class Skip(enum.Enum):
    """Says why a visit leaves a graph as it is.

    The members are in the order of shim.c; each value completes "skipped, because".
    """

    PIPELINE = "it belongs to an input pipeline (tf.data)"
    NAMELESS = (
        "this TensorFlow does not name what it optimizes: use TensorFlow 2.16 to 2.21, or a newer "
        "amp-tf"
    )
    CONVERTER = "TFLite's converter held Python's lock meanwhile"
    LOCKED = (
        f"Python's lock was held for {PATIENCE_MS // 1000} s in which the process computed "
        "nothing, as where its holder waits for the graph"
    )


class _Gil(ctypes.Structure):
    """How the shim takes the interpreter lock: addresses of CPython's own functions."""

    _fields_ = [(name, _POINTER) for name in ("check", "ensure", "release")]


class Shim:
    """The library that is registered for one device type; an OSError where it does not load."""

    def __init__(self, device_type: str) -> None:
        self.path = FOLDER / f"amp_tf_{device_type.lower()}.so"
        self._library = ctypes.CDLL(str(self.path))
        self._library.amp_tf_emit.argtypes = [_POINTER, _TEXT, _SIZE]
        self._library.amp_tf_set_callback.argtypes = [_CALLBACK, _INT]
        api = ctypes.pythonapi
        functions = (api.PyGILState_Check, api.PyGILState_Ensure, api.PyGILState_Release)
        addresses = [ctypes.cast(function, _POINTER) for function in functions]
        self._library.amp_tf_set_gil.argtypes = [_Gil, _INT]
        self._library.amp_tf_set_gil(_Gil(*addresses), PATIENCE_MS)
        self._library.amp_tf_skipped.argtypes = [_INT, ctypes.POINTER(_TEXT)]
        self._left_out: list[Any] = []  # what the library points to
        self._callback: GraphCallback | None = None
        # Kept for ever: a thread of TensorFlow's may be about to call it.
        self._native = _CALLBACK(self._on_graph)

    @property
    def is_registered(self) -> bool:
        """Tells whether TensorFlow has this library's optimizer.

        An earlier import of amp_tf may have registered it.
        """
        return bool(self._library.amp_tf_registered())

    def skipped(self, reason: Skip) -> tuple[int, str]:
        """How many visits left a graph as it was for a reason, and the name of the first one."""
        name = _TEXT()
        count = self._library.amp_tf_skipped([*Skip].index(reason), ctypes.byref(name))
        return int(count), (name.value or b"").decode(errors="replace")

    def leave_out(self, beginnings: Sequence[str], exceptions: Sequence[str]) -> None:
        """Leaves out, from the first graph on, the graphs of functions whose names begin so.

        Functions whose names begin as one of the exceptions are not left out.
        """
        for names in (beginnings, exceptions):
            texts = [name.encode() for name in names]
            self._left_out.append((_TEXT * (len(names) + 1))(*texts, None))
        self._library.amp_tf_leave_out(*self._left_out[-2:])

    @contextlib.contextmanager
    def converting(self) -> Iterator[None]:
        """Marks a block in which TFLite's converter runs.

        That holds the interpreter while it waits for graphs.
        """
        self._library.amp_tf_converting(1)
        try:
            yield
        finally:
            self._library.amp_tf_converting(-1)

    def set_callback(self, callback: GraphCallback) -> None:
        """Passes every graph from now on to a function.

        It runs with the GIL on threads of the shim's own.
        """
        self._callback = callback
        self._library.amp_tf_set_callback(self._native, 0)

    def _on_graph(self, *visit: int) -> None:
        if self._callback is not None:
            self._callback(*visit)

    def clear_callback(self, wait_ms: int = 0) -> int:
        """Makes the optimizer the identity, and waits for calls that are inside it.

        Returns how many of them are left after the wait.
        """
        return int(self._library.amp_tf_set_callback(_NO_CALLBACK, wait_ms))

    def emit(self, output: int, graph: bytes) -> None:
        """Makes a serialized GraphDef the result of the call whose ``TF_Buffer`` is ``output``."""
        # Without memory TensorFlow keeps the original graph.
        if not self._library.amp_tf_emit(output, graph, len(graph)):
            raise MemoryError(f"no memory for a graph of {len(graph)} bytes")
