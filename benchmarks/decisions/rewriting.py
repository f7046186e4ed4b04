"""Rewrites a trace for one of the targets, by this amp_tf or another checkout's.

It needs only amp_tf's ``rewrite_serialized`` and tables of costs, so that older checkouts can be
compared.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.decisions import traces
from benchmarks.decisions.traces import Trace

ROOT = Path(__file__).resolve().parents[2]
GPU_TARGET = "gpu-float16"


@dataclasses.dataclass(frozen=True)
class Target:
    """A target of rewrites.

    Attributes:
        name: of the file of its table, or :data:`GPU_TARGET`.
        table: that file; ``None`` for the GPU.
    """

    name: str
    table: Path | None = None

    @property
    def device(self) -> str:
        """The device type of its traces."""
        return "CPU" if self.table else "GPU"


def targets(folder: Path) -> dict[str, Target]:
    """The targets by name: each shipped table by which bfloat16 pays, and a GPU.

    Args:
        folder: where the files of the tables are put, for other checkouts to read the same ones.
    """
    from amp_tf.oplists.cost_tables import SHIPPED_FOLDER, read_table

    found = {}
    for shipped in sorted(SHIPPED_FOLDER.glob("*.json")):
        if read_table(shipped).gains:
            found[shipped.stem] = Target(shipped.stem, Path(shutil.copy(shipped, folder)))
    return found | {GPU_TARGET: Target(GPU_TARGET)}


def rewrite(trace: Trace, target: Target) -> Any:
    """Rewrites a trace by the amp_tf that is imported here; the result's graph is serialized."""
    from amp_tf.config import AmpConfig
    from amp_tf.rewriting.pipeline import rewrite_serialized

    config = AmpConfig()
    if target.table is None:
        config = AmpConfig(precision="float16", target="gpu")
    return rewrite_serialized(
        trace.graph,
        config,
        hardware=_hardware(target.table),
        preserve=trace.preserve,
        functions=False,
        shapes=trace,
    )


@functools.cache
def _hardware(table: Path | None) -> Any:
    from amp_tf.oplists.cost_tables import read_table
    from amp_tf.oplists.hardware import Hardware

    if table is None:
        return Hardware(gpu_capabilities=((9, 0),))
    return Hardware(cpu_has_bf16=True, cpu_has_avx512=True, costs=read_table(table))


def path_of(folder: Path, name: str, way: str, target: str) -> Path:
    """The file of a rewritten graph."""
    return folder / f"{name}-{way}-{target}.pb"


def rewrite_elsewhere(
    checkout: Path, kept: Path, out: Path, names: Iterable[str], only: Sequence[Target]
) -> str:
    """Rewrites traces by another checkout's amp_tf, in a process of its own.

    Args:
        checkout: that checkout, its C part compiled.
        kept: the folder of the traces.
        out: the folder for the rewritten graphs.
        names: of models and blocks.
        only: the targets.

    Returns:
        The folder of the amp_tf that was at work.

    Raises:
        subprocess.CalledProcessError: it failed; its last words are on stderr.
    """
    command = [sys.executable, "-m", "benchmarks.decisions.rewriting"]
    command += ["--checkout", str(checkout), "--traces", str(kept), "--out", str(out)]
    command += ["--names", *names, "--tables"]
    for target in only:
        command.append(str(target.table or GPU_TARGET))
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.split()[-1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("checkout", "traces", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--tables", nargs="+", required=True, help=f"files, or {GPU_TARGET}")
    parser.add_argument("--names", nargs="+", required=True)
    asked = parser.parse_args()
    sys.path.insert(0, str(asked.checkout.resolve()))
    import amp_tf

    folder = Path(str(amp_tf.__file__)).parent
    if folder != asked.checkout.resolve() / "amp_tf":
        raise RuntimeError(f"amp_tf was imported from {folder}, not from {asked.checkout}.")
    wanted = []
    for table in asked.tables:
        if table == GPU_TARGET:
            wanted.append(Target(GPU_TARGET))
        else:
            wanted.append(Target(Path(table).stem, Path(table)))
    for name, way, target in itertools.product(asked.names, traces.WAYS, wanted):
        trace = traces.read(traces.path_of(asked.traces, name, way, target.device))
        graph = rewrite(trace, target).graph
        path_of(asked.out, name, way, target.name).write_bytes(graph)
    print(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
