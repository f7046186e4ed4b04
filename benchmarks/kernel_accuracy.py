"""How exact TensorFlow's 16-bit kernels are: the elementwise ops of the lists, on every number that
their type has.

    python -m benchmarks.kernel_accuracy [--write [FILE]] [--only Elu,EluGrad] [--device GPU:0]

Each op runs in a tf.function of its own on all 65,536 numbers of bfloat16 and of float16; a
softmax, a sum, a maximum and a pool on pairs of each with zero; an op of two operands on 256 × 256
pairs of special values and a grid of all numbers. A gradient op reads every number, and ones as the
gradient that comes in; where an op of the infer list has no such op, "gradient of" it is what
GradientTape makes in 16 bit, of several ops.

Results are compared with float64, in units in the last place (ulp) of the 16-bit type: one that is
rightly rounded is off by 0.5 at most. A result is *lost* as far as it is off by more ulps, or more
of the change that one ulp of its input makes, whichever is larger: ``1 - y * y`` cancels by
definition, ``exp(x) - 1`` need not. Nothing is lost where TensorFlow's float32 kernel is off by an
ulp, too. Left out are numbers below float32's normal ones, which TensorFlow takes for zero in any
type, and results below the 16-bit type's normal ones.

oneDNN's kernels and Eigen's (``TF_ENABLE_ONEDNN_OPTS=0``) are measured in a process each; rows of
both are those that are alike. It takes a minute. ``--write`` writes ``kernel_accuracy.md``, and a
test holds ``INACCURATE`` of the op table to what it says.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import numpy as np
import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from amp_tf.oplists import table
from amp_tf.oplists.hardware import cpu_info, cpu_name

WRITTEN = Path(__file__).with_suffix(".md")
FORMS = {"oneDNN": "1", "Eigen": "0"}  #: kernels on CPUs, and the value of TF_ENABLE_ONEDNN_OPTS
EXTENSIONS = (
    "avx2",
    "avx512f",
    "avx512_bf16",
    "avx512_fp16",
    "amx_bf16",
    "amx_fp16",
)  #: that kernels may differ by
MOST = 8  #: units that a kernel may lose
LEAST_FLOAT32 = 2.0**-126
#: Ops that do not compute with values, whatever their types are, or not with one at a time.
LEFT_OUT = table.Trait(
    "BatchMatMul BatchMatMulV2 BiasAdd BiasAddGrad BiasAddV1 MatMul OnesLike Rank Shape Size "
    "Where ZerosLike",
    table.CONTROL_FLOW,
)


@dataclasses.dataclass(frozen=True)
class Format:
    """A 16-bit type: its digits, the first one included, and its smallest normal number."""

    dtype: tf.DType
    digits: int
    least: float

    def every(self) -> np.ndarray:
        """All 65,536 numbers, as float64, from zero up and from minus zero down."""
        return self.of_bits(np.arange(2**16))

    def of_bits(self, bits: np.ndarray) -> np.ndarray:
        return tf.cast(
            tf.bitcast(tf.constant(bits.astype(np.uint16)), self.dtype), tf.float64
        ).numpy()

    def rounded(self, values: np.ndarray) -> np.ndarray:
        return tf.cast(tf.cast(values, self.dtype), tf.float64).numpy()

    def ulp(self, values: np.ndarray) -> np.ndarray:
        """The distance of the numbers around each value; of those below the normal ones, the
        smallest normal one's.
        """
        with np.errstate(invalid="ignore"):
            sizes = np.where(
                np.isfinite(values), np.maximum(np.abs(values), self.least), self.least
            )
        return np.exp2(np.floor(np.log2(sizes)) - self.digits + 1)


FORMATS = {
    "bfloat16": Format(tf.bfloat16, 8, 2.0**-126),
    "float16": Format(tf.float16, 11, 2.0**-14),
}


@dataclasses.dataclass(frozen=True)
class Row:
    """What was measured of one kernel.

    Attributes:
        op: its name, or "gradient of" it.
        precision: ``bfloat16`` or ``float16``.
        kernels: ``oneDNN``, ``Eigen``, or the device.
        off: how far the worst result is off, in ulp.
        where: the inputs of that, what came out, and what should have.
        float32: how far TensorFlow's float32 kernel is off at its worst, in the same ulp.
        lost: how much of a result is lost, in the units above, where float32's is not.
        lost_at: likewise.
        nonfinite: how many results are infinite or NaN, and finite in float64 and in float32.
        finite: how many are finite or NaN, and infinite, or beyond the type's range, in float64 and
            in float32.
        not_nan: how many are numbers, and NaN in float64 and in float32.
    """

    op: str
    precision: str
    kernels: str
    off: float
    where: str
    float32: float
    lost: float
    lost_at: str
    nonfinite: int
    finite: int
    not_nan: int

    @property
    def is_exact(self) -> bool:
        """Whether all results are those of float64."""
        return not (self.off or self.nonfinite or self.finite or self.not_nan)


def _pairs(compute: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """An op on pairs of each value with zero."""
    return lambda x: compute(tf.stack([x, tf.zeros_like(x)], axis=-1))


def _pooled(pool: Callable[..., Any]) -> Callable[[Any], Any]:
    return _pairs(
        lambda pairs: pool(tf.reshape(pairs, (1, -1, 2, 1)), (1, 1, 2, 1), (1, 1, 2, 1), "VALID")
    )


#: Ops of one operand that want more than values.
CALLS: dict[str, Callable[[Any], Any]] = {
    "AvgPool": _pooled(tf.nn.avg_pool2d),
    "ClipByValue": lambda x: tf.clip_by_value(x, tf.constant(-1, x.dtype), tf.constant(1, x.dtype)),
    "LogSoftmax": _pairs(lambda pairs: tf.nn.log_softmax(pairs)[..., 0]),
    "Max": _pairs(lambda pairs: tf.reduce_max(pairs, axis=-1)),
    "MaxPool": _pooled(tf.nn.max_pool2d),
    "Mean": _pairs(lambda pairs: tf.reduce_mean(pairs, axis=-1)),
    "Min": _pairs(lambda pairs: tf.reduce_min(pairs, axis=-1)),
    "Softmax": _pairs(lambda pairs: tf.nn.softmax(pairs)[..., 0]),
    "Sum": _pairs(lambda pairs: tf.reduce_sum(pairs, axis=-1)),
    "_MklSwish": lambda x: x * tf.sigmoid(x),
}
_ALPHA, _SCALE = 1.6732632423543772, 1.0507009873554805
#: What float64 kernels lose as well, by functions that do not.
EXACT: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "Elu": lambda x: np.where(x < 0, np.expm1(x), x),
    "LogSoftmax": lambda x: -np.logaddexp(0, -x),
    "Selu": lambda x: _SCALE * np.where(x < 0, _ALPHA * np.expm1(x), x),
    "gradient of LogSoftmax": lambda x: 1 / (1 + np.exp(x)),
    "gradient of Softmax": lambda x: 1 / (2 + np.exp(x) + np.exp(-x)),
}


def operands(op: str) -> list[str]:
    """The names of an op's inputs, if all are values of its one type and nothing else must be
    given; else none.
    """
    definition = op_def_registry.get(op)
    if definition is None or any(
        not a.HasField("default_value") and a.type != "type" for a in definition.attr
    ):
        return []
    types = {argument.type_attr for argument in definition.input_arg}
    is_list = any(argument.number_attr for argument in definition.input_arg)
    return (
        []
        if len(types) != 1 or types == {""} or is_list
        else [a.name for a in definition.input_arg]
    )


def _call(op: str) -> Callable[..., Any]:
    names = operands(op)
    return lambda *values: getattr(tf.raw_ops, op)(**dict(zip(names, values, strict=True)))


def _gradient(op: str) -> Callable[[Any], Any]:
    """A gradient op, of what it reads besides the gradient that comes in."""
    coming, other = sorted(operands(op), key=lambda name: name not in {"dy", "gradients"})
    return lambda x: getattr(tf.raw_ops, op)(**{coming: tf.ones_like(x), other: x})


def _by_tape(compute: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def gradient(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            result = compute(x)
        return tape.gradient(result, x)

    return gradient


def cases() -> Iterator[tuple[str, int, Callable[..., Any]]]:
    """What is measured: its name, how many operands it has, and itself."""
    listed = {
        row.op: row.op_list
        for row in table.ROWS
        if row.op_list in (table.ALLOW, table.INFER, table.CLEAR)
    }
    for op in dict.fromkeys((*listed, *sorted(table.SCALING))):
        count = 1 if op in CALLS else len(operands(op))
        if op in LEFT_OUT or op.endswith("Grad") or count not in (1, 2):
            continue
        compute = CALLS.get(op) or _call(op)
        yield op, count, compute
        if count == 1 and len(operands(op + "Grad")) == 2:
            yield op + "Grad", 1, _gradient(op + "Grad")
        elif count == 1 and listed[op] == table.INFER:
            yield f"gradient of {op}", 1, _by_tape(compute)


def pairs_of(form: Format) -> list[np.ndarray]:
    """256 × 256 pairs: special values and a grid of all numbers, with each other."""
    ulp = 2.0 ** (1 - form.digits)
    most = float(form.dtype.max)
    special = [0, form.least * ulp, form.least, 1 - ulp / 2, 1, 1 + ulp, most, np.inf]
    grid = form.of_bits(np.linspace(0, 2**16 - 1, 256 - 2 * len(special) - 1).round())
    values = np.concatenate([special, np.negative(special), [np.nan], grid])
    return [values.repeat(256), np.tile(values, 256)]


def ran(
    compute: Callable[..., Any], values: list[np.ndarray], dtype: tf.DType, device: str
) -> np.ndarray:
    """What an op gives in a type, as float64."""
    with tf.device(device):
        given = [tf.cast(tf.constant(value), dtype) for value in values]
        result = tf.function(compute, autograph=False)(*given)
        return tf.cast(result, tf.float64).numpy().reshape(-1)


def _moved(compute: Callable[[np.ndarray], np.ndarray], x: np.ndarray, form: Format) -> np.ndarray:
    """How much one ulp of the input changes a result, to the side where it changes it more."""
    step, here = form.ulp(x), compute(x)
    changes = [np.abs(compute(x + sign * step) - here) for sign in (1, -1)]
    return np.nan_to_num(np.fmax(*changes), nan=0, posinf=0)


def measured(
    op: str, count: int, compute: Callable[..., Any], precision: str, device: str, kernels: str
) -> Row:
    """One kernel, on all numbers of a type."""
    form = FORMATS[precision]
    values = [form.every()] if count == 1 else pairs_of(form)
    with np.errstate(all="ignore"):

        def ideal(*numbers: np.ndarray) -> np.ndarray:
            found = ran(compute, list(numbers), tf.float64, device)
            return (
                np.where(np.isfinite(found), EXACT[op](*numbers), found) if op in EXACT else found
            )

        exact = ideal(*values)
        ulp = form.ulp(exact)
        unit = np.maximum(ulp, _moved(ideal, values[0], form)) if count == 1 else ulp
        got = ran(compute, values, form.dtype, device)
        wide = ran(compute, values, tf.float32, device)
        rounded = form.rounded(exact)
        judged = np.all(
            [(value == 0) | (np.abs(value) >= LEAST_FLOAT32) | np.isnan(value) for value in values],
            axis=0,
        )
        normal = judged & np.isfinite(rounded) & ((exact == 0) | (np.abs(exact) >= form.least))
        off = np.where(normal & np.isfinite(got), np.abs(got - exact), 0)
        wide_off = np.where(normal, np.nan_to_num(np.abs(wide - exact) / ulp, nan=np.inf), 0)
        lost = np.where(wide_off <= 1, off / unit, 0)

    def at(place: np.intp) -> str:
        given = ", ".join(f"{value[place]:.6g}" for value in values)
        return f"{given}: {got[place]:.4g}, not {exact[place]:.4g}"

    worst, most = (off / ulp).argmax(), lost.argmax()
    return Row(
        op=op,
        precision=precision,
        kernels=kernels,
        off=float((off / ulp)[worst]),
        where=at(worst),
        float32=float(wide_off.max()),
        lost=float(lost[most]),
        lost_at=at(most),
        nonfinite=int(
            (judged & np.isfinite(rounded) & np.isfinite(wide) & ~np.isfinite(got)).sum()
        ),
        finite=int(
            (judged & np.isinf(rounded) & np.isinf(form.rounded(wide)) & ~np.isinf(got)).sum()
        ),
        not_nan=int((judged & np.isnan(exact) & np.isnan(wide) & ~np.isnan(got)).sum()),
    )


def measure(only: set[str], device: str, kernels: str) -> Iterator[Row]:
    """All kernels that this process has, or only some."""
    for op, count, compute in cases():
        if not only or op in only:
            for precision in FORMATS:
                yield measured(op, count, compute, precision, device, kernels)


def inaccurate(text: str) -> set[str]:
    """The ops of which a written table says that they lose more than :data:`MOST`."""
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in text.splitlines()
        if line.startswith("| ")
    ]
    return {
        row[0]
        for row in rows
        if row[0] != "op" and " " not in row[0] and float(row[6].split()[0]) > MOST
    }


def _merged(rows: list[Row]) -> list[Row]:
    """Rows that are alike for several kernels as one, those of an op together."""
    found: dict[Row, str] = {}
    for row in rows:
        like = dataclasses.replace(row, kernels="")
        found[like] = f"{found[like]}, {row.kernels}" if like in found else row.kernels
    order = list(dict.fromkeys(row.op for row in rows))
    merged = [dataclasses.replace(like, kernels=kernels) for like, kernels in found.items()]
    return sorted(merged, key=lambda row: (order.index(row.op), row.precision))


def page(rows: list[Row], where: str) -> str:
    """The table, in Markdown.

    Args:
        rows: what was measured.
        where: the hardware, for people.
    """
    exact = {row.op for row in rows} - {row.op for row in rows if not row.is_exact}
    lines = [
        "# How exact TensorFlow's 16-bit kernels are",
        "",
        f"`python -m benchmarks.kernel_accuracy --write`, {time.strftime('%Y-%m-%d')}, {where}, "
        "TensorFlow "
        f"{tf.__version__}. The command's docstring says what the columns mean.",
        "",
        f"Exact on all numbers: {', '.join(sorted(exact)) or 'none'}.",
        "",
        "| op | type | kernels | off, ulp | at | float32 off, ulp | lost | at | nonfinite | not "
        "infinite | not NaN |",
        "|---|---|---|---:|---|---:|---:|---|---:|---:|---:|",
    ]
    for row in _merged(rows):
        if row.op not in exact:
            counts = " | ".join(
                str(count or "") for count in (row.nonfinite, row.finite, row.not_nan)
            )
            lost_at = row.lost_at if row.lost > MOST else ""
            lines.append(
                f"| {row.op} | {row.precision} | {row.kernels} | {row.off:.2f} | {row.where} | "
                f"{row.float32:.2g} | "
                f"{row.lost:.2f} | {lost_at} | {counts} |"
            )
    return "\n".join(lines) + "\n"


def hardware(device: str) -> str:
    """What the kernels run on, for people."""
    kind, _, number = device.partition(":")
    if kind == "CPU":
        return " ".join(
            [
                cpu_name(),
                *(flag for flag in EXTENSIONS if flag in cpu_info().get("flags", "").split()),
            ]
        )
    details = tf.config.experimental.get_device_details(
        tf.config.list_physical_devices(kind)[int(number or 0)]
    )
    return str(details.get("device_name", device))


def _in_process(form: str, arguments: list[str]) -> list[Row]:
    """What a process measures whose TensorFlow has one form of kernels."""
    command = [sys.executable, "-m", "benchmarks.kernel_accuracy", "--kernels", form, *arguments]
    environment = {**os.environ, "TF_ENABLE_ONEDNN_OPTS": FORMS[form], "AMP_TF_DISABLE": "1"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, text=True)
    return [Row(**json.loads(line)) for line in done.stdout.splitlines()]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="ops by name, with commas between them")
    parser.add_argument(
        "--device", default="CPU:0", help="such as GPU:0; there, kernels have one form"
    )
    parser.add_argument(
        "--write", nargs="?", type=Path, const=WRITTEN, help=f"a file for the table; {WRITTEN.name}"
    )
    parser.add_argument(
        "--kernels", help=argparse.SUPPRESS
    )  # in a process of its own: rows as JSON
    options = parser.parse_args()
    tf.get_logger().setLevel("ERROR")  # it warns of functions that are traced for one call
    only = set(filter(None, options.only.split(",")))
    if options.kernels:
        for row in measure(only, options.device, options.kernels):
            print(json.dumps(dataclasses.asdict(row)), flush=True)
        return 0
    if options.device.startswith("CPU"):
        rows = [
            row
            for form in FORMS
            for row in _in_process(form, ["--only", options.only, "--device", options.device])
        ]
    else:
        rows = list(measure(only, options.device, options.device))
    text = page(rows, hardware(options.device))
    print(text)
    if options.write:
        options.write.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
