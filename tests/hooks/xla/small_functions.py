"""Small functions for the tests of the XLA hook in this process, and what XLA compiled of them."""

from __future__ import annotations

import gc
from collections import Counter

import numpy as np
import tensorflow as tf
from tensorflow.core.framework.function_pb2 import FunctionDef
from tensorflow.python import pywrap_tfe
from tensorflow.python.client import pywrap_tf_session
from tensorflow.python.eager import context
from tensorflow.python.framework import c_api_util

from amp_tf.config import AmpConfig

BFLOAT16 = AmpConfig(precision="bfloat16")
BF16 = tf.bfloat16.as_datatype_enum


def tensor(seed: int, *shape: int):
    return tf.constant(np.random.default_rng(seed).normal(size=shape, scale=0.2).astype("float32"))


X = tensor(1, 8, 8)
W = tensor(2, 8, 8)


def jitted(function):
    return tf.function(function, jit_compile=True)


def registered(name):
    """The FunctionDef that TensorFlow runs, whatever those are told who ask for it."""
    with c_api_util.tf_buffer() as buffer:
        pywrap_tfe.TFE_ContextGetFunctionDef(context.context()._handle, name, buffer)
        return FunctionDef.FromString(pywrap_tf_session.TF_GetBuffer(buffer))


def definition(function, *arguments):
    return registered(function.get_concrete_function(*arguments).name)


def products(fdef) -> Counter[str]:
    return Counter(
        tf.as_dtype(node.attr["T"].type).name for node in fdef.node_def if node.op == "MatMul"
    )


def assert_rounded(actual, expected, products: int) -> None:
    """Asserts that two chains of so many products differ by bfloat16's rounding of operands and
    results alone (2**-9).
    """
    bound = products * 3 * 2**-9 * np.abs(expected).max()
    np.testing.assert_allclose(actual, expected, rtol=0, atol=bound)


def clones() -> list[str]:
    """The copies of functions that some program still needs."""
    gc.collect()  # those of a test before may wait for it
    return sorted(name for name in context.context().list_function_names() if "_amp_tf_" in name)
