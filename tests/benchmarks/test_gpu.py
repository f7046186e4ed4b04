"""TensorFlow's graph optimizers for GPUs that are not there: what they make of steps, and how it is counted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from benchmarks.gpu import grappler, virtual

ROOT = Path(__file__).resolve().parents[2]


def rows(mode: str, *arguments: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "benchmarks.gpu", "grappler", "--json", "--modes", mode, *arguments]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return list(json.loads(ended.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    ("mode", "kind"),
    [
        ("float32", "float32 NCHW"),
        ("policy", "float16 NHWC"),
        ("amp_tf", "float16 NHWC"),  # tensor cores want it; without the plugin's own toggle it is NCHW
        ("tf_pass", "float16 NHWC"),
    ],
)
def test_what_becomes_16_bit_on_a_gpu_is_laid_out_for_tensor_cores(mode: str, kind: str) -> None:
    if grappler.MODES[mode].needs_cuda and not tf.test.is_built_with_cuda():
        pytest.skip("TensorFlow's own pass needs GPU kernels: pip install tensorflow==2.21.0, which needs no GPU")
    (row,) = rows(mode, "--models", "convnet", "--capabilities", "9.0")
    assert row["convolutions"] == {kind: 8}
    assert row["products"] == {kind.split()[0]: 3}
    assert (row["transposes"] > 0) == (mode == "float32")
    assert (row["casts"] > 0) == (mode != "float32")


def test_what_a_graph_and_its_functions_compute_is_counted() -> None:
    @tf.function
    def called(x: Any) -> Any:
        return tf.transpose(tf.cast(tf.cast(x, tf.float16) @ tf.ones([4, 4], tf.float16), tf.float32))

    with tf.Graph().as_default() as graph:
        image = tf.compat.v1.placeholder(tf.float32, [1, 4, 4, 4])
        convolved = tf.nn.conv2d(image, tf.ones([3, 3, 4, 4]), 1, "SAME")
        called(tf.cast(tf.argmax(convolved[0, 0]), tf.float32)[None] @ tf.ones([4, 4]))
    counted = virtual.count(graph.as_graph_def())
    assert counted == virtual.Counted({"float32 NHWC": 1}, {"float16": 1, "float32": 1}, transposes=1, casts=2)


def test_table_has_the_modes_of_a_model_below_each_other() -> None:
    counted = {"products": {"float32": 3}, "transposes": 2, "casts": 0}
    found = [
        {"model": model, "capability": "9.0", "mode": mode, "convolutions": {"float32 NCHW": 8}, **counted}
        for mode in ("float32", "amp_tf")
        for model in ("resnet50", "convnet")
    ]
    assert grappler.table(found).splitlines()[2:] == [
        "| ResNet-50 v1.5 | 9.0 | float32 | 8 float32 NCHW | 3 float32 | 2 | 0 |",
        "| ResNet-50 v1.5 | 9.0 | amp_tf | 8 float32 NCHW | 3 float32 | 2 | 0 |",
        "| Imagenette convnet | 9.0 | float32 | 8 float32 NCHW | 3 float32 | 2 | 0 |",
        "| Imagenette convnet | 9.0 | amp_tf | 8 float32 NCHW | 3 float32 | 2 | 0 |",
    ]
