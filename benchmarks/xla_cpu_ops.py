"""Which ops pay in bfloat16 under XLA on a CPU: each op alone, compiled, float32 against bfloat16.

    python benchmarks/xla_cpu_ops.py --json xla_cpu_ops.json

Three programs a case: ``float32``; ``bfloat16`` with operands and result in bfloat16; and ``cast``, float32 operands
that are cast, the op in bfloat16, the result cast back, as an op that stands alone in a float32 program is rewritten.
Rounds are interleaved and medians compared. An op pays if the geometric means of its speed-ups over all shapes, inside
and with casts, are both at least ``PAYS``, and no case is slower than ``WORST``; ``PAYS`` is well above the noise.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import numpy as np
import tensorflow as tf

PAYS = 1.2
WORST = 0.9


@dataclasses.dataclass(frozen=True)
class Case:
    """One op with one set of shapes.

    Attributes:
        op: the name of the TensorFlow op.
        what: the shapes, for people.
        shapes: of the operands that carry precision.
        compute: the op on operands of those shapes.
    """

    op: str
    what: str
    shapes: tuple[tuple[int, ...], ...]
    compute: Callable[..., Any]


def _products() -> list[Case]:
    cases = []
    for m, k, n in ((256, 2048, 2048), (1024, 256, 1024), (64, 64, 64), (4096, 256, 128), (1, 1024, 1024)):
        for transpose, (a, b) in (("", (False, False)), (" aT", (True, False)), (" bT", (False, True))):
            shapes = ((k, m) if a else (m, k), (n, k) if b else (k, n))
            compute = lambda x, y, a=a, b=b: tf.matmul(x, y, transpose_a=a, transpose_b=b)  # noqa: E731 - bound by default
            cases.append(Case("MatMul", f"{m}x{k}x{n}{transpose}", shapes, compute))
    for batch, m, k, n in ((64, 64, 64, 64), (32, 128, 64, 128), (8, 512, 64, 512)):
        shapes = ((batch, m, k), (batch, k, n))
        cases.append(Case("BatchMatMulV2", f"{batch}x{m}x{k}x{n}", shapes, tf.matmul))
        old = lambda x, y: tf.raw_ops.BatchMatMul(x=x, y=y)  # noqa: E731 - short
        cases.append(Case("BatchMatMul", f"{batch}x{m}x{k}x{n}", shapes, old))
    for batch, tokens, heads, size in ((16, 64, 4, 64), (8, 128, 8, 64)):
        shape = (batch, tokens, heads, size)
        attend = lambda x, y: tf.einsum("bqhd,bkhd->bhqk", x, y)  # noqa: E731 - short
        cases.append(Case("Einsum", f"bqhd,bkhd->bhqk {shape}", (shape, shape), attend))
    return cases


def _convolutions() -> list[Case]:
    cases = []
    for batch, side, cin, kernel, cout, stride in (
        (16, 64, 64, 3, 128, 1),
        (8, 24, 64, 1, 256, 1),
        (8, 12, 256, 3, 256, 1),
        (8, 96, 3, 7, 64, 2),
        (16, 128, 3, 3, 64, 1),
    ):
        image, weights = (batch, side, side, cin), (kernel, kernel, cin, cout)
        out = (batch, -(-side // stride), -(-side // stride), cout)
        what = f"{batch}x{side}x{side}x{cin} {kernel}x{kernel} to {cout} /{stride}"
        forward = lambda x, w, s=stride: tf.nn.conv2d(x, w, s, "SAME")  # noqa: E731 - bound by default
        to_input = lambda w, dy, shape=image, s=stride: tf.raw_ops.Conv2DBackpropInput(  # noqa: E731 - bound by default
            input_sizes=shape, filter=w, out_backprop=dy, strides=[1, s, s, 1], padding="SAME"
        )
        to_filter = lambda x, dy, shape=weights, s=stride: tf.raw_ops.Conv2DBackpropFilter(  # noqa: E731 - likewise
            input=x, filter_sizes=shape, out_backprop=dy, strides=[1, s, s, 1], padding="SAME"
        )
        cases.append(Case("Conv2D", what, (image, weights), forward))
        cases.append(Case("Conv2DBackpropInput", what, (weights, out), to_input))
        cases.append(Case("Conv2DBackpropFilter", what, (image, out), to_filter))
    for batch, side, channels in ((16, 48, 96), (16, 12, 384)):
        image, weights = (batch, side, side, channels), (3, 3, channels, 1)
        what = f"{batch}x{side}x{side}x{channels} 3x3"
        depthwise = lambda x, w: tf.nn.depthwise_conv2d(x, w, [1, 1, 1, 1], "SAME")  # noqa: E731 - short
        to_input = lambda w, dy, shape=image: tf.raw_ops.DepthwiseConv2dNativeBackpropInput(  # noqa: E731 - bound by default
            input_sizes=shape, filter=w, out_backprop=dy, strides=[1, 1, 1, 1], padding="SAME"
        )
        to_filter = lambda x, dy, shape=weights: tf.raw_ops.DepthwiseConv2dNativeBackpropFilter(  # noqa: E731 - likewise
            input=x, filter_sizes=shape, out_backprop=dy, strides=[1, 1, 1, 1], padding="SAME"
        )
        cases.append(Case("DepthwiseConv2dNative", what, (image, weights), depthwise))
        cases.append(Case("DepthwiseConv2dNativeBackpropInput", what, (weights, image), to_input))
        cases.append(Case("DepthwiseConv2dNativeBackpropFilter", what, (image, image), to_filter))
    volume, weights, out = (2, 12, 24, 24, 16), (3, 3, 3, 16, 32), (2, 12, 24, 24, 32)
    strides = [1, 1, 1, 1, 1]
    forward = lambda x, w: tf.nn.conv3d(x, w, strides, "SAME")  # noqa: E731 - short
    to_input = lambda w, dy: tf.raw_ops.Conv3DBackpropInputV2(  # noqa: E731 - likewise
        input_sizes=volume, filter=w, out_backprop=dy, strides=strides, padding="SAME"
    )
    to_filter = lambda x, dy: tf.raw_ops.Conv3DBackpropFilterV2(  # noqa: E731 - likewise
        input=x, filter_sizes=weights, out_backprop=dy, strides=strides, padding="SAME"
    )
    what = "2x12x24x24x16 3x3x3 to 32"
    cases.append(Case("Conv3D", what, (volume, weights), forward))
    cases.append(Case("Conv3DBackpropInputV2", what, (weights, out), to_input))
    cases.append(Case("Conv3DBackpropFilterV2", what, (volume, out), to_filter))
    return cases


def _others() -> list[Case]:
    big = (64, 64, 64, 16)
    return [
        Case("Relu", "x4M", (big,), tf.nn.relu),
        Case("AddV2", "x4M", (big, big), tf.add),
        Case("Tanh", "x4M", (big,), tf.tanh),
        Case("MaxPool", "64x64x64x16 2x2", (big,), lambda x: tf.nn.max_pool2d(x, 2, 2, "SAME")),
    ]


CASES = (*_products(), *_convolutions(), *_others())


def programs(case: Case) -> dict[str, Callable[[], Any]]:
    """The compiled programs of one case, each ready to run."""
    rng = np.random.default_rng(0)
    wide = [tf.constant(rng.standard_normal(shape, np.float32)) for shape in case.shapes]
    narrow = [tf.cast(operand, tf.bfloat16) for operand in wide]

    @tf.function(jit_compile=True)
    def plain(*operands: Any) -> Any:
        return case.compute(*operands)

    @tf.function(jit_compile=True)
    def cast(*operands: Any) -> Any:
        return tf.cast(case.compute(*(tf.cast(operand, tf.bfloat16) for operand in operands)), tf.float32)

    return {
        "float32": lambda: plain(*wide),
        "bfloat16": lambda: plain(*narrow),
        "cast": lambda: cast(*wide),
    }


def measure(case: Case, rounds: int, round_s: float) -> dict[str, float]:
    """Median milliseconds of each program, rounds interleaved."""
    ready = programs(case)
    turns = {}
    for name, program in ready.items():
        program()
        begin = time.perf_counter()
        program()
        turns[name] = max(1, int(round_s / max(time.perf_counter() - begin, 1e-6)))
    times: dict[str, list[float]] = {name: [] for name in ready}
    for _ in range(rounds):
        for name, program in ready.items():
            begin = time.perf_counter()
            for _ in range(turns[name]):
                program()
            times[name].append((time.perf_counter() - begin) / turns[name] * 1e3)
    return {name: statistics.median(values) for name, values in times.items()}


def verdicts(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """For each op: the geometric means of its speed-ups, the worst case, and whether it pays."""
    result = {}
    for op in dict.fromkeys(row["op"] for row in rows):
        casts = [row["float32"] / row["cast"] for row in rows if row["op"] == op]
        inside = [row["float32"] / row["bfloat16"] for row in rows if row["op"] == op]
        means = [math.exp(statistics.fmean(map(math.log, ratios))) for ratios in (inside, casts)]
        result[op] = {
            "cases": len(casts),
            "bfloat16": means[0],
            "cast": means[1],
            "worst": min(casts),
            "pays": min(means) >= PAYS and min(casts) >= WORST,
        }
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--round-s", type=float, default=0.05, help="least length of a round, seconds")
    parser.add_argument("--only", default="", help="only ops whose name holds this")
    parser.add_argument("--json", type=Path, help="write all figures here")
    options = parser.parse_args()
    print(
        "| op | shapes | float32 ms | bfloat16 ms | cast ms | × bfloat16 | × cast |\n|---|---|---:|---:|---:|---:|---:|"
    )
    rows = []
    for case in CASES:
        if options.only not in case.op:
            continue
        row = {"op": case.op, "shapes": case.what, **measure(case, options.rounds, options.round_s)}
        rows.append(row)
        ratios = f"{row['float32'] / row['bfloat16']:.2f} | {row['float32'] / row['cast']:.2f}"
        times = " | ".join(f"{row[name]:.3f}" for name in ("float32", "bfloat16", "cast"))
        print(f"| {case.op} | {case.what} | {times} | {ratios} |", flush=True)
    found = verdicts(rows)
    print("\n| op | cases | × bfloat16 | × cast | worst | pays |\n|---|---:|---:|---:|---:|---|")
    for op, verdict in found.items():
        figures = f"{verdict['bfloat16']:.2f} | {verdict['cast']:.2f} | {verdict['worst']:.2f}"
        print(f"| {op} | {verdict['cases']} | {figures} | {'yes' if verdict['pays'] else 'no'} |")
    if options.json:
        facts = {"date": time.strftime("%Y-%m-%d"), "tensorflow": tf.__version__, "cpus": os.cpu_count(), "cpu": _cpu()}
        options.json.write_text(json.dumps({"machine": facts, "rows": rows, "verdicts": found}, indent=1))
    return 0


def _cpu() -> str:
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return names[0] if names else platform.processor()


if __name__ == "__main__":
    sys.exit(main())
