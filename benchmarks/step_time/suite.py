"""Runs the processes of one model side by side, in turns."""

from __future__ import annotations

import dataclasses
import json
import math
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.step_time.modes import Mode, Way, environment


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
    packages: dict[str, str] = {}

    def prepared(mode: Mode, way: Way) -> Row:
        try:
            if mode.name not in workers:
                workers[mode.name] = Worker(model, mode, batch, settings)
                # Its imports are over before the first step is timed.
                packages[mode.name] = _package_at_work(
                    mode, workers[mode.name].ask(do="versions")["amp_tf"]
                )
            row = dataclasses.replace(
                _prepared(workers[mode.name], model, way, mode), amp_tf=packages[mode.name]
            )
        except RuntimeError as error:
            if mode.name in workers:
                workers.pop(mode.name).close()
            return Row(model, way.name, mode.name, error=str(error))
        return row if settings.prepared_at_once == 1 else dataclasses.replace(row, first_step_s=0.0)

    try:
        for way in ways:
            reached = [mode for mode in modes if mode.reaches(way)]
            with ThreadPoolExecutor(settings.prepared_at_once) as pool:
                prepared_rows = list(pool.map(lambda mode, way=way: prepared(mode, way), reached))
            ready = {row.mode: row for row in prepared_rows if not row.error}
            rows += [row for row in prepared_rows if row.error]
            times: dict[str, list[float]] = {name: [] for name in ready}
            turns = list(ready)
            for _ in range(settings.rounds):
                for name in turns:
                    answer = workers[name].ask(do="round", seconds=settings.seconds)
                    times[name].append(answer["ms"])
                # Each begins in turn: a later place in a round is worth up to 6 % here.
                turns.append(turns.pop(0))
            rows += [dataclasses.replace(row, ms=tuple(times[name])) for name, row in ready.items()]
    finally:
        for worker in workers.values():
            worker.close()
    return rows


def _prepared(worker: Worker, model: str, way: Way, mode: Mode) -> Row:
    answer = worker.ask(do="prepare", way=way.name)
    answer["losses"] = tuple(answer["losses"])
    return Row(model, way.name, mode.name, **answer)


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
