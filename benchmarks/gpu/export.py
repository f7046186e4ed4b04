"""Writes steps as XLA is given them, as StableHLO text, in float32, under Keras' policy and with
amp_tf.

    python -m benchmarks.gpu export --models resnet50,bert --out exported

A training step is forward, backward and Adam under ``jit_compile=True``, in float16 with loss
scaling: Keras' with its policy, amp_tf's with amp_tf. An inference step is the model alone.
Each file ``….mlir.gz`` has a ``….json`` beside it that says what its arguments are and how to make
up values for them. Needs TensorFlow 2.21; no GPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import gzip
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.gpu import steps, virtual
from benchmarks.gpu.stablehlo import count_casts, count_products
from benchmarks.models.cases import CASES, SIZES, names

WAYS = ("train", "predict")
_COPY = re.compile(r"mhlo\.copy (%\S+) : (tensor<[^>]*>)")


@dataclasses.dataclass(frozen=True)
class Variant:
    """One way to make the step.

    Attributes:
        name: what files and tables call it.
        policy: the Keras policy.
        amp: the precision that amp_tf is asked for, or ``None`` for no amp_tf.
        loss_scaling: ``"keras"``, ``"amp_tf"`` or ``None``.
    """

    name: str
    policy: str = "float32"
    amp: str | None = None
    loss_scaling: str | None = None


_ROWS = (
    Variant("float32"),
    Variant("policy_float16", policy="mixed_float16", loss_scaling="keras"),
    Variant("amp_float16", amp="float16", loss_scaling="amp_tf"),
    Variant("policy_bfloat16", policy="mixed_bfloat16"),
    Variant("amp_bfloat16", amp="bfloat16"),
)
VARIANTS = {row.name: row for row in _ROWS}


def prepare(variant: Variant) -> None:
    """Sets what a variant is for this process."""
    import keras

    keras.mixed_precision.set_global_policy(variant.policy)
    if variant.amp:
        from amp_tf.config import AmpConfig
        from amp_tf.hooks import state, switch, xla

        virtual.pretend("9.0")
        state.note(config=AmpConfig(precision=variant.amp, target="gpu"))
        switch.install(xla.__name__)


def export(model_name: str, size: str, way: str, variant: Variant, out: Path) -> Path:
    """Exports one step of one model, in a process that is prepared for the variant.

    Returns:
        The path of the ``.mlir.gz`` file.
    """
    import keras
    import tensorflow as tf

    keras.utils.set_random_seed(0)
    case = CASES[model_name]
    workload = case.workload(size)
    model = workload.model()
    optimizer = None
    samples = tf.nest.flatten(workload.data(4, 0))
    inputs = steps.specs(workload, workload.batch)
    if way == "train":
        optimizer = steps.optimizer(workload, variant.loss_scaling)
        optimizer.build(model.trainable_variables)
        step = steps.step(workload, model, optimizer, jit_compile=True)
    else:
        step = steps.inference(model, jit_compile=True)
        samples = samples[:-1]
        inputs = inputs[:-1]
    begin = time.perf_counter()
    text = plain(step.experimental_get_compiler_ir(*inputs)(stage="stablehlo"))
    products = count_products(text)
    refuse_unconverted(variant, products)
    manifest = {
        "model": model_name,
        "title": case.title,
        "size": size,
        "way": way,
        "batch": workload.batch,
        "variant": variant.name,
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "export_s": round(time.perf_counter() - begin, 2),
        "products": dict(products),
        "casts": count_casts(text),
        "arguments": _arguments(
            step.get_concrete_function(*inputs), samples, inputs, model, optimizer
        ),
    }
    out.mkdir(parents=True, exist_ok=True)
    stem = f"{model_name}-{way}-{variant.name}"
    (out / f"{stem}.json").write_text(json.dumps(manifest, indent=1))
    path = out / f"{stem}.mlir.gz"
    path.write_bytes(gzip.compress(text.encode(), 6))
    return path


def plain(text: str) -> str:
    """StableHLO alone: TensorFlow copies results by an ``mhlo.copy``, which other compilers refuse.

    A reshape to the same shape stands in its place; XLA copies by itself where it must.
    """
    return _COPY.sub(r"stablehlo.reshape \1 : (\2) -> \2", text)


def refuse_unconverted(variant: Variant, products: Mapping[str, int]) -> None:
    """Refuses a step of amp_tf without a 16-bit product: its row would show float32's figures as
    amp_tf's.

    Args:
        variant: what was asked for.
        products: what :func:`count_products` counted.

    Raises:
        RuntimeError: nothing was converted; a warning of amp_tf says why.
    """
    if variant.amp and not any("f16" in kind for kind in products):
        raise RuntimeError(
            f"variant {variant.name}: no product is in 16 bit; see amp_tf's warning above"
        )


def _arguments(
    concrete: Any, samples: Any, inputs: Any, model: Any, optimizer: Any
) -> list[dict[str, Any]]:
    """Describes the arguments of the compiled step, in order, with made-up values."""
    import tensorflow as tf

    rows = []
    for number, (spec, sample) in enumerate(zip(inputs, samples, strict=True)):
        name = f"input_{number}"
        shape = list(spec.shape)
        dtype = spec.dtype.name
        fill = _fill(sample)
        rows.append({"name": name, "shape": shape, "dtype": dtype, "role": "input", "fill": fill})
    known = {}
    if optimizer:
        for variable in optimizer.variables:
            known[id(variable.value.handle)] = (variable.path, "state")
    for variable in model.variables:
        known[id(variable.value.handle)] = (variable.path, "weight")
    for handle in concrete.captured_inputs:
        if handle.dtype == tf.resource:
            # graph.variables lacks those that only a branch captured
            (held,) = handle._handle_data.shape_and_type
            value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=held.dtype).numpy()
            name, role = known.get(id(handle), (f"state_{len(rows)}", "state"))
        else:
            value = handle.numpy()
            name = f"constant_{len(rows)}"
            role = "constant"
        fill = _fill(value)
        if name.endswith("velocity"):
            fill = {"constant": 1e-8}
        shape = list(value.shape)
        dtype = value.dtype.name
        rows.append({"name": name, "shape": shape, "dtype": dtype, "role": role, "fill": fill})
    return rows


def _fill(value: Any) -> dict[str, Any]:
    """Describes how to make up values that are spread as these are."""
    if value.size and (value == value.flat[0]).all():
        return {"constant": value.flat[0].item()}
    if value.dtype.kind in "iu":
        return {"low": int(value.min()), "high": int(value.max())}
    return {"mean": float(value.mean()), "std": float(value.std())}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", default="all", help="names, comma-separated, or all")
    parser.add_argument("--size", default="wide", choices=SIZES)
    parser.add_argument("--ways", default=",".join(WAYS), help="names, comma-separated")
    parser.add_argument(
        "--variants",
        default=",".join(VARIANTS),
        help=f"names, comma-separated, of {', '.join(VARIANTS)}",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("exported"), help="the folder of the steps"
    )
    parser.add_argument(
        "--here", action="store_true", help="no process for each variant (one variant)"
    )


def main(options: argparse.Namespace) -> int:
    """Exports the steps; a variant is a state of its process, so each has its own."""
    if options.here:
        return _export_all(options)
    failed = 0
    for variant in options.variants.split(","):
        command = [sys.executable, "-m", "benchmarks.gpu", "export", "--here"]
        command += ["--variants", variant]
        for name in ("models", "size", "ways", "out"):
            command += [f"--{name}", str(getattr(options, name))]
        environment = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "", **os.environ}
        failed += subprocess.run(command, check=False, env=environment).returncode != 0
    return int(failed > 0)


def _export_all(options: argparse.Namespace) -> int:
    variant = VARIANTS[options.variants]
    prepare(variant)
    failed = 0
    for model in names(options.models):
        for way in options.ways.split(","):
            try:
                print(export(model, options.size, way, variant, options.out), file=sys.stderr)
            # One model that cannot be exported leaves the others their files.
            except Exception as error:
                failed += 1
                print(
                    f"{model} {way} {variant.name}: {type(error).__name__}: {error}",
                    file=sys.stderr,
                )
            gc.collect()
    return int(failed > 0)
