"""The lists of TensorFlow's own pass, read from the header that the installed TensorFlow ships."""

from __future__ import annotations

import functools
import pathlib
import re

import tensorflow as tf

_PATH = "tensorflow/core/grappler/optimizers/auto_mixed_precision_lists.h"
_CLASSES = {
    "cuda": "AutoMixedPrecisionLists(?:Fp16|Cuda)",
    "cpu": "AutoMixedPrecisionListsMkl",
}  # Cuda is its older name
_ONEDNN_ONLY = re.compile(r"if \(use_onednn_\) \{.*?\n    \}", re.DOTALL)
_METHOD = re.compile(r"FlatSet<string> (\w+)List\(\) override \{(.*?)\n  \}", re.DOTALL)
_OP = re.compile(r'"(_?[A-Z]\w*[a-z0-9]\w*)"')  # not the names of variables, which have no small letter


@functools.cache
def lists_of_header(table: str) -> dict[str, frozenset[str]]:
    """By list: the ops of the original's ``cuda`` or ``cpu`` table, for the newest CUDA and cuDNN."""
    text = pathlib.Path(tf.sysconfig.get_include(), _PATH).read_text(encoding="utf-8")
    start = re.search(f"class {_CLASSES[table]} ", text).start()
    body = _ONEDNN_ONLY.sub("", text[start : text.index("\n};", start)])
    tensor_lists = _OP.findall(text[text.index("tensor_list_ops[]") : text.index("LINT.ThenChange")])
    found = {}
    for name, method in _METHOD.findall(body):
        ops = set(_OP.findall(method))
        if "AddTensorListOps" in method:
            ops.update(tensor_lists)
        found[name.lower()] = frozenset(ops)
    return found


def tensorflow_version() -> tuple[int, int]:
    major, minor = tf.__version__.split(".")[:2]
    return int(major), int(minor)
