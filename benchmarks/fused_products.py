"""What a bias and an activation take that TensorFlow computes in the kernel of the product before them.

    python benchmarks/fused_products.py [--seconds 1]

Chains of eight layers of one size, in float32 and in bfloat16: products alone, and with a bias and a Relu that the
remapper fuses with them. Microseconds of a layer, medians; both take turns. The cost model takes what is fused for
free: *added* is by how much that is off, in shares of the product alone.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

LAYERS = 8
CONVOLUTIONS = ((8, 56, 56, 64, 3), (8, 28, 28, 128, 3), (8, 14, 14, 256, 3), (8, 28, 28, 128, 1), (8, 14, 14, 512, 1))
MATRICES = ((2048, 256), (1024, 512), (256, 1024), (64, 256))  #: rows, and the columns of both
Call = Callable[[], Any]


def _chain(product: Callable[[Any], Any], bias: Any, is_followed: bool, x: Any) -> Any:
    for _ in range(LAYERS):
        x = product(x)
        if is_followed:
            x = tf.nn.relu(tf.nn.bias_add(x, bias))
    return x


def _calls(case: Sequence[int], dtype: tf.DType) -> dict[str, Call]:
    """Both variants, traced and run once."""
    is_convolution = len(case) > 2
    channels, taps = case[3:] if is_convolution else (case[1], 1)
    kernel_shape = (taps, taps, channels, channels) if is_convolution else (channels, channels)
    x = tf.random.stateless_normal(case[:4] if is_convolution else case, (0, 0), dtype=dtype)
    kernel = tf.random.stateless_normal(kernel_shape, (0, 1), dtype=dtype) / (taps * channels**0.5)
    bias = tf.zeros(channels, dtype)
    calls = {}
    for name, is_followed in (("alone", False), ("fused", True)):

        def run(x: Any, kernel: Any, bias: Any, is_followed: bool = is_followed) -> Any:
            def product(x: Any) -> Any:
                return tf.nn.conv2d(x, kernel, 1, "SAME") if is_convolution else tf.matmul(x, kernel)

            return _chain(product, bias, is_followed, x)

        function = tf.function(run)
        function(x, kernel, bias)  # it is optimized now
        calls[name] = lambda function=function: function(x, kernel, bias)
    return calls


def _take_turns(calls: dict[str, Call], seconds: float) -> dict[str, float]:
    """Microseconds of a layer."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    until = time.monotonic() + seconds
    while time.monotonic() < until or len(taken["alone"]) < 5:
        for name, call in calls.items():
            begin = time.perf_counter()
            call()
            taken[name].append((time.perf_counter() - begin) / LAYERS * 1e6)
    return {name: statistics.median(times) for name, times in taken.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.0, help="for each product and type")
    asked = parser.parse_args(arguments)
    names = "alone", "fused"
    heads = [f"{dtype} {name}" for dtype in ("float32", "bfloat16") for name in (*names, "added")]
    print(f"| product | {' | '.join(heads)} | gain alone | gain fused |")
    print("|---|" + "---:|" * (len(heads) + 2))
    for case in (*CONVOLUTIONS, *MATRICES):
        cells, by_type = [], []
        for dtype in (tf.float32, tf.bfloat16):
            times = _take_turns(_calls(case, dtype), asked.seconds)
            by_type.append(times)
            added = times["fused"] / times["alone"] - 1
            cells += [*(f"{times[name]:.0f}" for name in names), f"{added:+.0%}"]
        gains = [f"{by_type[0][name] / by_type[1][name]:.2f}" for name in ("alone", "fused")]
        shape = "×".join(map(str, case[:4] if len(case) > 2 else case))
        what = f"Conv2D {shape}, {case[4]} × {case[4]}" if len(case) > 2 else f"MatMul {shape}"
        print(f"| {what} | {' | '.join(cells + gains)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
