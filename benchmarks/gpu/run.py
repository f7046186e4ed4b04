"""Times exported steps where a GPU is at hand, in one command. Needs JAX and NumPy, no TensorFlow.

    pip install "jax[cuda12]==0.10.2"
    python -m benchmarks.gpu run exported --json result.json > table.md

Every variant of a step runs with the same made-up weights and inputs. The table gives the median
time of a step, the speed-up over float32, XLA's temporary memory, and how the first step differs
from float32's: its loss, and its changes of all weights (of inference, its output). Steps that do
not fit into ``--minutes`` are left out.
"""

from __future__ import annotations

import argparse
import dataclasses
import gzip
import json
import statistics
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.export import VARIANTS, WAYS
from benchmarks.gpu.stablehlo import carried_state, unpack_booleans
from benchmarks.models.cases import CASES

REFERENCE = "float32"
LOSS_TOLERANCE = 0.05
"""Largest relative difference of the first loss from float32's that still counts as the same
computation.
"""
COSINE_TOLERANCE = 0.9
"""Smallest cosine between the weight changes of the first step and float32's."""


@dataclasses.dataclass(frozen=True)
class Result:
    """The measurement of one variant.

    Attributes:
        manifest: the exported description.
        ms: median time of a step, milliseconds.
        spread: half the distance between the quartiles of the rounds, as a fraction of the median.
        temp_mib: memory for temporary values, MiB.
        loss: the first step's loss; of inference the mean size of its output.
        change: the first step's changes of all weights, as one float32 vector; of inference the
            output.
    """

    manifest: dict[str, Any]
    ms: float
    spread: float
    temp_mib: float
    loss: float
    change: np.ndarray


def made_up(argument: dict[str, Any]) -> np.ndarray:
    """Values for one argument; the same for arguments of the same name and shape."""
    shape = tuple(argument["shape"])
    fill = argument["fill"]
    if "constant" in fill:
        return np.full(shape, fill["constant"], argument["dtype"])
    rng = np.random.default_rng(zlib.crc32(f"{argument['name']} {shape}".encode()))
    if "low" in fill:
        return rng.integers(fill["low"], fill["high"] + 1, shape).astype(argument["dtype"])
    return (rng.standard_normal(shape, np.float32) * fill["std"] + fill["mean"]).astype(
        argument["dtype"]
    )


class Step:
    """One compiled training step, and the state that it carries on.

    Args:
        text: the StableHLO module.
        arguments: the manifest's arguments.
    """

    def __init__(self, text: str, arguments: list[dict[str, Any]]) -> None:
        import jax
        from jaxlib import xla_client

        self._device = jax.devices()[0]
        devices = xla_client.DeviceList((self._device,))
        compile_text = self._device.client.compile_and_load
        try:
            self._program = compile_text(text.encode(), devices, xla_client.CompileOptions())
        except Exception as error:
            if "hex data size" not in str(error):
                raise
            self._program = compile_text(
                unpack_booleans(text).encode(), devices, xla_client.CompileOptions()
            )
        self.carried = carried_state(text)
        self._values = [jax.device_put(made_up(argument), self._device) for argument in arguments]

    def __call__(self) -> list[Any]:
        """Runs the step; what it updates is an argument of the next one."""
        outputs = [
            output[0]
            for output in self._program.execute_sharded(
                self._values
            ).disassemble_into_single_device_arrays()
        ]
        for output, argument in self.carried.items():
            self._values[argument] = outputs[output]
        return outputs

    @property
    def temp_mib(self) -> float:
        return self._program.get_compiled_memory_stats().temp_size_in_bytes / 2**20


def measure(manifest: dict[str, Any], text: str, rounds: int, round_s: float) -> Result:
    """Compiles a step, checks its first turn and times the following ones."""
    step = Step(text, manifest["arguments"])
    weights = {
        n: made_up(row) for n, row in enumerate(manifest["arguments"]) if row["role"] == "weight"
    }
    outputs = step()
    first = np.asarray(outputs[0], np.float32)
    changes = [
        (np.asarray(outputs[output], np.float32) - weights[argument]).ravel()
        for output, argument in sorted(step.carried.items(), key=lambda pair: pair[1])
        if argument in weights
    ] or [first.ravel()]
    _timed(step, 2)
    turns = max(1, int(round_s / max(_timed(step, 2), 1e-6)))
    times = [_timed(step, turns) for _ in range(rounds)]
    median = statistics.median(times)
    quartiles = statistics.quantiles(times, n=4) if rounds > 1 else [median] * 3
    return Result(
        manifest=manifest,
        ms=1e3 * median,
        spread=(quartiles[2] - quartiles[0]) / 2 / median,
        temp_mib=step.temp_mib,
        loss=float(np.abs(first).mean()),
        change=np.concatenate(changes),
    )


def _timed(step: Step, turns: int) -> float:
    """Seconds for one turn, the mean of several that the device runs one after the other."""
    begin = time.perf_counter()
    for _ in range(turns):
        outputs = step()
    for output in outputs:
        output.block_until_ready()
    return (time.perf_counter() - begin) / turns


