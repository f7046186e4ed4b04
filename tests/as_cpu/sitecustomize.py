"""Every Python that has this folder on its PYTHONPATH finds a CPU with AVX2 and nothing newer
(scripts/test --as-cpu).

Two of TensorFlow's own questions are overwritten before the first of its modules is loaded: which
features the CPU has, of which oneDNN's types follow, and whether oneDNN is on, which it has asked
while its library was loaded and which TF_ENABLE_ONEDNN_OPTS=1 decides as ever. /proc/cpuinfo, which
amp_tf reads, is masked. oneDNN and XLA obey their variables, which the script sets. Eigen's kernels
ask nobody.
"""

import builtins
import io
import os
import sys
from pathlib import Path

HIDDEN = ("avx512", "avx_", "amx_")  # flags that begin so
HIDDEN_FEATURES = range(27, 48)  # of tsl/platform/cpu_info.h: AVX512F to AVX_VNNI_INT8

_open = io.open
_overwritten = []


def _masked_open(file, *arguments, **options):
    if str(file) != "/proc/cpuinfo":
        return _open(file, *arguments, **options)
    with _open(file, encoding="utf-8", errors="replace") as real:
        lines = [
            " ".join(word for word in line.split(" ") if not word.startswith(HIDDEN))
            for line in real
        ]
    return io.StringIO("\n".join(line.rstrip("\n") for line in lines) + "\n")


def _before_import(event, arguments):
    if event != "import" or _overwritten or "/tensorflow/" not in str(arguments[1]):
        return
    from overwriting import ONEDNN_IS_ON, answer, hide_features, library, overwrite

    before, _, _ = str(arguments[1]).rpartition("/tensorflow/python/")
    if before:
        _overwritten.append(Path(before, "tensorflow"))
        framework = library(_overwritten[0])
        hide_features(framework, HIDDEN_FEATURES)
        if os.environ.get("TF_ENABLE_ONEDNN_OPTS") != "1":
            overwrite(framework, ONEDNN_IS_ON, answer(ONEDNN_IS_ON, False))


if "overwriting" not in sys.modules:  # a fork of a process in which all this is done has it done
    io.open = builtins.open = _masked_open
    sys.addaudithook(_before_import)
