"""Which ops the random graphs are made of: every op that TensorFlow's installed header puts on a
list, and some more.

The lists are read from ``auto_mixed_precision_lists.h``, which TensorFlow installs, and not from
amp_tf: the judge does not ask the judged.
"""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import re

import tensorflow as tf
from tensorflow.python.framework import kernels, op_def_registry

from amp_tf.config import LIST_NAMES

# On amp_tf's lists alone.
OWN = {"_FusedMatMul", "_FusedConv2D", "_FusedConv3D", "_FusedDepthwiseConv2dNative", "_MklSwish"}
# On no list, but with a part to play: boundaries, existing casts, variables, fixed types, handles
# that are passed on.
OTHER_OPS = (  # in an order that seeds know
    "Cast",
    "Sin",
    "SparseMatMul",
    "RandomUniform",
    "FusedBatchNorm",
    "FusedBatchNormGrad",
    "VariableV2",
    "AssignAdd",
    "ReadVariableOp",
    "AssignVariableOp",
    "MatrixInverse",
    "Bitcast",
    "TensorListReserve",
    "EmptyTensorList",
    "TensorListResize",
    "TensorListLength",
    "TensorListElementShape",
    "Placeholder",
    "Pow",
    "Cumsum",
    "Rsqrt",
    "ResizeBilinear",
)
# The functional loops need functions that fit them; the lists' private ops are made by Grappler
# itself.
_LEFT_OUT = {"While", "StatelessWhile", "_FusedBatchNormEx"}
# Loops are built as wholes, so that each NextIteration meets its Merge.
_LOOP_OPS = {"Enter", "Exit", "Merge", "NextIteration", "Switch"}


_PATH = "tensorflow/core/grappler/optimizers/auto_mixed_precision_lists.h"
_CLASSES = {
    "cuda": "AutoMixedPrecisionLists(?:Fp16|Cuda)",
    "cpu": "AutoMixedPrecisionListsMkl",
}  # Cuda is its older name
_ONEDNN_ONLY = re.compile(r"if \(use_onednn_\) \{.*?\n    \}", re.DOTALL)
_METHOD = re.compile(r"FlatSet<(?:std::)?string> (\w+)List\(\) override \{(.*?)\n  \}", re.DOTALL)
_OP = re.compile(
    r'"(_?[A-Z]\w*[a-z0-9]\w*)"'
)  # not the names of variables, which have no small letter


@functools.cache
def lists_of_header(table):
    """By list: the ops of the original's ``cuda`` or ``cpu`` table, for the newest CUDA and
    cuDNN.
    """
    text = pathlib.Path(tf.sysconfig.get_include(), _PATH).read_text(encoding="utf-8")
    start = re.search(f"class {_CLASSES[table]} ", text).start()
    body = _ONEDNN_ONLY.sub("", text[start : text.index("\n};", start)])
    tensor_lists = _OP.findall(
        text[text.index("tensor_list_ops[]") : text.index("LINT.ThenChange")]
    )
    found = {}
    for name, method in _METHOD.findall(body):
        ops = set(_OP.findall(method))
        if "AddTensorListOps" in method:
            ops.update(tensor_lists)
        found[name.lower()] = frozenset(ops)
    return found


@dataclasses.dataclass(frozen=True)
class OpPool:
    """The names of the ops that a random node is drawn from, by list; ``other`` are on none."""

    allow: tuple[str, ...]
    infer: tuple[str, ...]
    deny: tuple[str, ...]
    clear: tuple[str, ...]
    tensor_lists: tuple[str, ...]
    other: tuple[str, ...]


@functools.cache
def op_pool():
    """The pool for the installed TensorFlow."""
    tables = [lists_of_header(table) for table in ("cuda", "cpu")]
    usable = {}
    lists = []
    for name in LIST_NAMES:
        listed = set()
        for table in tables:
            listed |= table[name]
        found = sorted(listed)
        usable[name] = tuple(filter(_is_usable, found))
        if name == "clear":
            lists += [op for op in found if op.startswith("TensorList")]
    return OpPool(**usable, tensor_lists=tuple(lists), other=OTHER_OPS)


@functools.cache
def op_def(name):
    return op_def_registry.get(name)


def _is_usable(op):
    definition = op_def(op)
    if definition is None or op in _LEFT_OUT | _LOOP_OPS:
        return False
    registered = kernels.get_registered_kernels_for_op(op)
    if not registered.kernel:  # cuDNN's ops, in a TensorFlow without CUDA
        return False
    return not any(attr.type == "func" for attr in definition.attr)
