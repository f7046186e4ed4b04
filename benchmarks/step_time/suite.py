"""Runs the processes of one model side by side, in turns."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.step_time.modes import Mode, Way, environment

ROOT = Path(__file__).resolve().parents[2]


@dataclasses.dataclass(frozen=True)
class Settings:
    """How much to measure.

    Attributes:
        size: size of the models.
        precision: the 16-bit type of policy and TensorFlow's pass.
        rounds: rounds of each mode; modes take turns in each round, and begin it in turns.
        seconds: length of a round.
        prepared_at_once: modes that trace and make their first steps at the same time; with more
            than one, the times of first steps say nothing and are not kept.
        error: of a profile, the standard error to reach, relative to the gain; rounds are added
            until then, up to six times as many.
    """

    size: str
    precision: str
    rounds: int
    seconds: float
    prepared_at_once: int = 1
    error: float = math.inf


@dataclasses.dataclass(frozen=True)
class Row:
    """One model in one way and one mode.

    Attributes:
        model, way, mode, batch: what ran.
        ms: milliseconds a step, one value a round.
        first_step_s: seconds from the call to the end of the first step: tracing, rewriting,
            compiling, running.
        peak_mib: largest memory so far, of the GPU where there is one, else of the process.
        losses: of the first steps: Keras' running means (a custom loop's: each step's own); empty
            for inference.
        converted, casts: nodes that amp_tf converted and casts that it inserted, in all graphs of
            the first steps.
        error: why there are no figures, else empty.
        amp_tf: the folder of the package that was at work, where the mode names a checkout.
    """

    model: str
    way: str
    mode: str
    batch: int = 0
    ms: tuple[float, ...] = ()
    first_step_s: float = 0.0
    peak_mib: float = 0.0
    losses: tuple[float, ...] = ()
    converted: int = 0
    casts: int = 0
    error: str = ""
    amp_tf: str = ""


class Process:
    """A process of one mode that reads commands from stdin. It is started at once and ends with
    :meth:`close`.

    Args:
        module: what runs in it.
        mode: sets its environment and names its Python.
        options: its argument, as JSON.

    Raises:
        RuntimeError: the mode needs an environment that is not there.
    """

    def __init__(self, module: str, mode: Mode, options: dict[str, Any]) -> None:
        if not mode.python.exists():
            raise RuntimeError(
                f"{mode.name} runs in {mode.python}, which is not there: python -m {mode.made_by} "
                "makes it"
            )
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by close()
        self._process = subprocess.Popen(
            [str(mode.python), "-m", module, json.dumps(options)],
            env=environment(mode),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,  # a file: a pipe that nobody reads fills up and stops the process
            text=True,
        )

    def ask(self, **command: Any) -> dict[str, Any]:
        """Sends a command and waits for its answer; until the next one the process stands still.

        Threads that wait for work in a busy loop, as OpenMP's may, would slow the other modes down.

        Raises:
            RuntimeError: the process ended; the message is the end of what it wrote to stderr.
        """
        assert self._process.stdin
        assert self._process.stdout
        self._process.send_signal(signal.SIGCONT)
        try:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._errors.seek(0)
            raise RuntimeError(self._errors.read().strip()[-600:])
        self._process.send_signal(signal.SIGSTOP)
        return dict(json.loads(line))

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()


def answer_of(module: str, job: dict[str, Any], env: dict[str, str] | None = None) -> Any:
    """Runs ``python -m MODULE --work JOB`` and returns what its last line says, as JSON.

    Args:
        module: a command of the benchmarks.
        job: what it is to do.
        env: its environment; this process' by default.

    Raises:
        RuntimeError: it failed; the message is the end of what it wrote to stderr.
    """
    command = [sys.executable, "-m", module, "--work", json.dumps(job)]
    ended = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise RuntimeError(f"{module}, {job}: {ended.stderr[-2000:]}")
    return json.loads(ended.stdout.strip().splitlines()[-1])


def print_answer(found: Any) -> None:
    """Prints what :func:`answer_of` is to return: a frozen value, as JSON on a line of its own."""
    print("\n" + json.dumps(dataclasses.asdict(found)), flush=True)


class Worker(Process):
    """The process of one model of the suite."""

    def __init__(self, model: str, mode: Mode, batch: int | None, settings: Settings) -> None:
        options = {
            "model": model,
            "mode": mode.name,
            "batch": batch,
            "size": settings.size,
            "precision": settings.precision,
        }
        super().__init__("benchmarks.step_time.worker", mode, options)


def measure(
    model: str, batch: int | None, modes: Sequence[Mode], ways: Sequence[Way], settings: Settings
) -> list[Row]:
    """All modes of one model, in each of the ways.

    The processes of all modes live at the same time; they prepare, some at once, and then take
    turns.
    """
    rows = []
    workers: dict[str, Worker] = {}

    def prepared(mode: Mode, way: Way) -> Row:
        try:
            if mode.name not in workers:
                workers[mode.name] = Worker(model, mode, batch, settings)
            worker = workers[mode.name]
            # Its imports are over before the first step is timed.
            folder = _package_at_work(mode, worker.ask(do="package")["amp_tf"])
            answer = worker.ask(do="prepare", way=way.name)
        except RuntimeError as error:
            if mode.name in workers:
                workers.pop(mode.name).close()
            return Row(model, way.name, mode.name, error=str(error))
        answer["losses"] = tuple(answer["losses"])
        if settings.prepared_at_once > 1:
            answer["first_step_s"] = 0.0
        return Row(model, way.name, mode.name, amp_tf=folder, **answer)

    try:
        for way in ways:
            reached = [mode for mode in modes if mode.reaches(way)]
            with ThreadPoolExecutor(settings.prepared_at_once) as pool:
                prepare = functools.partial(prepared, way=way)
                prepared_rows = list(pool.map(prepare, reached))
            ready = [row.mode for row in prepared_rows if not row.error]
            times: dict[str, list[float]] = {name: [] for name in ready}
            for _ in range(settings.rounds):
                for name, answer in take_turns(ready, workers, "round", settings.seconds):
                    times[name].append(answer["ms"])
            for row in prepared_rows:
                ms = tuple(times.get(row.mode, ()))
                rows.append(dataclasses.replace(row, ms=ms))
    finally:
        for worker in workers.values():
            worker.close()
    return rows


def take_turns(
    order: list[str], workers: Mapping[str, Process], what: str, seconds: float
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Asks each process of a round in its turn; another one begins the next round.

    A later place in a round is worth up to 6 % here.

    Args:
        order: the names of the processes, which are rotated.
        workers: the processes by name.
        what, seconds: the command.
    """
    for name in order:
        yield name, workers[name].ask(do=what, seconds=seconds)
    order.append(order.pop(0))


def _package_at_work(mode: Mode, folder: str) -> str:
    """The folder of the amp_tf that a process imported, where the mode says whose that has to be;
    else nothing.

    Raises:
        RuntimeError: it is another one, or none.
    """
    if mode.checkout is None:
        return ""
    if folder != str(mode.checkout.resolve() / "amp_tf"):
        raise RuntimeError(
            f"{mode.name} imported amp_tf from {folder or 'nowhere'}, not from {mode.checkout}."
        )
    return folder
