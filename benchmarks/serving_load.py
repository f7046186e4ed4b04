"""Serving under load: many threads ask models that are dropped and loaded anew meanwhile, with amp_tf and without it.

    python -m benchmarks.serving_load [--seconds 1200] [--threads 16] [--modes amp_tf float32] [--json load.json]

Two SavedModels (convolutions, an LSTM), as they were saved and as ``amp_tf.convert_saved_model`` writes them, are
served in a process of their own for each mode, with ``AMP_TF_REPORT`` under amp_tf. Each thread asks one model after
the other, with batches of five sizes, for each of which the function is traced again; one more thread drops a model
and loads it again, without a pause. Every answer is held against the one that a single thread got before. A process
in which no call has ended for two minutes writes the stacks of its threads and stops with status 1.

Resident memory is read each second; what counts is the median of its second half less that of the quarter before, for
each reload, because TensorFlow's allocator and amp_tf's report fill up at first.

Before the threads start, a small model's first request is timed alone, and begun at the moment at which the rewrite of
a large model's graph begins (in float32, as its first call begins). The block is the difference, and it may not be
longer than that rewrite. Status 1 if an answer was wrong.
"""

from __future__ import annotations

import argparse
import dataclasses
import faulthandler
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.memory import resident
from benchmarks.step_time.modes import environment, modes

ROOT = Path(__file__).resolve().parents[1]
MODELS = ("convolutions", "lstm")
SERVED = tuple(f"{model}{kind}" for model in MODELS for kind in ("", "_converted"))
SMALL, LARGE = "dense", "deep"  # of the first requests
TOLERANCE = 2**-8  # of the largest value: kernels may add in another order when the machine is busy
BATCHES = (1, 2, 3, 5, 8)
FIRSTS = 8  # first requests, alone and beside a rewrite
STUCK = 120  # seconds without an answer


