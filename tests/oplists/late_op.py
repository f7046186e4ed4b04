"""Registers an op in the running TensorFlow, as loading a library of one's own does."""

from __future__ import annotations

import ctypes
from pathlib import Path

import tensorflow as tf


def register_op(name: str) -> None:
    """Registers an op without inputs and outputs through TensorFlow's C API (tensorflow/c/ops.h)."""
    library = ctypes.CDLL(str(Path(tf.__file__).parent / "libtensorflow_cc.so.2"))
    for function in ("TF_NewOpDefinitionBuilder", "TF_NewStatus"):
        getattr(library, function).restype = ctypes.c_void_p
    library.TF_NewOpDefinitionBuilder.argtypes = [ctypes.c_char_p]
    library.TF_RegisterOpDefinition.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    library.TF_RegisterOpDefinition.restype = None
    library.TF_GetCode.argtypes = [ctypes.c_void_p]
    library.TF_DeleteStatus.argtypes = [ctypes.c_void_p]
    library.TF_DeleteStatus.restype = None
    status = library.TF_NewStatus()
    library.TF_RegisterOpDefinition(library.TF_NewOpDefinitionBuilder(name.encode()), status)
    code = library.TF_GetCode(status)
    library.TF_DeleteStatus(status)
    assert code == 0, f"TensorFlow refuses to register {name}: status {code}"
