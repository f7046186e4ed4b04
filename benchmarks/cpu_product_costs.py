"""Times products on this CPU in float32 and in bfloat16, and fits the figures of amp_tf/oplists/costs.py to them.

    python benchmarks/cpu_product_costs.py [--repeats 15] [--only Conv3D] [--json times.json]
    python benchmarks/cpu_product_costs.py --read times.json

Each product runs several times, one after the other, in one tf.function with TensorFlow's graph optimizers off; the two
types take turns and the minimum counts. Sizes are those of small and large layers, in cache and in memory, with odd
channels and with very few. A product of n operations and m elements, inputs and result together, is taken to cost
``a·n + b·m + c`` nanoseconds; for each op, the three are fitted to the relative errors. The error that is left is
printed. What ``SLOW_KERNELS`` leaves in float32 anyway is shown, and not fitted. Last come the rows of the table, made
smaller by what other work on the machine cost: so that a large float32 matrix product does 215 operations in a ns, as
it does when the other figures of the table are measured.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))  # as a script it finds only this folder
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

from benchmarks.op_timing import run_many, seconds

raw = tf.raw_ops
MATMUL_RATE = 215.0  #: operations in a ns of a large float32 matrix product on the quiet machine
Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Case:
    """One product: ``run`` takes tensors of these shapes; ``operations`` counts an addition as one."""

    op: str
    what: str
    shapes: tuple[Shape, ...]
    run: Callable[..., Any]
    operations: float
    elements: float
    is_slow: bool = False

    @property
    def key(self) -> str:
        return f"{self.op} {self.what}"


@dataclasses.dataclass(frozen=True)
class Convolution:
    """Input without channels, channels in and out, taps, stride and dilation; depthwise if ``out`` is 0."""

    batch: int
    sides: Shape
    channels: int
    out: int
    taps: Shape
    stride: int = 1
    dilation: int = 1

    @property
    def what(self) -> str:
        text = f"{self.batch}×{'×'.join(map(str, self.sides))}×{self.channels} → {self.out or self.channels}"
        text += f", {'×'.join(map(str, self.taps))}"
        text += f", stride {self.stride}" if self.stride > 1 else ""
        return text + (f", dilation {self.dilation}" if self.dilation > 1 else "")


CONVOLUTIONS = (
    Convolution(8, (56, 56), 64, 64, (3, 3)),
    Convolution(8, (28, 28), 128, 128, (3, 3)),
    Convolution(8, (14, 14), 256, 256, (3, 3)),
    Convolution(8, (7, 7), 512, 512, (3, 3)),
    Convolution(8, (56, 56), 64, 128, (3, 3), 2),
    Convolution(8, (14, 14), 1024, 256, (1, 1)),
    Convolution(8, (56, 56), 64, 256, (1, 1)),
    Convolution(16, (48, 48), 16, 96, (1, 1)),
    Convolution(16, (24, 24), 144, 24, (1, 1)),
    Convolution(16, (6, 6), 320, 1280, (1, 1)),
    Convolution(8, (96, 96), 3, 32, (3, 3), 2),
    Convolution(8, (64, 64), 3, 64, (3, 3)),
    Convolution(8, (30, 30), 30, 50, (3, 3)),
    Convolution(32, (1, 512), 16, 64, (1, 5)),
    Convolution(16, (1, 512), 64, 64, (1, 2)),
    Convolution(8, (32, 32), 64, 64, (3, 3), 1, 4),
    Convolution(2, (16, 16), 16, 16, (3, 3)),
    Convolution(4, (8, 8), 32, 32, (1, 1)),
    Convolution(8, (1, 1), 96, 24, (1, 1)),
)
VOLUMES = (
    Convolution(4, (16, 32, 32), 3, 32, (3, 3, 3)),
    Convolution(4, (8, 16, 16), 32, 64, (3, 3, 3)),
    Convolution(4, (4, 8, 8), 64, 128, (3, 3, 3)),
    Convolution(2, (16, 32, 32), 16, 16, (3, 3, 3)),
    Convolution(2, (8, 16, 16), 64, 64, (1, 1, 1)),
    Convolution(4, (8, 14, 14), 32, 32, (1, 3, 3)),
    Convolution(4, (8, 14, 14), 32, 32, (3, 1, 1)),
    Convolution(2, (8, 32, 32), 16, 32, (3, 3, 3), 2),
)
DEPTHWISE = (
    Convolution(16, (48, 48), 96, 0, (3, 3)),
    Convolution(16, (48, 48), 96, 0, (3, 3), 2),
    Convolution(16, (24, 24), 144, 0, (3, 3)),
    Convolution(16, (12, 12), 240, 0, (5, 5)),
    Convolution(16, (24, 24), 144, 0, (5, 5), 2),
    Convolution(8, (6, 6), 576, 0, (5, 5)),
    Convolution(8, (16, 16), 192, 0, (7, 7)),
    Convolution(8, (112, 112), 32, 0, (3, 3)),
    Convolution(2, (30, 30), 30, 0, (3, 3)),
    Convolution(8, (24, 24), 72, 0, (3, 3)),
    Convolution(8, (14, 14), 64, 0, (3, 3)),
)
#: Stacked matrices, their rows, inner size and columns.
MATRICES = (
    (1, 256, 2048, 2048),
    (1, 256, 512, 2048),
    (1, 1024, 256, 1024),
    (1, 1024, 1024, 256),
    (1, 1024, 256, 256),
    (1, 1024, 128, 2000),
    (1, 512, 192, 192),
    (1, 4096, 256, 128),
    (1, 1, 1024, 1024),
    (1, 8, 1024, 1024),
    (1, 64, 128, 768),
    (1, 64, 768, 768),
    (1, 32, 256, 768),
    (1, 512, 128, 64),
    (1, 512, 64, 1),
    (1, 8, 1024, 10),
    (1, 128, 54, 256),
    (1, 50, 99, 77),
)
BATCHED = (
    (64, 64, 64, 64),
    (64, 64, 32, 64),
    (32, 64, 64, 32),
    (16, 256, 16, 256),
    (16, 256, 256, 16),
    (256, 16, 32, 16),
    (256, 7, 32, 7),
    (32, 24, 256, 96),
)


def _of_convolution(case: Convolution, ops: Sequence[Callable[..., Any]], names: Sequence[str]) -> Iterator[Case]:
    """The convolution and both of its gradients."""
    spatial = len(case.sides)
    strides = [1, *(case.stride if side > 1 else 1 for side in case.sides), 1]
    dilations = [1, *(case.dilation if side > 1 else 1 for side in case.sides), 1]
    options = {"strides": strides, "padding": "SAME", "dilations": dilations}
    image = (case.batch, *case.sides, case.channels)
    kernel = (*case.taps, case.channels, case.out or 1)
    small = [-(-side // stride) for side, stride in zip(case.sides, strides[1:], strict=False)]
    result = (case.batch, *small, case.out or case.channels)
    operations = 2.0 * math.prod(result) * math.prod(case.taps) * (case.channels if case.out else 1)
    elements = float(sum(map(math.prod, (image, kernel, result))))
    forward, to_input, to_filter = ops
    sizes, filter_sizes = ("input_sizes", "filter_sizes")

    def run(x: Any, w: Any) -> Any:
        return forward(input=x, filter=w, **options)

    def run_input(w: Any, dy: Any) -> Any:
        return to_input(**{sizes: image, "filter": w, "out_backprop": dy}, **options)

    def run_filter(x: Any, dy: Any) -> Any:
        return to_filter(**{"input": x, filter_sizes: kernel, "out_backprop": dy}, **options)

    assert spatial in (2, 3)
    for name, shapes, function in zip(
        names, ((image, kernel), (kernel, result), (image, result)), (run, run_input, run_filter), strict=True
    ):
        is_slow = "Depthwise" in name and (
            (name.endswith("BackpropFilter") and math.prod(case.taps) > 9)
            or (name.endswith("BackpropInput") and case.stride > 1)
        )
        yield Case(name, case.what, shapes, function, operations, elements, is_slow)


def _of_matrices(count: int, rows: int, inner: int, columns: int) -> Iterator[Case]:
    """A product, and those of its gradients: the one or the other matrix transposed."""
    batched = count > 1
    op = "BatchMatMulV2" if batched else "MatMul"
    elements = float(count * (rows * inner + inner * columns + rows * columns))
    for left, right in ((False, False), (False, True), (True, False)):
        x, y = ((inner, rows) if left else (rows, inner)), ((columns, inner) if right else (inner, columns))
        shapes = ((count, *x), (count, *y)) if batched else (x, y)

        def run(a: Any, b: Any, left: bool = left, right: bool = right) -> Any:
            return tf.matmul(a, b, transpose_a=left, transpose_b=right)

        what = f"{count}×" * batched + f"{rows}×{inner}×{columns}" + ", a transposed" * left + ", b transposed" * right
        yield Case(op, what, shapes, run, 2.0 * count * rows * inner * columns, elements)


def cases() -> Iterator[Case]:
    names = ("Conv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter")
    for case in CONVOLUTIONS:
        yield from _of_convolution(case, [getattr(raw, name) for name in names], names)
    names = ("Conv3D", "Conv3DBackpropInputV2", "Conv3DBackpropFilterV2")
    for case in VOLUMES:
        yield from _of_convolution(case, [getattr(raw, name) for name in names], names)
    name = "DepthwiseConv2dNative"
    names = (name, f"{name}BackpropInput", f"{name}BackpropFilter")
    for case in DEPTHWISE:
        yield from _of_convolution(case, [getattr(raw, name) for name in names], names)
    for sizes in (*MATRICES, *BATCHED):
        yield from _of_matrices(*sizes)


def measure(case: Case, repeats: int) -> tuple[float, float]:
    """Nanoseconds of one run in float32 and in bfloat16."""
    random = np.random.default_rng(0)
    inputs = [tf.constant(random.normal(size=shape).astype("float32")) for shape in case.shapes]
    runs = max(2, min(40, int(4e8 / (case.operations + 50 * case.elements))))
    return tuple(1e9 * second / runs for second in seconds(run_many(case.run, runs), inputs, repeats))  # type: ignore[return-value]


def fit(rows: Sequence[tuple[Case, float]]) -> tuple[float, float, float]:
    """Nanoseconds an operation, an element and a call that fit best by relative errors; none below 0."""
    from scipy.optimize import nnls

    matrix = np.array([[case.operations, case.elements, 1.0] for case, _ in rows])
    times = np.array([time for _, time in rows])
    per_operation, per_element, per_call = nnls(matrix / times[:, None], np.ones(len(rows)))[0].tolist()
    return per_operation, per_element, per_call


def expected(figures: tuple[float, float, float], case: Case) -> float:
    """What the fit says that a case takes, in ns."""
    return figures[0] * case.operations + figures[1] * case.elements + figures[2]


def show(times: dict[str, tuple[float, float]]) -> None:
    by_op: dict[str, list[Case]] = {}
    fitted: dict[str, list[tuple[float, float, float]]] = {}
    for case in cases():
        if case.key in times:
            by_op.setdefault(case.op, []).append(case)
    for op, rows in by_op.items():
        print(f"\n{op:52}{'float32 µs':>12}{'bfloat16':>10}{'gain':>7}   operations in a ns")
        for case in rows:
            in_float32, in_f16 = times[case.key]
            rates = f"{case.operations / in_float32:8.0f}{case.operations / in_f16:8.0f}"
            gain = in_float32 / in_f16
            print(f"  {case.what:50}{in_float32 / 1e3:12.1f}{in_f16 / 1e3:10.1f}{gain:7.2f}{rates}")
        rows = [case for case in rows if not case.is_slow]
        for index, name in enumerate(("float32", "bfloat16")):
            figures = fit([(case, times[case.key][index]) for case in rows])
            fitted.setdefault(op, []).append(figures)
            errors = [abs(math.log(expected(figures, case) / times[case.key][index])) for case in rows]
            rate = f"1/{1 / figures[0]:.0f}" if figures[0] else "0"
            print(f"  {name}: {rate} ns an operation + {figures[1]:.3f} ns an element + {figures[2]:.0f} ns; ", end="")
            print(f"median error ×{math.exp(statistics.median(errors)):.2f}, worst ×{math.exp(max(errors)):.2f}")
    if "MatMul" in fitted:
        scale = MATMUL_RATE * fitted["MatMul"][0][0]
        print(f"\nrows of PRODUCT_COSTS, all times divided by {scale:.2f}")
        for op, pair in sorted(fitted.items()):
            cells = (f"({scale / a if a else math.inf:.0f}, {b / scale:.2f}, {c / scale:.0f})" for a, b, c in pair)
            print(f"  {op}: {' '.join(cells)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--only", default="", help="ops, comma-separated")
    parser.add_argument("--json", type=Path, help="write the times here; those that it has already get smaller only")
    parser.add_argument("--read", type=Path, help="show these times, measure nothing")
    asked = parser.parse_args()
    source = asked.read or asked.json
    times = json.loads(source.read_text()) if source and source.exists() else {}
    if not asked.read:
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
        wanted = set(filter(None, asked.only.split(",")))
        for case in cases():
            if not wanted or case.op in wanted:
                new = measure(case, asked.repeats)
                times[case.key] = [min(pair) for pair in zip(new, times.get(case.key, new), strict=True)]
                if asked.json:
                    asked.json.write_text(json.dumps(times, indent=1))
    show(times)


if __name__ == "__main__":
    main()
