"""TensorFlow's graph passes as on a CPU for which oneDNN is made: they are told so, while no such
kernel runs.
"""

import contextlib
import ctypes
import functools
from pathlib import Path

import pytest
from tensorflow.core.framework import types_pb2
from tensorflow.python.platform import sysconfig

from tests.as_cpu import overwriting


def is_on():
    """Tells whether TensorFlow computes with oneDNN, its default on CPUs with instructions for
    neural networks.
    """
    return bool(overwriting.function(_framework(), overwriting.ONEDNN_IS_ON)())


@functools.cache
def computes_bfloat16():
    """Tells whether it computes bfloat16 with oneDNN."""
    return computes(types_pb2.DT_BFLOAT16)


def computes(data_type):
    """Tells whether it computes a type with oneDNN."""
    has_kernels = overwriting.function(_framework(), overwriting.ONEDNN_HAS_KERNELS)
    return is_on() and bool(has_kernels(ctypes.byref(ctypes.c_int(data_type))))


@contextlib.contextmanager
def told(*, bfloat16):
    """TensorFlow takes oneDNN for on and, if asked, for able to compute bfloat16.

    The test skips where that cannot be.
    """
    names = [] if is_on() else [overwriting.ONEDNN_IS_ON]
    if bfloat16 and not computes_bfloat16():
        names.append(overwriting.ONEDNN_HAS_KERNELS)
    with contextlib.ExitStack() as stack:
        try:
            for name in names:
                stack.enter_context(overwriting.answering(_framework(), name, True))
        except overwriting.OverwritingError as error:
            pytest.skip(f"TensorFlow decides here for a CPU without oneDNN, and {error}")
        yield


@functools.cache
def _framework():
    return overwriting.library(Path(sysconfig.get_lib()))
