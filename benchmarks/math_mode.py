"""Whether oneDNN's math mode does anything on this CPU: products of float32 values with it and without it.

    python -m benchmarks.math_mode [--rounds 9]

``TF_SET_ONEDNN_FPMATH_MODE=BF16`` lets oneDNN round the operands of float32 products to bfloat16 as it multiplies them:
values stay float32 in memory, and there are no casts. TensorFlow sets it once, for the whole process
(``SetFPMathMode`` in its core/util/mkl_util.h), and oneDNN has kernels that heed it for AMX and on Arm alone
(``is_bf32`` in its brgemm kernels). Each product is run in two processes in turns; printed are the ratio of their times
and the error of either against float64: where the errors are equal, the mode did nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

VARIABLE = {"TF_SET_ONEDNN_FPMATH_MODE": "BF16"}
CALLS = 5  # in a time


def products() -> dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]]:
    """Each product: its function and its operands, float32."""
    import tensorflow as tf

    rng = np.random.default_rng(0)

    def drawn(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype("float32")

    def filter_gradient(x: Any, w: Any, d: Any) -> Any:
        return tf.raw_ops.Conv2DBackpropFilter(
            input=x, filter_sizes=tf.shape(w), out_backprop=d, strides=[1] * 4, padding="SAME"
        )

    dense = drawn(512, 1024), drawn(1024, 1024)
    image = drawn(16, 28, 28, 64), drawn(3, 3, 64, 64)
    return {
        "MatMul": (tf.matmul, dense),
        "MatMul, bias, relu": (lambda a, b, c: tf.nn.relu(tf.nn.bias_add(a @ b, c)), (*dense, drawn(1024))),
        "BatchMatMul": (tf.matmul, (drawn(16, 128, 128), drawn(16, 128, 128))),
        "Conv2D": (lambda x, w: tf.nn.conv2d(x, w, 1, "SAME"), image),
        "Conv2DBackpropFilter": (filter_gradient, (*image, drawn(16, 28, 28, 64))),
    }


def serve() -> None:
    """Answers each line of standard input with the times of all products; the first one with errors as well."""
    import tensorflow as tf

    runs = {}
    errors = {}
    for name, (function, operands) in products().items():
        run, given = tf.function(function), [tf.constant(operand) for operand in operands]
        exact = function(*(operand.astype("float64") for operand in operands)).numpy()
        errors[name] = float(np.linalg.norm(run(*given).numpy() - exact) / np.linalg.norm(exact))
        runs[name] = (run, given)
    print(json.dumps(errors), flush=True)
    for _ in sys.stdin:
        times = {}
        for name, (run, given) in runs.items():
            begin = time.perf_counter()
            for _ in range(CALLS):
                result = run(*given)
            result.numpy()
            times[name] = (time.perf_counter() - begin) / CALLS
        print(json.dumps(times), flush=True)


def measure(rounds: int) -> list[tuple[str, float, float, float]]:
    """For each product its name, the ratio of times, and the errors without and with the mode."""
    workers = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.math_mode", "--serve"],
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for variables in ({}, VARIABLE)
    ]

    def ask(worker: subprocess.Popen[str]) -> dict[str, float]:
        assert worker.stdin is not None
        worker.stdin.write("\n")
        worker.stdin.flush()
        return read(worker)

    def read(worker: subprocess.Popen[str]) -> dict[str, float]:
        assert worker.stdout is not None
        answer: dict[str, float] = json.loads(worker.stdout.readline())
        return answer

    without, with_mode = (read(worker) for worker in workers)
    times = [[ask(worker) for worker in workers] for _ in range(rounds)]
    for worker in workers:
        worker.communicate()
    return [
        (name, statistics.median(b[name] / a[name] for a, b in times), without[name], with_mode[name])
        for name in without
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.serve:
        serve()
        return 0
    print(f"{'product':24}{'time':>8}{'error':>12}{'with mode':>12}")
    for name, ratio, without, with_mode in measure(args.rounds):
        print(f"{name:24}{ratio:8.2f}{without:12.1e}{with_mode:12.1e}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
