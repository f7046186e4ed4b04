"""The Python interface of the shim: one object per device type, over ctypes.

The shim (shim.c) is a library of a few kilobytes that uses no Python and no TensorFlow, so one file serves every
version of both.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
DEVICE_TYPES = ("CPU", "GPU")

GraphCallback = Callable[[int, int, int, int, int], int]
"""Called with the address and length of a serialized GraphDef, the TF_GrapplerItem, the TF_Buffer for the result, and
the ``threading.get_native_id()`` of the thread that waits for it. Returns :data:`DONE` or :data:`INTERRUPTED`."""

DONE, INTERRUPTED = 0, 1  # what shim.c expects

_CALLBACK = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t
)
_NO_CALLBACK = _CALLBACK()  # a null pointer


class _Gil(ctypes.Structure):
    """How the shim takes the interpreter lock: addresses of CPython's own functions."""

    _fields_ = [(name, ctypes.c_void_p) for name in ("check", "ensure", "release")]


class Shim:
    """The library that is registered for one device type.

    Args:
        device_type: ``"CPU"`` or ``"GPU"``.
        wait_ms: how long a graph waits for the interpreter, in milliseconds; 0 for the shim's own 5 seconds.

    Raises:
        OSError: the library is missing or does not load.
    """

    def __init__(self, device_type: str, wait_ms: int = 0) -> None:
        self.path = FOLDER / f"amp_tf_{device_type.lower()}.so"
        self._library = ctypes.CDLL(str(self.path))
        self._emit = self._library.amp_tf_emit
        self._emit.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]
        self._emit.restype = ctypes.c_int
        self._set_callback = self._library.amp_tf_set_callback
        self._set_callback.argtypes = [_CALLBACK, ctypes.c_int]
        self._set_callback.restype = ctypes.c_int
        names = ("PyGILState_Check", "PyGILState_Ensure", "PyGILState_Release")
        addresses = (ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p) for name in names)
        self._library.amp_tf_set_gil.argtypes = [_Gil, ctypes.c_int]
        self._library.amp_tf_set_gil(_Gil(*addresses), wait_ms)
        self._callback: GraphCallback | None = None
        self._native = _CALLBACK(self._on_graph)  # kept for ever: a thread of TensorFlow's may be about to call it

    @property
    def is_registered(self) -> bool:
        """Whether TensorFlow has this library's optimizer; true also if an earlier import of amp_tf registered it."""
        return bool(self._library.amp_tf_registered())

    @property
    def skipped(self) -> int:
        """How many visits of graphs were skipped because a call that waits for them held the interpreter."""
        return int(self._library.amp_tf_skipped())

    def set_callback(self, callback: GraphCallback) -> None:
        """Passes every graph from now on to a function, which runs with the GIL on threads of the shim's own."""
        self._callback = callback
        self._set_callback(self._native, 0)

    def _on_graph(self, *visit: int) -> int:
        return DONE if self._callback is None else self._callback(*visit)

    def clear_callback(self, wait_ms: int = 0) -> int:
        """Makes the optimizer the identity.

        Args:
            wait_ms: how long to wait for calls that are inside the callback, in milliseconds.

        Returns:
            How many calls are still inside it.
        """
        return int(self._set_callback(_NO_CALLBACK, wait_ms))

    def emit(self, output: int, graph: bytes) -> None:
        """Makes a serialized GraphDef the result of the current call.

        Args:
            output: the callback's ``TF_Buffer``.
            graph: a serialized GraphDef.

        Raises:
            MemoryError: there is no memory for the copy; TensorFlow keeps the original graph.
        """
        if not self._emit(output, graph, len(graph)):
            raise MemoryError(f"no memory for a graph of {len(graph)} bytes")
