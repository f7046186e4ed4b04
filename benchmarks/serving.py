"""Answers of converted SavedModels beside those of the exported ones, by batch size.

    python -m benchmarks.serving [MODELS] [--batches 1 8 32] [--precision auto] [--rounds 20]

Each model is exported and converted by ``convert_saved_model``, once with float32 weights
(*converted*) and once with 16-bit ones (*weights*). ``tf.saved_model.load`` loads all of them into
this process, where amp_tf is not at work. In each round each model answers in turn, so a busy
machine slows all of them. A cell is the geometric mean over the rounds of the exported model's time
divided by the copy's, ± its standard error: above 1 the copy is faster.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.models import SIZES, benchmark, names
from benchmarks.results import table_head, table_row

EXPORTED = "exported"
COPIES = {"converted": "float32", "weights": "f16"}  #: what ``weights=`` each copy is made with
SECONDS = 0.02  #: of one measurement; shorter calls are repeated

Serve = Callable[[], object]


def export(name: str, size: str, precision: str, folder: Path) -> Any:
    """Writes a model and its copies; returns the Keras model."""
    import keras

    import amp_tf

    keras.utils.set_random_seed(1)
    model = benchmark(name).workload(size).model()
    with contextlib.redirect_stdout(sys.stderr):
        model.export(str(folder / EXPORTED))
    config = amp_tf.AmpConfig(precision=precision)
    for copy, weights in COPIES.items():
        amp_tf.convert_saved_model(folder / EXPORTED, folder / copy, config, weights=weights)
    return model


def answers(loaded: Any, feed: Mapping[str, Any]) -> Serve:
    """A call of a loaded model that waits for its answer."""
    signature = loaded.signatures["serving_default"]

    def serve() -> object:
        return [answer.numpy() for answer in signature(**feed).values()]

    return serve


def feed_of(model: Any, data: Any, batch: int) -> dict[str, Any]:
    """The first examples of a workload's inputs, by the names that the signature gives them."""
    import tensorflow as tf

    feed = {}
    for given, values in zip(model.inputs, tf.nest.flatten(data), strict=True):
        feed[given.name] = tf.cast(values[:batch], given.dtype)
    return feed


def seconds(serve: Serve, count: int) -> float:
    """Mean seconds of a call."""
    begin = time.perf_counter()
    for _ in range(count):
        serve()
    return (time.perf_counter() - begin) / count


def measure(served: Mapping[str, Serve], rounds: int) -> dict[str, list[float]]:
    """Seconds of a call in each round, by model; the models take turns."""
    counts = {}
    for name, serve in served.items():
        seconds(serve, 2)  # the first calls trace and warm up
        counts[name] = max(1, int(SECONDS / seconds(serve, 1)))
    times: dict[str, list[float]] = {name: [] for name in served}
    for _ in range(rounds):
        for name, serve in served.items():
            times[name].append(seconds(serve, counts[name]))
    return times


def ratio(exported: Sequence[float], copy: Sequence[float]) -> str:
    """How many times faster a copy answers, as a cell of the table."""
    logarithms = [math.log(one / other) for one, other in zip(exported, copy, strict=True)]
    mean = math.exp(statistics.fmean(logarithms))
    error = statistics.stdev(logarithms) / math.sqrt(len(logarithms))
    return f"{mean:.2f} ± {error:.2f}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="?", default="all", help="names, comma-separated")
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--precision", default="auto", help="of the copies; %(default)s")
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--rounds", type=int, default=20)
    asked = parser.parse_args(arguments)
    import tensorflow as tf

    print(table_head(["model", "batch", "exported, ms", *COPIES]))
    for name in names(asked.models):
        row = benchmark(name)
        with tempfile.TemporaryDirectory() as folder:
            model = export(name, asked.size, asked.precision, Path(folder))
            loaded = {}
            for way in (EXPORTED, *COPIES):
                loaded[way] = tf.saved_model.load(str(Path(folder, way)))
        data, _ = row.workload(asked.size).data(max(asked.batches), 0)
        for batch in asked.batches:
            feed = feed_of(model, data, batch)
            served = {way: answers(each, feed) for way, each in loaded.items()}
            times = measure(served, asked.rounds)
            exported = times.pop(EXPORTED)
            cells = [row.title, str(batch), f"{statistics.median(exported) * 1e3:.2f}"]
            cells += [ratio(exported, copy) for copy in times.values()]
            print(table_row(cells), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
