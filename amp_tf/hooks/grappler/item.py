"""Asks TensorFlow which nodes of a graph must stay as they are: the GraphDef does not say it.

A session's feeds and fetches are not marked in the GraphDef. TensorFlow's C API lists them
(``TF_GetNodesToPreserveListSize`` and ``TF_GetNodesToPreserveList`` of grappler.h); it is called in the library that
TensorFlow has loaded already.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from typing import Any

from amp_tf.errors import GraphError

TF_OK = 0
_POINTER, _TEXT, _INT, _SIZE, _BOOL = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_size_t, ctypes.c_ubyte
# Of tf_status.h and tensorflow/c/experimental/grappler/grappler.h: the result, then the arguments.
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
    """TensorFlow's C API in this process, with the types of the functions that are called here.

    Raises:
        OSError: the running TensorFlow has no libtensorflow_cc.so.2 loaded.
        AttributeError: it lacks one of the functions.
    """
    folder = os.path.dirname(str(sys.modules["tensorflow"].__file__))
    path = os.path.join(folder, "libtensorflow_cc.so.2")
    # RTLD_NOLOAD: a second copy of TensorFlow in the process would be worse than none.
    library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    for name, (result, *arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def nodes_to_preserve(item: int) -> frozenset[str]:
    """The names of feeds, fetches, init and keep nodes of the graph that is being optimized.

    Args:
        item: the address of the ``TF_GrapplerItem`` that the optimizer was called with; valid during the call only.

    Raises:
        GraphError: TensorFlow does not answer. The graph must then stay as it is: a fetch could change its type.
    """
    library = tensorflow_library()
    status = library.TF_NewStatus()
    try:
        count, size = ctypes.c_int(), ctypes.c_size_t()
        library.TF_GetNodesToPreserveListSize(item, ctypes.byref(count), ctypes.byref(size), status)
        _check(library, status)
        if count.value == 0:
            return frozenset()
        starts = (ctypes.c_void_p * count.value)()
        lengths = (ctypes.c_size_t * count.value)()
        storage = ctypes.create_string_buffer(max(size.value, 1))
        library.TF_GetNodesToPreserveList(item, starts, lengths, count, storage, size, status)
        _check(library, status)
        base = ctypes.addressof(storage)
        text = storage.raw
        return frozenset(
            text[start - base : start - base + length].decode()
            for start, length in zip(starts, lengths, strict=True)
            if start is not None
        )
    finally:
        library.TF_DeleteStatus(status)


def _check(library: ctypes.CDLL, status: int) -> None:
    code = library.TF_GetCode(status)
    if code != TF_OK:
        raise GraphError(
            f"TensorFlow does not list the nodes to preserve (status code {code})",
            where="Grappler item",
            fix="Please report this with your TensorFlow version",
        )
