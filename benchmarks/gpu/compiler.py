"""Compiles exported steps for GPUs that are not there: a JSON line for each file and target, on
stdout.

    .venv/gpu/bin/python -m benchmarks.gpu.compiler --targets h100,a100 exported/*.mlir.gz

XLA's compiler is told what the GPU is and given none. It tunes nothing then: of cuBLAS' and cuDNN's
algorithms it takes the first, and no workspace. Runs in the environment of
:mod:`benchmarks.gpu.environment`.
"""

from __future__ import annotations

import argparse
import dataclasses
import gzip
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.hlo import parse
from benchmarks.gpu.kernels import figures
from benchmarks.gpu.stablehlo import unpack_booleans
from benchmarks.gpu.targets import TARGETS


class Compiler:
    """XLA's compiler for one target.

    Args:
        name: of :data:`benchmarks.gpu.targets.TARGETS`.
    """

    def __init__(self, name: str) -> None:
        from jax.experimental import topologies

        self.target = TARGETS[name]
        description = topologies.get_topology_desc(
            platform="cuda", target_config=self.target.config(), topology="1x1x1"
        )
        (self._device,) = description.devices

    def __call__(self, text: str) -> Any:
        """Compiles a StableHLO module; the executable cannot be run."""
        import numpy as np
        from jax._src.interpreters import mlir
        from jax._src.lib.mlir import ir
        from jaxlib import xla_client

        options = xla_client.CompileOptions()
        options.num_replicas = options.num_partitions = 1
        options.device_assignment = xla_client.DeviceAssignment.create(np.zeros((1, 1), np.int32))
        with mlir.make_ir_context():
            module = ir.Module.parse(unpack_booleans(text))
            devices = xla_client.DeviceList((self._device,))
            return self._device.client.compile(
                module, executable_devices=devices, compile_options=options
            )


def row(compiler: Compiler, text: str, hlo: Path | None = None) -> dict[str, Any]:
    """Measures a step on a target.

    Args:
        compiler: the target's.
        text: the step as StableHLO.
        hlo: where to write the optimized module, for people.
    """
    begin = time.perf_counter()
    program = compiler(text)
    seconds = time.perf_counter() - begin
    (module,) = program.hlo_modules()
    optimized = module.to_string()
    if hlo:
        hlo.write_text(optimized)
    memory = program.get_compiled_memory_stats()
    return {
        **dataclasses.asdict(figures(parse(optimized), compiler.target)),
        "temp_mib": memory.temp_size_in_bytes / 2**20,
        "peak_mib": memory.peak_memory_in_bytes / 2**20,
        "compile_s": round(seconds, 1),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--targets", required=True, help="names, comma-separated")
    parser.add_argument(
        "--hlo", action="store_true", help="write the optimized HLO beside each file"
    )
    options = parser.parse_args(arguments)
    failed = 0
    for name in options.targets.split(","):
        compiler = Compiler(name)
        for path in options.files:
            stem = path.name.removesuffix(".mlir.gz")
            hlo = None
            if options.hlo:
                hlo = path.parent / f"{stem}.{name}.hlo"
            try:
                found = row(compiler, gzip.decompress(path.read_bytes()).decode(), hlo)
            except Exception as error:  # one step that XLA refuses leaves the others their rows
                failed += 1
                print(
                    f"{stem} for {name}: {type(error).__name__}: {str(error)[:300]}",
                    file=sys.stderr,
                )
                continue
            print(json.dumps({"file": stem, "target": name, **found}), flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
