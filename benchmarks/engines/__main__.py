"""Trains one unchanged script under each engine with the variable set, kills a worker, and lets it go on.

    python -m benchmarks.engines tfjob slurm [--precision bfloat16]
    ENVIRONMENT/bin/python -m benchmarks.engines ray spark

The script is scripts/train_distributed.py; the engine finds or starts the workers. Ray and Spark need an environment
with ``ray[train]``, or ``pyspark`` and ``spark-tensorflow-distributor``, beside TensorFlow, scikit-learn and amp_tf;
slurm needs root and Debian's packages. A row passes if all workers have equal losses and weights, the losses are those
of the same script started without an engine, and the run whose last worker was killed ends with the weights of the one
that was not. Status 1 if one does not.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FOLDER, SCRIPTS = Path(__file__).resolve().parent, Path(__file__).resolve().parents[2] / "scripts"
SCRIPT = str(SCRIPTS / "train_distributed.py")
STEPS, EVERY, DIES_AT = 20, 5, 12
ENGINES = {  # what stands before the script's arguments
    "none": (SCRIPT, "--workers", "2"),
    "tfjob": (str(FOLDER / "tfjob.py"), "Chief=1,Worker=1", SCRIPT),
    "slurm": (str(FOLDER / "slurm.py"), SCRIPT),
    "ray": (str(FOLDER / "ray_train.py"),),
    "spark": (str(FOLDER / "spark.py"),),
}
RESULT = re.compile(r'\{"worker": .*\}')


@dataclasses.dataclass(frozen=True)
class Ended:
    """One run.

    Attributes:
        status: of the engine.
        results: what each worker wrote, in their order.
        seconds: it took.
        text: all that was written.
    """

    status: int
    results: list[dict[str, Any]]
    seconds: float
    text: str

    @property
    def are_equal(self) -> bool:
        """Whether both workers came to the end, with the same losses and weights."""
        parts = [(result["losses"], result["weights"]) for result in self.results]
        return len(parts) == 2 and parts[0] == parts[1]


def run(engine: str, variables: dict[str, str], *options: str) -> Ended:
    kept = {name: value for name, value in os.environ.items() if "MIXED_PRECISION" not in name and "AMP_TF" not in name}
    environ = kept | {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "", "RAY_DEDUP_LOGS": "0"} | variables
    command = [sys.executable, *ENGINES[engine], "--steps", str(STEPS), *options]
    begin = time.monotonic()
    ended = subprocess.run(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    found = [json.loads(line) for line in RESULT.findall(ended.stdout)]
    found.sort(key=lambda result: int(result["worker"]))
    return Ended(ended.returncode, found, time.monotonic() - begin, ended.stdout)


def judge(engine: str, variables: dict[str, str], alone: Ended) -> list[str]:
    """What is wrong with an engine."""
    whole = run(engine, variables)
    if not whole.are_equal:
        return [f"status {whole.status}, {len(whole.results)} results\n{whole.text[-4000:]}"]
    wrong = []
    if whole.results[0]["losses"] != alone.results[0]["losses"]:
        wrong.append("the losses are not those of the script without an engine")
    with tempfile.TemporaryDirectory() as folder:
        options = ("--checkpoint", folder, "--save-every", str(EVERY))
        resumed = died = run(engine, variables, *options, "--die-at", str(DIES_AT))
        if not died.results:  # Ray starts the workers again by itself
            resumed = run(engine, variables, *options)
    if not resumed.are_equal:
        wrong.append(f"resumed: status {resumed.status}\n{died.text[-2000:]}\n{resumed.text[-2000:]}")
    elif (resumed.results[0]["first_step"], resumed.results[0]["weights"]) != (10, whole.results[0]["weights"]):
        wrong.append(f"it went on from step {resumed.results[0]['first_step']} and ended with other weights")
    converted = sum(
        int(count.replace(",", "")) for count in re.findall(r"amp_tf: .*?([\d,]+) of [\d,]+ node", whole.text)
    )
    by = "itself" if resumed is died else "a second start"
    print(
        f"{engine}: {whole.results[0]['losses'][0]:.4f} to {whole.results[0]['losses'][-1]:.4f} on both workers, "
        f"{converted or 'unknown'} nodes converted (lines at exit), {whole.seconds:.0f} s; killed at step {DIES_AT}, "
        f"resumed by {by} from step 10",
        flush=True,
    )
    return wrong


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engines", nargs="+", choices=[name for name in ENGINES if name != "none"])
    parser.add_argument("--precision", default="bfloat16", help="of amp_tf (default bfloat16)")
    options = parser.parse_args(arguments)
    variables = {"TF_ENABLE_AUTO_MIXED_PRECISION": "1", "AMP_TF_PRECISION": options.precision}
    alone = run("none", variables)
    in_float32 = run("none", {})
    if not alone.are_equal or alone.results[0]["losses"] == in_float32.results[0]["losses"]:
        print(f"without an engine: status {alone.status}, or nothing was converted\n{alone.text[-4000:]}")
        return 1
    wrong = {engine: judge(engine, variables, alone) for engine in options.engines}
    print(*(f"{engine}: {what}" for engine, all_of_it in wrong.items() for what in all_of_it), sep="\n")
    return int(any(wrong.values()))


if __name__ == "__main__":
    sys.exit(main())
