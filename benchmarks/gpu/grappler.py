"""Training steps through TensorFlow's graph optimizers for virtual GPUs, in float32 and three kinds of 16 bit.

Each mode has a process of its own: a Keras policy and a registered plugin are the process' own.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.gpu import steps, virtual
from benchmarks.models import SIZES, benchmark, names

CAPABILITIES = ("7.0", "8.0", "9.0")
MODELS = "convnet,resnet50,gnmt,bert"


@dataclasses.dataclass(frozen=True)
class Mode:
    """One way to get mixed precision, or none.

    Attributes:
        title: what tables call it.
        has_policy: whether Keras' mixed policy is set.
        loss_scaling: whose, where the precision is float16.
        own_pass: whether TensorFlow's pass is on.
        needs_cuda: whether it takes a TensorFlow that is built for CUDA.
    """

    title: str
    has_policy: bool = False
    loss_scaling: str | None = None
    own_pass: bool = False
    needs_cuda: bool = False


MODES = {
    "float32": Mode("float32"),
    "tf_pass": Mode("TensorFlow's pass", loss_scaling="keras", own_pass=True, needs_cuda=True),
    "policy": Mode("Keras policy", has_policy=True, loss_scaling="keras"),
    "amp_tf": Mode("amp_tf", loss_scaling="amp_tf"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", default=MODELS, help="names, comma-separated")
    parser.add_argument("--size", default="tiny", choices=SIZES)
    parser.add_argument("--modes", default=",".join(MODES), help="names, comma-separated")
    parser.add_argument("--precision", default="float16", choices=("float16", "bfloat16"))
    parser.add_argument("--capabilities", default=",".join(CAPABILITIES), help="compute capabilities, comma-separated")
    parser.add_argument("--json", action="store_true", help="rows as JSON; one mode, in this process")


def main(options: argparse.Namespace) -> int:
    if options.json:
        print(json.dumps(rows(options.modes, options)))
        return 0
    found: list[dict[str, Any]] = []
    for mode in options.modes.split(","):
        if MODES[mode].needs_cuda and not _is_built_with_cuda():
            print(f"no rows of {MODES[mode].title}: this TensorFlow has no GPU kernels", file=sys.stderr)
            continue
        command = [sys.executable, "-m", "benchmarks.gpu", "grappler", "--json", "--modes", mode]
        for name in ("models", "size", "precision", "capabilities"):
            command += [f"--{name}", getattr(options, name)]
        ended = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        found += json.loads(ended.stdout.splitlines()[-1])
    print(table(found))
    return 0


def rows(mode_name: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """What one mode makes of the models; to be called once in a process."""
    import keras

    mode = MODES[mode_name]
    keras.mixed_precision.set_global_policy(f"mixed_{options.precision}" if mode.has_policy else "float32")
    if mode_name == "amp_tf":
        import amp_tf

        amp_tf.enable(precision=options.precision, target="gpu")
    found = []
    for name in names(options.models):
        graph, ends = step_graph(name, options.size, mode.loss_scaling if options.precision == "float16" else None)
        for capability in options.capabilities.split(","):
            if mode_name == "amp_tf":
                pretend(capability)
            counted = virtual.count(virtual.optimize(graph, ends, capability, own_pass=mode.own_pass))
            found.append({"model": name, "capability": capability, "mode": mode_name, **dataclasses.asdict(counted)})
    return found


def step_graph(name: str, size: str, loss_scaling: str | None) -> tuple[Any, list[str]]:
    """The placed graph of a model's training step, and the nodes that are wanted of it."""
    workload = benchmark(name).workload(size)
    workload.keras.utils.set_random_seed(0)
    model, optimizer = workload.model(), steps.optimizer(workload, loss_scaling)
    optimizer.build(model.trainable_variables)
    step = steps.step(workload, model, optimizer, jit_compile=False)
    concrete = step.get_concrete_function(*steps.specs(workload, workload.batch))
    operations = (*(tensor.op for tensor in concrete.graph.outputs), *concrete.graph.control_outputs)
    return virtual.place(concrete.graph.as_graph_def()), [operation.name for operation in operations]


def pretend(capability: str) -> None:
    """Makes amp_tf see a GPU of this compute capability, as it would on a machine with one."""
    from amp_tf.hooks import devices
    from amp_tf.oplists.hardware import Hardware

    major, minor = map(int, capability.split("."))
    seen = dataclasses.replace(Hardware.detect_cpu(), gpu_capabilities=((major, minor),))
    devices.hardware = lambda: seen


def table(found: Sequence[Mapping[str, Any]]) -> str:
    """The rows as Markdown, the modes of a model and a compute capability one below the other."""
    lines = [
        "| model | GPU | | convolutions | products | Transposes | casts |",
        "| --- | --- | --- | --- | --- | ---: | ---: |",
    ]
    order = list(MODES)
    first = {row["model"]: number for number, row in reversed(list(enumerate(found)))}
    for row in sorted(found, key=lambda row: (first[row["model"]], row["capability"], order.index(row["mode"]))):
        cells = [benchmark(row["model"]).title, row["capability"], MODES[row["mode"]].title]
        cells += [_counts(row["convolutions"]), _counts(row["products"]), str(row["transposes"]), str(row["casts"])]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _counts(found: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {kind}" for kind, number in found.items())


def _is_built_with_cuda() -> bool:
    import tensorflow as tf

    return bool(tf.test.is_built_with_cuda())
