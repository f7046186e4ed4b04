"""Writes the compiled training step of benchmark models as StableHLO text, in several variants.

    python -m benchmarks.xla_gpu.export --models resnet50,bert --size real --out exported

The step is forward, backward and Adam under ``jit_compile=True``. The variants are ``float32`` (TF32 allowed, as
TensorFlow's default on a GPU is), ``float32_strict`` (TF32 off), ``policy_float16`` (Keras' ``mixed_float16`` policy
and loss scaling), ``amp_float16`` (amp_tf with its loss scaling) and ``amp_bfloat16``; ``policy_bfloat16`` is made
where it is asked for. Each file ``….mlir.gz`` has a ``….json`` beside it that says what its arguments are and how to
make up values for them. Needs TensorFlow 2.21; no GPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import gzip
import json
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.gpu import steps
from benchmarks.models import BENCHMARKS, SIZES, names
from benchmarks.xla_gpu.stablehlo import count_casts, count_products


@dataclasses.dataclass(frozen=True)
class Variant:
    """One way to make the step.

    Attributes:
        name: what files and tables call it.
        policy: the Keras policy.
        amp: the precision that amp_tf is asked for, or ``None`` for no amp_tf.
        loss_scaling: ``"keras"``, ``"amp_tf"`` or ``None``.
        tf32: whether float32 products may be computed in TF32.
    """

    name: str
    policy: str = "float32"
    amp: str | None = None
    loss_scaling: str | None = None
    tf32: bool = True


VARIANTS = {
    row.name: row
    for row in (
        Variant("float32"),
        Variant("float32_strict", tf32=False),
        Variant("policy_float16", policy="mixed_float16", loss_scaling="keras"),
        Variant("amp_float16", amp="float16", loss_scaling="amp_tf"),
        Variant("amp_bfloat16", amp="bfloat16"),
        Variant("policy_bfloat16", policy="mixed_bfloat16"),
    )
}
DEFAULT_VARIANTS = "float32,float32_strict,policy_float16,amp_float16,amp_bfloat16"


def export(model_name: str, size: str, batch: int | None, variant: Variant, out: Path) -> Path:
    """Exports one variant of one model; to be called once in a process.

    Returns:
        The path of the ``.mlir.gz`` file.
    """
    import keras
    import tensorflow as tf

    tf.config.experimental.enable_tensor_float_32_execution(variant.tf32)
    keras.mixed_precision.set_global_policy(variant.policy)
    keras.utils.set_random_seed(0)
    if variant.amp:
        from amp_tf.config import AmpConfig
        from amp_tf.hooks.xla import functions as xla

        xla.install(AmpConfig(precision=variant.amp, target="gpu"))
    workload = BENCHMARKS[model_name].workload(size)
    batch = batch or workload.batch
    model, optimizer = workload.model(), steps.optimizer(workload, variant.loss_scaling)
    optimizer.build(model.trainable_variables)
    step = steps.step(workload, model, optimizer, jit_compile=True)
    samples, inputs = tf.nest.flatten(workload.data(4, 0)), steps.specs(workload, batch)
    begin = time.perf_counter()
    text = step.experimental_get_compiler_ir(*inputs)(stage="stablehlo")
    products = count_products(text)
    refuse_unconverted(variant, products)
    manifest = {
        "model": model_name,
        "title": BENCHMARKS[model_name].title,
        "size": size,
        "batch": batch,
        "variant": variant.name,
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "export_s": round(time.perf_counter() - begin, 2),
        "products": dict(products),
        "casts": count_casts(text),
        "arguments": _arguments(step.get_concrete_function(*inputs), samples, inputs, model, optimizer),
    }
    out.mkdir(parents=True, exist_ok=True)
    stem = f"{model_name}-b{batch}-{variant.name}"
    (out / f"{stem}.json").write_text(json.dumps(manifest, indent=1))
    path = out / f"{stem}.mlir.gz"
    path.write_bytes(gzip.compress(text.encode(), 6))
    return path


def refuse_unconverted(variant: Variant, products: Mapping[str, int]) -> None:
    """Refuses a step of amp_tf without a 16-bit product: its row would show float32's figures as amp_tf's.

    Args:
        variant: what was asked for.
        products: what :func:`count_products` counted.

    Raises:
        RuntimeError: nothing was converted; a warning of amp_tf says why.
    """
    if variant.amp and not any("f16" in kind for kind in products):
        raise RuntimeError(f"variant {variant.name}: no product is in 16 bit; see amp_tf's warning above")


def _arguments(concrete: Any, samples: Any, inputs: Any, model: Any, optimizer: Any) -> list[dict[str, Any]]:
    """Name, shape, dtype, role and made-up values of each argument of the compiled step, in order."""
    import tensorflow as tf

    rows = [
        {
            "name": f"input_{number}",
            "shape": list(spec.shape),
            "dtype": spec.dtype.name,
            "role": "input",
            "fill": _fill(sample),
        }
        for number, (spec, sample) in enumerate(zip(inputs, samples, strict=True))
    ]
    known = {id(v.value.handle): (v.path, "state") for v in optimizer.variables}
    known |= {id(v.value.handle): (v.path, "weight") for v in model.variables}
    for handle in concrete.captured_inputs:
        if handle.dtype == tf.resource:
            held = handle._handle_data.shape_and_type[0]  # graph.variables lacks those that only a branch captured
            value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=held.dtype).numpy()
            name, role = known.get(id(handle), (f"state_{len(rows)}", "state"))
        else:
            value, name, role = handle.numpy(), f"constant_{len(rows)}", "constant"
        fill = {"constant": 1e-8} if name.endswith("velocity") else _fill(value)
        rows.append({"name": name, "shape": list(value.shape), "dtype": value.dtype.name, "role": role, "fill": fill})
    return rows


def _fill(value: Any) -> dict[str, Any]:
    """How to make up values that are spread as these are."""
    if value.size and (value == value.flat[0]).all():
        return {"constant": value.flat[0].item()}
    if value.dtype.kind in "iu":
        return {"low": int(value.min()), "high": int(value.max())}
    return {"mean": float(value.mean()), "std": float(value.std())}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="all", help="names, comma-separated, or all")
    parser.add_argument("--size", default="small", choices=SIZES)
    parser.add_argument("--batch", type=int, action="append", help="batch size; may be given several times")
    parser.add_argument("--all-batches", action="store_true", help="every batch size of the model's sweep")
    parser.add_argument("--variants", default=DEFAULT_VARIANTS, help="names, comma-separated")
    parser.add_argument("--out", type=Path, default=Path("exported"))
    parser.add_argument("--here", action="store_true", help="no process for each export (one model, batch and variant)")
    options = parser.parse_args()
    failed = 0
    for model in names(options.models):
        figures = BENCHMARKS[model].sizes[options.size]
        for batch in figures.batches if options.all_batches else options.batch or (figures.batch,):
            for variant in options.variants.split(","):
                if options.here:
                    print(export(model, options.size, batch, VARIANTS[variant], options.out))
                    continue
                command = [sys.executable, "-m", __spec__.name, "--here", "--models", model, "--size", options.size]
                command += ["--batch", str(batch), "--variants", variant, "--out", str(options.out)]
                failed += subprocess.run(command, check=False).returncode != 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