def compare(result: Result, reference: Result | None) -> dict[str, Any]:
    """The figures of a variant, and how it differs from float32's where that ran."""
    named = ("model", "title", "size", "way", "batch", "variant", "products", "casts")
    row = {name: result.manifest[name] for name in named}
    row |= {"ms": result.ms, "spread": result.spread, "temp_mib": result.temp_mib}
    if reference is None:
        return row
    row["speedup"] = reference.ms / result.ms
    row["memory_ratio"] = result.temp_mib / max(reference.temp_mib, 1e-9)
    row["loss_differs"] = abs(result.loss - reference.loss) / max(abs(reference.loss), 1e-9)
    row["cosine"] = cosine(result.change, reference.change)
    row["agrees"] = row["loss_differs"] <= LOSS_TOLERANCE and row["cosine"] >= COSINE_TOLERANCE
    return row


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    """The cosine of the angle between two vectors, summed in float64; 1.0 where both are zero."""
    norms = float(np.sqrt(np.sum(a * a, dtype=np.float64) * np.sum(b * b, dtype=np.float64)))
    return float(np.sum(a * b, dtype=np.float64)) / norms if norms else 1.0


FORMATS = {
    "ms": "{:.2f}",
    "spread": "{:.1%}",
    "speedup": "{:.2f}",
    "temp_mib": "{:.1f}",
    "memory_ratio": "{:.2f}",
    "loss_differs": "{:.1e}",
    "cosine": "{:.4f}",
}  #: the columns of figures, and how they are written


def table(rows: list[dict[str, Any]]) -> str:
    """The results as Markdown."""
    heads = ["model", "way", "batch", "variant", *FORMATS, "products", "agrees"]
    lines = [f"| {' | '.join(heads)} |", "|---|---|---|---|" + "---:|" * len(FORMATS) + "---|---|"]
    for row in rows:
        cells = [row["title"], row["way"], str(row["batch"]), row["variant"]]
        for key, form in FORMATS.items():
            cells.append(form.format(row[key]) if key in row else "–")
        cells.append(
            ", ".join(f"{count} {kind}" for kind, count in sorted(row["products"].items()))
        )
        cells.append("yes" if row.get("agrees", True) else "**no**")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def machine() -> dict[str, str]:
    """Date, device, driver, version and command."""
    import jax

    device = jax.devices()[0]
    facts = {
        "date": time.strftime("%Y-%m-%d"),
        "device": str(device.device_kind),
        "jax": jax.__version__,
        "command": " ".join(sys.argv),
    }
    if device.platform != "gpu":
        facts["attention"] = "this is not a GPU: the times say nothing of one"
        return facts
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    facts["driver"] = subprocess.check_output(query, text=True).strip()
    return facts


def find(folder: Path, only: str) -> list[list[Path]]:
    """The manifests in a folder, those of one step together, in the order of the tables.

    Raises:
        FileNotFoundError: there are none.
    """
    steps: dict[tuple[int, int], dict[int, Path]] = {}
    for path in folder.glob("*.json"):
        model, _, rest = path.stem.partition("-")
        way, _, variant = rest.partition("-")
        if only in path.name and path.with_suffix(".mlir.gz").exists():
            row = steps.setdefault((WAYS.index(way), list(CASES).index(model)), {})
            row[list(VARIANTS).index(variant)] = path
    if not steps:
        raise FileNotFoundError(
            f"{folder} holds no steps: python -m benchmarks.gpu export --out {folder}"
        )
    return [
        [variants[number] for number in sorted(variants)] for _, variants in sorted(steps.items())
    ]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", type=Path, nargs="?", default=Path("exported"), help="what export wrote"
    )
    parser.add_argument(
        "--rounds", type=int, default=15, help="rounds of each variant; their median counts"
    )
    parser.add_argument(
        "--round-s", type=float, default=0.1, help="least length of a round, seconds"
    )
    parser.add_argument("--minutes", type=float, default=9.0, help="no step is begun after these")
    parser.add_argument("--only", default="", help="only files whose name holds this")
    parser.add_argument("--json", type=Path, help="write all figures here")


def main(options: argparse.Namespace) -> int:
    """Times what is in the folder; 1 where a variant failed or differs from float32."""
    import jax

    jax.config.update("jax_enable_x64", True)
    end = time.monotonic() + 60 * options.minutes
    rows: list[dict[str, Any]] = []
    failures: list[str] = []
    left_out: list[str] = []
    for paths in find(options.folder, options.only):
        if time.monotonic() > end:
            left_out.append(f"left out, no time: {paths[0].stem.rpartition('-')[0]}")
            continue
        reference = None
        for path in paths:
            manifest = json.loads(path.read_text())
            text = gzip.decompress(path.with_suffix(".mlir.gz").read_bytes()).decode()
            try:
                result = measure(manifest, text, options.rounds, options.round_s)
            except Exception as error:  # the other variants keep their rows
                failures.append(f"{path.stem}: {type(error).__name__}: {str(error)[:300]}")
                continue
            print(f"{path.stem}: {result.ms:.2f} ms", file=sys.stderr)
            if manifest["variant"] == REFERENCE:
                reference = result
            rows.append(compare(result, reference))
        if options.json:
            found = {"machine": machine(), "rows": rows, "failures": failures, "left_out": left_out}
            options.json.write_text(json.dumps(found, indent=1))
    facts = (f"{key}: {value}" for key, value in machine().items())
    print(*facts, "", table(rows), "", *failures, *left_out, sep="\n")
    return 1 if failures or not all(row.get("agrees", True) for row in rows) else 0
