"""Measures in ten minutes what needs a GPU, and keeps what it has if it is killed.

    pip install -e ".[gpu,test]"
    python -m benchmarks.gpu session FOLDER          on a GPU with 24 GB or more
    python -m benchmarks.gpu session FOLDER --tiny   tries it: a minute of a CPU, one model

It runs three parts, each a process that is stopped when its share of the time is over: the tests
that need a GPU; step time and peak memory of the 16 models; the accuracy of ten programs on
held-out data. The modes are float32, Keras' ``mixed_float16``, and amp_tf in float16 and bfloat16.
The folder gets ``tests.log``, ``steps.json`` (written after each model) and ``accuracy.json``
(after each program), a log of each part, and ``session.json``: the machine, and how parts ended.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.results import machine

ROOT = Path(__file__).resolve().parents[2]
MODES = "float32,policy,amp_float16,amp_bfloat16"
TINY_MODES = "float32,amp_float16"
_STEPS = "benchmarks.step_time --ways fit --precision float16"
_ACCURACY = "benchmarks.public --seeds 1 --precision float16"


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of the session.

    Attributes:
        name: of its files.
        share: of the time that is left when it begins, how much it may take.
        command: a module and its arguments, in the folder of the checkout; ``FOUND`` is the folder
            that keeps what is found.
    """

    name: str
    share: float
    command: str


PARTS = (
    Part(
        "tests",
        0.25,
        "pytest -q -rs tests/hooks/test_gpu.py tests/parity tests/oplists/test_kernels.py",
    ),
    Part(
        "steps",
        0.6,
        f"{_STEPS} --modes {MODES} --models gpu --size wide --rounds 7 --seconds 0.3 --prepare 4 "
        "--json FOUND/steps.json",
    ),
    Part("accuracy", 1.0, f"{_ACCURACY} --modes {MODES} --rows FOUND/accuracy.json"),
)
TINY_MODEL = "gpu/ncf"
TINY = (
    Part("tests", 0.25, "pytest -q -rs tests/hooks/test_gpu.py"),
    Part(
        "steps",
        0.6,
        f"{_STEPS} --modes {TINY_MODES} --models {TINY_MODEL} --size tiny --rounds 2 "
        "--seconds 0.02 --prepare 2 --json FOUND/steps.json",
    ),
    Part(
        "accuracy",
        1.0,
        f"{_ACCURACY} --modes {TINY_MODES} --only ranking --rows FOUND/accuracy.json "
        "-- --steps 4 --batch 4",
    ),
)


def run(part: Part, folder: Path, seconds: float) -> dict[str, Any]:
    """Runs a part, writes its output into the folder, and returns how it ended.

    All processes of the part are gone when this returns.
    """
    begin = time.monotonic()
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
    command = [word.replace("FOUND", str(folder)) for word in part.command.split()]
    with (folder / f"{part.name}.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=ROOT,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            ended = f"exit status {process.wait(seconds)}"
        except subprocess.TimeoutExpired:
            ended = "stopped when its time was over"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return {"ended": ended, "seconds": round(time.monotonic() - begin, 1)}


def gpu() -> str:
    """Returns the GPU's name, driver and memory, or that there is none."""
    fields = ["--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        return subprocess.check_output(["nvidia-smi", *fields], text=True).strip()
    except (OSError, subprocess.CalledProcessError):
        return "none: these figures say nothing of one"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, help="what it finds goes there")
    parser.add_argument("--minutes", type=float, default=9.5, help="when the last part is stopped")
    parser.add_argument("--tiny", action="store_true", help="one tiny model, one short program")


def main(options: argparse.Namespace) -> int:
    """Runs the parts; 1 if one failed."""
    # A stopped session stops its part.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    end = time.monotonic() + 60 * options.minutes
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {"machine": {"gpu": gpu(), **machine("python -m benchmarks.gpu")}}
    has_failed = False
    for part in TINY if options.tiny else PARTS:
        (folder / "session.json").write_text(json.dumps(found, indent=1) + "\n")
        found[part.name] = run(part, folder, part.share * (end - time.monotonic()))
        has_failed |= found[part.name]["ended"] != "exit status 0"
        print(f"{part.name}: {found[part.name]}", file=sys.stderr, flush=True)
    (folder / "session.json").write_text(json.dumps(found, indent=1) + "\n")
    return int(has_failed)
