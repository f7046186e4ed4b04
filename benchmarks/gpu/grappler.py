"""Training steps through TensorFlow's graph optimizers for virtual GPUs, in float32 and three kinds
of 16 bit.

    python -m benchmarks.gpu grappler --models all --json grappler.json > grappler.md

Each mode has a process of its own: a Keras policy and a registered plugin are the process' own.
They run in ``.venv/gpu-tensorflow``, made where it is missing (:mod:`benchmarks.gpu.environment`):
TensorFlow's own pass converts what has a GPU kernel in the running TensorFlow.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu import environment, virtual
from benchmarks.gpu.cases import names
from benchmarks.gpu.graphs import GRAPHS

CAPABILITIES = ("7.0", "8.0", "9.0")


@dataclasses.dataclass(frozen=True)
class Mode:
    """One way to get mixed precision, or none.

    Attributes:
        title: what tables call it.
        has_policy: whether Keras' mixed policy is set.
        loss_scaling: whose, where the precision is float16.
        own_pass: whether TensorFlow's pass is on.
    """

    title: str
    has_policy: bool = False
    loss_scaling: str | None = None
    own_pass: bool = False


MODES = {
    "float32": Mode("float32"),
    "tf_pass": Mode("TensorFlow's pass", loss_scaling="keras", own_pass=True),
    "policy": Mode("Keras policy", has_policy=True, loss_scaling="keras"),
    "amp_tf": Mode("amp_tf", loss_scaling="amp_tf"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", default="all", help="names, comma-separated, or all")
    parser.add_argument("--modes", default=",".join(MODES), help="names, comma-separated")
    parser.add_argument("--precision", default="float16", choices=("float16", "bfloat16"))
    parser.add_argument(
        "--capabilities",
        default=",".join(CAPABILITIES),
        help="compute capabilities, comma-separated",
    )
    parser.add_argument(
        "--json", type=Path, help="write the rows here; rows of other graphs in it are kept"
    )
    parser.add_argument(
        "--here", action="store_true", help="print the rows of one mode, made in this process"
    )


def main(options: argparse.Namespace) -> int:
    if options.here:
        print(json.dumps(rows(options.modes, options)))
        return 0
    environment.TENSORFLOW.prepare()
    found = read(options.json) if options.json and options.json.exists() else []
    for mode in options.modes.split(","):
        command = [
            environment.TENSORFLOW.python,
            "-m",
            "benchmarks.gpu",
            "grappler",
            "--here",
            "--modes",
            mode,
        ]
        for name in ("models", "precision", "capabilities"):
            command += [f"--{name}", getattr(options, name)]
        ended = subprocess.run(
            command, check=True, stdout=subprocess.PIPE, text=True, cwd=environment.ROOT
        )
        made = json.loads(ended.stdout.splitlines()[-1])
        done = {_key(row) for row in made}
        found = [row for row in found if _key(row) not in done] + made
    if options.json:
        write(options.json, found)
    print(table(found))
    return 0


def rows(mode_name: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """What one mode makes of the models; to be called once in a process."""
    mode = MODES[mode_name]
    if mode.has_policy:
        import keras
        import tf_keras

        for module in (keras, tf_keras):
            module.mixed_precision.set_global_policy(f"mixed_{options.precision}")
    if mode_name == "amp_tf":
        import amp_tf

        amp_tf.enable(precision=options.precision, target="gpu")
    found = []
    for name in names(options.models, GRAPHS):
        if mode.has_policy and not GRAPHS[name].has_policy:
            continue
        graph, ends = GRAPHS[name].make(
            mode.loss_scaling if options.precision == "float16" else None
        )
        virtual.place(graph)
        for capability in options.capabilities.split(","):
            if mode_name == "amp_tf":
                virtual.pretend(capability)
            counted = virtual.count(
                virtual.optimize(graph, ends, capability, own_pass=mode.own_pass)
            )
            row = {
                "model": name,
                "capability": capability,
                "mode": mode_name,
                "precision": options.precision,
            }
            found.append(row | dataclasses.asdict(counted))
    return found


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSON file that this command wrote."""
    return list(json.loads(path.read_text()))


def write(path: Path, found: Sequence[Mapping[str, Any]]) -> None:
    """Writes rows, one a line, in the order of the table."""
    path.write_text(
        "[\n" + ",\n".join(json.dumps(row) for row in sorted(found, key=_key)) + "\n]\n"
    )


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return (
        list(GRAPHS).index(row["model"]),
        list(MODES).index(row["mode"]),
        row["capability"],
        row["precision"],
    )


def table(found: Sequence[Mapping[str, Any]]) -> str:
    """The rows as Markdown, the modes of a graph one below the other.

    Compute capabilities for which a mode makes the same of it share a row.
    """
    lines = [
        "| graph | | GPUs | convolutions | products | Transposes | casts |",
        "|---|---|---|---|---|---:|---:|",
    ]
    same: dict[tuple[str, ...], list[str]] = {}
    for row in sorted(found, key=_key):
        counts = (
            _counts(row["convolutions"]),
            _counts(row["products"]),
            str(row["transposes"]),
            str(row["casts"]),
        )
        same.setdefault((row["model"], row["mode"], *counts), []).append(row["capability"])
    for (model, mode, *counts), capabilities in same.items():
        lines.append(
            f"| {' | '.join([GRAPHS[model].title, MODES[mode].title, ', '.join(capabilities), *counts])} |"
        )
    return "\n".join(lines)


def _counts(found: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {kind}" for kind, number in found.items())
