"""Which ops the random graphs are made of: every op that TensorFlow's installed header puts on a list, and some more.

The lists are read from ``auto_mixed_precision_lists.h``, which TensorFlow installs, and not from amp_tf: the judge does
not ask the judged.
"""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import re

import tensorflow as tf
from tensorflow.core.framework import op_def_pb2
from tensorflow.python.framework import kernels, op_def_registry

LISTS = ("allow", "infer", "deny", "clear")
HEADER = "tensorflow/core/grappler/optimizers/auto_mixed_precision_lists.h"
# On no list, but with a part to play: boundaries, existing casts, variables, fixed types, handles that are passed on.
OTHER_OPS = (
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
# The functional loops need functions that fit them; the lists' private ops are made by Grappler itself.
_LEFT_OUT = {"While", "StatelessWhile", "_FusedBatchNormEx"}
# Loops are built as wholes, so that each NextIteration meets its Merge.
_LOOP_OPS = {"Enter", "Exit", "Merge", "NextIteration", "Switch"}


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
def op_pool() -> OpPool:
    """The pool for the installed TensorFlow."""
    text = pathlib.Path(tf.sysconfig.get_include(), HEADER).read_text()
    found: dict[str, set[str]] = {name: set() for name in LISTS}
    for name, body in re.findall(r"FlatSet<string> (\w+)List\(\) override \{(.*?)\n  \}", text, re.DOTALL):
        found[name.lower()].update(re.findall(r'"(_?[A-Z]\w+)"', body))
    usable = {name: tuple(sorted(op for op in ops if _is_usable(op))) for name, ops in found.items()}
    lists = tuple(sorted(set(re.findall(r'"(TensorList\w+)"', text))))
    return OpPool(**usable, tensor_lists=lists, other=OTHER_OPS)


@functools.cache
def op_def(name: str) -> op_def_pb2.OpDef:
    return op_def_registry.get(name)


def _is_usable(op: str) -> bool:
    definition = op_def(op)
    if definition is None or op in _LEFT_OUT | _LOOP_OPS:
        return False
    if not kernels.get_registered_kernels_for_op(op).kernel:  # cuDNN's ops, in a TensorFlow without CUDA
        return False
    return not any(attr.type == "func" for attr in definition.attr)