@dataclasses.dataclass(frozen=True)
class Load:
    """What one process did.

    Attributes:
        mode: ``amp_tf`` or ``float32``.
        calls, reloads: how many.
        traces: how often a function was traced.
        wrong: answers further off than :data:`TOLERANCE`, and errors.
        worst: how far the worst was off, as a share of the model's largest value.
        slowest: seconds of the slowest call.
        memory: MiB of resident memory at each second.
        converted: nodes that amp_tf converted.
        alone, beside: seconds of the small model's first requests, alone and beside the large one's.
        rewrites: seconds of the large one's rewrites, in the order of ``beside``.
    """

    mode: str
    calls: int
    reloads: int
    traces: int
    wrong: int
    worst: float
    slowest: float
    memory: list[float]
    converted: int
    alone: list[float]
    beside: list[float]
    rewrites: list[float]

    @property
    def growth(self) -> float:
        """MiB by which the second half's memory is larger than that of the quarter before it."""
        seconds = len(self.memory)
        return statistics.median(self.memory[seconds // 2 :]) - statistics.median(
            self.memory[seconds // 4 : max(seconds // 2, seconds // 4 + 1)]
        )

    @property
    def kib_a_reload(self) -> float:
        """The growth for each reload; the medians are three eighths of the time apart."""
        return self.growth * 1024 / max(1.0, self.reloads * 3 / 8)

    @property
    def sixths(self) -> list[float]:
        """The median of memory in each sixth of the time, in MiB."""
        size = max(1, len(self.memory) // 6)
        return [statistics.median(self.memory[begin : begin + size]) for begin in range(0, 6 * size, size)]

    @property
    def blocks(self) -> list[float]:
        """Seconds by which each first request beside another took longer than the median one alone."""
        return [seconds - statistics.median(self.alone) for seconds in self.beside]


def make(name: str, folder: Path) -> None:
    """Writes a model as a SavedModel."""
    import keras

    layers = keras.layers
    deep = [(layers.Dense(64, "relu"), layers.LayerNormalization()) for _ in range(40)]
    stacks = {
        "dense": [layers.Input((256,)), layers.Dense(512, "relu"), layers.Dense(512, "relu"), layers.Dense(10)],
        "deep": [layers.Input((256,)), *itertools.chain(*deep)],
        "convolutions": [
            *(layers.Input((32, 32, 8)), layers.Conv2D(32, 3, activation="relu"), layers.BatchNormalization()),
            *(layers.Conv2D(32, 3, strides=2, activation="relu"), layers.GlobalAveragePooling2D(), layers.Dense(10)),
        ],
        "lstm": [layers.Input((16, 64)), layers.LSTM(128), layers.Dense(10)],
    }
    keras.utils.set_random_seed(1)
    keras.Sequential(stacks[name]).export(str(folder / name), verbose=False)


class Model:
    """A loaded SavedModel, and a function of its own that is traced for each size of a batch.

    Attributes:
        traces: how often it was traced.
    """

    def __init__(self, folder: Path) -> None:
        import tensorflow as tf

        self._model = tf.saved_model.load(str(folder))  # a signature does not keep its variables
        self._signature = self._model.signatures["serving_default"]
        self.traces = 0
        self.answer = tf.function(self._answer)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example."""
        (spec,) = self._signature.structured_input_signature[1].values()
        return tuple(spec.shape[1:])

    def _answer(self, x: Any) -> Any:
        self.traces += 1
        (answer,) = self._signature(x).values()
        return answer


class Rewrites:
    """Times each of amp_tf's rewrites in this process.

    Attributes:
        begun: set as the next one begins.
        seconds: of each.
    """

    def __init__(self) -> None:
        from amp_tf.rewriting import pipeline

        self.begun, self.seconds = threading.Event(), list[float]()
        self._rewrite: Callable[..., Any] = pipeline.rewrite_serialized
        pipeline.rewrite_serialized = self._timed

    def _timed(self, *arguments: Any, **options: Any) -> Any:
        self.begun.set()
        begin = time.perf_counter()
        try:
            return self._rewrite(*arguments, **options)
        finally:
            self.seconds.append(time.perf_counter() - begin)


def time_first_requests(folder: Path, is_rewritten: bool) -> tuple[list[float], list[float], list[float]]:
    """Seconds of the small model's first requests alone, those beside the large one's, and the large one's rewrites."""
    import tensorflow as tf

    x = tf.zeros((1, 256))
    rewrites = Rewrites() if is_rewritten else None
    alone, beside, longest = [], [], []

    def ask_large(begun: threading.Event, large: Model) -> None:
        if rewrites is None:
            begun.set()
        large.answer(x)

    for number in range(2 * FIRSTS):
        small, large = Model(folder / SMALL), Model(folder / LARGE)
        begun = threading.Event() if rewrites is None else rewrites.begun
        begun.clear()
        other = threading.Thread(target=ask_large, args=(begun, large))
        if number % 2:
            other.start()
            begun.wait()
            count = len(rewrites.seconds) if rewrites else 0
        begin = time.perf_counter()
        small.answer(x)
        (beside if number % 2 else alone).append(time.perf_counter() - begin)
        if number % 2:
            other.join()
            longest += [max(rewrites.seconds[count:])] if rewrites else []
    return alone, beside, longest


def work(options: dict[str, Any]) -> None:
    """Serves in this process and prints a :class:`Load` in JSON."""
    import numpy as np
    import tensorflow as tf

    folder, dice, is_ours = Path(options["folder"]), np.random.default_rng(1), options["mode"] == "amp_tf"
    firsts = time_first_requests(folder, is_ours)
    served = {name: Model(folder / name) for name in SERVED}
    data, expected = {}, {}
    for (name, model), batch in itertools.product(served.items(), BATCHES):
        data[name, batch] = tf.constant(dice.standard_normal((batch, *model.shape)), tf.float32)
        expected[name, batch] = model.answer(data[name, batch]).numpy()

    ends, calls, reloads, off, seconds, errors = threading.Event(), [], [], [], [], []
    traces = [sum(model.traces for model in served.values())]

    def ask(thread: int) -> None:
        count, worst, slowest = 0, 0.0, 0.0
        questions = itertools.cycle(itertools.product(BATCHES, SERVED))
        for name, batch in ((name, batch) for batch, name in itertools.islice(questions, thread, None)):
            if ends.is_set():
                break
            begin = time.perf_counter()
            try:
                got = served[name].answer(data[name, batch]).numpy()
                error = float(np.max(np.abs(got - expected[name, batch])) / np.max(np.abs(expected[name, batch])))
                if not error <= TOLERANCE:
                    errors.append(f"{name}: off by {error:.3g}")
                worst = max(worst, error)
            except Exception as error:  # whatever it is, it is counted
                errors.append(f"{name}: {type(error).__name__}: {error}")
            slowest = max(slowest, time.perf_counter() - begin)
            faulthandler.dump_traceback_later(STUCK, exit=True)  # from now on, in place of the last one
            count += 1
        calls.append(count)
        off.append(worst)
        seconds.append(slowest)

    def reload() -> None:
        while not ends.is_set():
            name = SERVED[len(reloads) % len(SERVED)]
            try:
                dropped, served[name] = served[name], Model(folder / name)
                traces.append(dropped.traces)
                del dropped
            except Exception as error:
                errors.append(f"loading {name}: {type(error).__name__}: {error}")
            reloads.append(name)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(options["threads"])]
    threads.append(threading.Thread(target=reload))
    for thread in threads:
        thread.start()
    memory = []
    until = time.monotonic() + options["seconds"]
    while time.monotonic() < until:
        time.sleep(min(1.0, options["seconds"] / 12))
        memory.append(resident("VmRSS"))
    ends.set()
    for thread in threads:
        thread.join()
    faulthandler.cancel_dump_traceback_later()
    for error in errors[:5]:
        print(error, file=sys.stderr)
    converted = 0
    if is_ours:
        from amp_tf.reporting import reports

        converted = reports.totals().converted
    done = Load(
        *(options["mode"], sum(calls), len(reloads), sum(traces), len(errors), max(off), max(seconds), memory),
        converted,
        *firsts,
    )
    print(json.dumps(dataclasses.asdict(done)))


def measure(mode: str, folder: Path, seconds: float, threads: int, precision: str) -> Load:
    """What a process of one mode did.

    Raises:
        RuntimeError: it failed; the message is the end of what it wrote to stderr.
    """
    options = {"mode": mode, "folder": str(folder), "seconds": seconds, "threads": threads}
    environ = environment(modes(precision)[mode]) | {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"}
    if mode == "amp_tf":
        environ["AMP_TF_REPORT"] = str(folder / "reports")
        environ["AMP_TF_PRECISION"] = precision  # auto converts nothing on some CPUs
    command = [sys.executable, "-m", "benchmarks.serving_load", "--work", json.dumps(options)]
    ended = subprocess.run(command, env=environ, cwd=ROOT, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise RuntimeError(f"{mode}: exit status {ended.returncode}\n{ended.stderr[-20000:]}")
    sys.stderr.writelines(f"{line}\n" for line in ended.stderr.splitlines() if "amp_tf" in line or ": off by" in line)
    return Load(**json.loads(ended.stdout.splitlines()[-1]))


def show(load: Load) -> Iterator[str]:
    """What is printed of one process."""
    yield (
        f"{load.mode}: {load.calls:,} calls, {load.reloads:,} reloads, {load.traces:,} traces, {load.wrong} wrong, "
        f"the worst off by {load.worst:.1e}, {load.converted:,} nodes converted, slowest call {load.slowest:.2f} s"
    )
    sixths = ", ".join(f"{mib:,.0f}" for mib in load.sixths)
    yield f"  memory, medians of the six sixths: {sixths} MiB; {load.kib_a_reload:,.0f} KiB a reload"
    alone, beside = (1000 * statistics.median(seconds) for seconds in (load.alone, load.beside))
    yield (
        f"  a small model's first request: {alone:.0f} ms alone, {beside:.0f} ms beside a large one's (medians of "
        f"{FIRSTS}); longest block {1000 * max(load.blocks):.0f} ms"
    )
    if load.rewrites:
        shares = [block / rewrite for block, rewrite in zip(load.blocks, load.rewrites, strict=True)]
        yield (
            f"  the large one's rewrite takes {1000 * statistics.median(load.rewrites):.0f} ms (median); blocks are "
            f"{statistics.median(shares):.2f} times their rewrite (median), {max(shares):.2f} at most"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1200.0, help="of each mode (default 1200)")
    parser.add_argument("--threads", type=int, default=16, help="that ask (default 16)")
    parser.add_argument("--modes", nargs="+", choices=("amp_tf", "float32"), default=["amp_tf", "float32"])
    parser.add_argument("--precision", default="bfloat16", help="of amp_tf (default bfloat16)")
    parser.add_argument("--json", type=Path, help="also write the measurements")
    parser.add_argument("--work", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.work:
        work(options.work)
        return 0
    import amp_tf

    loads = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for model in (*MODELS, SMALL, LARGE):
            make(model, folder)
        for model in MODELS:
            config = amp_tf.AmpConfig(precision=options.precision)
            amp_tf.convert_saved_model(folder / model, folder / f"{model}_converted", config)
        for mode in options.modes:
            loads.append(measure(mode, folder, options.seconds, options.threads, options.precision))
            print(*show(loads[-1]), sep="\n", flush=True)
    print("\n| mode | calls | reloads | MiB after a quarter of the run | at the end | KiB a reload |")
    print("|---|---:|---:|---:|---:|---:|")
    for load in loads:
        cells = [load.calls, load.reloads, load.memory[len(load.memory) // 4], load.memory[-1], load.kib_a_reload]
        print(f"| {load.mode} | {' | '.join(f'{cell:,.0f}' for cell in cells)} |")
    if options.json:
        options.json.write_text(json.dumps([dataclasses.asdict(load) for load in loads]))
    return int(any(load.wrong for load in loads))


if __name__ == "__main__":
    sys.exit(main())
