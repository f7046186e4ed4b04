"""Serving a model: size on disk, resident memory, latency and error of each way to make it smaller.

    python -m benchmarks.serving [--models mlp transformer …] [--ways converted weights …]
    [--precision bfloat16]
        [--batches 1 8 64] [--rounds 9] [--clock cpu] [--json serving.json]

Six models are exported once as float32 SavedModels and served by ``tf.saved_model.load``, in a
process for each model:

=============  ====================================================================================================
``float32``    as exported
``tf_pass``    the same files under TensorFlow's own pass, as TensorFlow Serving's ``--mixed_precision=bfloat16`` has it
``converted``  ``convert_saved_model``
``weights``    ``convert_saved_model(…, weights="f16")``
``tflite``     TFLite with float16 weights, in TFLite's interpreter with as many threads
=============  ====================================================================================================

Latency: one call after the other, all ways in turn in each round, and the median over rounds of
float32's time over that of the way, so a busy machine slows both; where others keep it too busy
even for that, ``--clock cpu`` counts the time that the process' threads had a core. Memory: a
process for each way loads the model and answers once at the smallest batch; what counts is resident
memory less that before loading. Error: the largest, as a share of float32's largest value. What a
call costs besides the model (copies in and out of Python) is in all of them. Prints a table for
each model.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import importlib
import json
import multiprocessing
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.memory import resident
from benchmarks.step_time.modes import environment, modes

ROOT = Path(__file__).resolve().parents[1]
WAYS = ("float32", "tf_pass", "converted", "weights", "tflite")
SAVED = {"float32": "float32", "tf_pass": "float32", "converted": "converted", "weights": "weights"}
ROWS = 50_000  # of each table of embeddings
SECONDS = 0.02  # of one measurement; shorter calls are repeated
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
PASS = {
    "bfloat16": "auto_mixed_precision_onednn_bfloat16",
    "auto": "auto_mixed_precision_onednn_bfloat16",
}

Serve = Callable[[dict[str, Any]], dict[str, Any]]


def _mlp(layers: Any, inp: Any) -> Any:
    x = inp
    for _ in range(3):
        x = layers.Dense(2048, "relu")(x)
    return layers.Dense(10)(x)


def _transformer(layers: Any, inp: Any) -> Any:
    x = inp
    for _ in range(2):
        y = layers.LayerNormalization()(x)
        x = layers.Add()([x, layers.MultiHeadAttention(8, 64)(y, y)])
        y = layers.Dense(2048, "gelu")(layers.LayerNormalization()(x))
        x = layers.Add()([x, layers.Dense(512)(y)])
    return layers.Dense(10)(layers.GlobalAveragePooling1D()(x))


def _convnet(layers: Any, inp: Any) -> Any:
    x = inp
    for channels in (32, 64, 128, 256):
        x = layers.Conv2D(channels, 3, padding="same", use_bias=False)(x)
        x = layers.MaxPooling2D()(layers.ReLU()(layers.BatchNormalization()(x)))
    return layers.Dense(10)(layers.GlobalAveragePooling2D()(x))


def _lstm(layers: Any, inp: Any) -> Any:
    return layers.Dense(10)(layers.LSTM(512)(layers.LSTM(512, return_sequences=True)(inp)))


def _ranking(layers: Any, ids: Any, numbers: Any) -> Any:
    """DLRM: products of pairs of embeddings beside a wide and a deep part."""
    tables = [layers.Flatten()(layers.Embedding(ROWS, 64)(ids[:, i : i + 1])) for i in range(8)]
    bottom = layers.Dense(64, "relu")(layers.Dense(512, "relu")(numbers))
    pairs = [layers.Dot(1)([a, b]) for i, a in enumerate([bottom, *tables]) for b in tables[i:]]
    deep = layers.Dense(256, "relu")(
        layers.Dense(512, "relu")(layers.Concatenate()([bottom, *tables, *pairs]))
    )
    return layers.Dense(1, "sigmoid")(layers.Concatenate()([deep, numbers]))


def build(name: str) -> Any:
    """A Keras model, initialized at random."""
    import keras

    keras.utils.set_random_seed(1)
    if name == "mobilenet":
        return keras.applications.MobileNetV2((128, 128, 3), weights=None, classes=100)
    if name == "ranking":
        inputs = [keras.Input((8,), dtype="int32", name="ids"), keras.Input((13,), name="numbers")]
        return keras.Model(inputs, _ranking(keras.layers, *inputs))
    shape, make = {
        "mlp": ((1024,), _mlp),
        "transformer": ((32, 512), _transformer),
        "convnet": ((64, 64, 3), _convnet),
        "lstm": ((16, 256), _lstm),
    }[name]
    inp = keras.Input(shape, name="x")
    return keras.Model(inp, make(keras.layers, inp))


MODELS = ("mlp", "transformer", "convnet", "lstm", "ranking", "mobilenet")


@dataclasses.dataclass
class Served:
    """One model in one way.

    Attributes:
        megabytes: on disk.
        mib: of resident memory.
        error: the largest, over float32's largest value.
        milliseconds, ratios: of a call, by batch size; ratios are float32's time over this one's.
    """

    megabytes: float = 0.0
    mib: float = 0.0
    error: float = 0.0
    milliseconds: dict[int, float] = dataclasses.field(default_factory=dict)
    ratios: dict[int, float] = dataclasses.field(default_factory=dict)


def make(name: str, folder: Path, ways: Sequence[str], precision: str) -> None:
    """Writes a model for each way."""
    import tensorflow as tf

    import amp_tf

    model = build(name)
    model.export(str(folder / "float32"), verbose=False)
    inputs = {each.name: (each.shape[1:], "int" in each.dtype) for each in model.inputs}
    (folder / "inputs.json").write_text(json.dumps(inputs))
    config = amp_tf.AmpConfig(precision=precision)
    for way, weights in (("converted", "float32"), ("weights", "f16")):
        if way in ways:
            report = amp_tf.convert_saved_model(
                folder / "float32", folder / way, config, weights=weights
            )
            print(
                f"{name} {way}: {report.converted} nodes converted. {report.weights or ''}",
                file=sys.stderr,
            )
    if "tflite" in ways:
        converter = tf.lite.TFLiteConverter.from_saved_model(str(folder / "float32"))
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        converter.target_spec.supported_types = [tf.float16]
        converter.target_spec.supported_ops = [
            tf.lite.OpsSet.TFLITE_BUILTINS,
            tf.lite.OpsSet.SELECT_TF_OPS,
        ]
        (folder / "tflite").mkdir()
        (folder / "tflite" / "model.tflite").write_bytes(converter.convert())


def load(way: str, folder: Path) -> Serve:
    """A model, ready to answer."""
    import tensorflow as tf

    if way == "tflite":
        interpreter = tf.lite.Interpreter(str(folder / "tflite" / "model.tflite"), num_threads=2)
        runner = interpreter.get_signature_runner()
        return lambda feed: runner(**feed)
    model = tf.saved_model.load(str(folder / SAVED[way]))
    signature = model.signatures["serving_default"]

    def serve(feed: dict[str, Any]) -> dict[str, Any]:
        answers = signature(**{name: tf.constant(value) for name, value in feed.items()})
        return {name: answer.numpy() for name, answer in answers.items()}

    serve.model = model  # type: ignore[attr-defined]  # its variables live as long as it does
    return serve


def switch_pass(way: str, precision: str) -> None:
    """Turns TensorFlow's pass on for ``tf_pass`` alone; functions are optimized anew for other
    options.
    """
    import tensorflow as tf

    tf.config.optimizer.set_experimental_options(
        {PASS.get(precision, PASS["auto"]): way == "tf_pass"}
    )


def feed_of(folder: Path, batch: int) -> dict[str, Any]:
    """Inputs of a model."""
    import numpy as np

    dice = np.random.default_rng(batch)
    return {
        name: dice.integers(0, ROWS, (batch, *shape)).astype("i4")
        if is_whole
        else dice.standard_normal((batch, *shape)).astype("f4")
        for name, (shape, is_whole) in json.loads((folder / "inputs.json").read_text()).items()
    }


def time_ways(folder: Path, ways: Sequence[str], options: Mapping[str, Any]) -> dict[str, Served]:
    """Latency and error of all ways in this process."""
    import numpy as np

    served = {way: load(way, folder) for way in ways}
    ways = [way for way in ways if way != "tflite" or _runs(served[way], feed_of(folder, 1))]
    found = {way: Served() for way in ways}
    clock = CLOCKS[options["clock"]]
    for batch in options["batches"]:
        feed = feed_of(folder, batch)
        times: dict[str, list[float]] = {way: [] for way in ways}
        counts, expected = {}, None
        for way in ways:
            switch_pass(way, options["precision"])
            for _ in range(2):
                answers = [
                    np.asarray(value, np.float32) for _, value in sorted(served[way](feed).items())
                ]
            expected = expected or answers
            off = max(
                float(np.max(np.abs(a - b)) / np.max(np.abs(b)))
                for a, b in zip(answers, expected, strict=True)
            )
            found[way].error = max(found[way].error, off)
            counts[way] = max(1, int(SECONDS / _seconds(served[way], feed, 1, clock)))
        for _ in range(options["rounds"]):
            for way in ways:
                switch_pass(way, options["precision"])
                served[way](feed)
                times[way].append(_seconds(served[way], feed, counts[way], clock))
        for way in ways:
            found[way].milliseconds[batch] = statistics.median(times[way]) * 1e3
            found[way].ratios[batch] = statistics.median(
                one / other for one, other in zip(times["float32"], times[way], strict=True)
            )
    return found


def _runs(serve: Serve, feed: dict[str, Any]) -> bool:
    """Whether TFLite's interpreter in Python has all ops: it has none of TensorFlow's own."""
    try:
        serve(feed)
    except RuntimeError as error:
        print(f"TFLite does not run it: {error}", file=sys.stderr)
        return False
    return True


def _seconds(serve: Serve, feed: dict[str, Any], count: int, clock: Callable[[], float]) -> float:
    start = clock()
    for _ in range(count):
        serve(feed)
    return max(clock() - start, 1e-9) / count


def memory_of(way: str, folder: Path, options: Mapping[str, Any]) -> float:
    """MiB that a loaded model takes in this process, once it has answered."""
    feed = feed_of(folder, min(options["batches"]))
    switch_pass(way, options["precision"])
    gc.collect()
    before = resident("VmRSS")
    serve = load(way, folder)
    serve(feed)
    gc.collect()
    return resident("VmRSS") - before


def work(options: dict[str, Any]) -> None:
    """What a process of its own does; prints JSON."""
    folder = Path(options["folder"])
    if options["step"] == "make":
        make(options["model"], folder, options["ways"], options["precision"])
        print("null")
    elif options["step"] == "memory":
        importlib.import_module("tensorflow")  # once, before the forks
        with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
            jobs = [(way, folder, options) for way in options["ways"]]
            print(
                json.dumps(
                    dict(
                        zip(
                            options["ways"], pool.starmap(memory_of, jobs, chunksize=1), strict=True
                        )
                    )
                )
            )
    else:
        found = time_ways(folder, options["ways"], options)
        print(json.dumps({way: dataclasses.asdict(each) for way, each in found.items()}))


def run(options: dict[str, Any]) -> Any:
    """What :func:`work` prints in a process without amp_tf's hooks.

    Raises:
        RuntimeError: it failed; the message is the end of what it wrote to stderr.
    """
    environ = environment(modes("bfloat16")["float32"]) | {
        "PYTHONPATH": str(ROOT),
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
    command = [sys.executable, "-m", "benchmarks.serving", "--work", json.dumps(options)]
    ended = subprocess.run(
        command, env=environ, cwd=ROOT, capture_output=True, text=True, check=False
    )
    if ended.returncode:
        raise RuntimeError(
            f"{options['model']}: exit status {ended.returncode}\n{ended.stderr[-2000:]}"
        )
    sys.stderr.writelines(
        f"{line}\n" for line in ended.stderr.splitlines() if " nodes converted." in line
    )
    return json.loads(ended.stdout.splitlines()[-1])


def measure(model: str, ways: Sequence[str], arguments: argparse.Namespace) -> dict[str, Served]:
    """One model in all ways."""
    with tempfile.TemporaryDirectory() as name:
        given = {"model": model, "folder": name, "ways": ways, "precision": arguments.precision}
        given |= {
            "batches": arguments.batches,
            "rounds": arguments.rounds,
            "clock": arguments.clock,
        }
        run({**given, "step": "make"})
        timed = run({**given, "step": "time"})
        mib = run({**given, "step": "memory", "ways": list(timed)})
        found = {}
        for way in timed:
            numbers = {
                key: {int(batch): value for batch, value in timed[way][key].items()}
                for key in ("milliseconds", "ratios")
            }
            files = Path(name, SAVED.get(way, way)).rglob("*")
            size = sum(file.stat().st_size for file in files if file.is_file()) / 1e6
            found[way] = Served(size, mib[way], timed[way]["error"], **numbers)
    return found


def table(model: str, found: Mapping[str, Served], batches: Sequence[int]) -> str:
    """One model's rows: after float32's time over that of the way, the milliseconds."""
    head = ["model", "way", "MB", "MiB", "error", *(f"batch {batch}" for batch in batches)]
    lines = ["| " + " | ".join([*head, *(f"ms at {batch}" for batch in batches)]) + " |"]
    lines.append("|---|---|" + "---:|" * (3 + 2 * len(batches)))
    for way, each in found.items():
        cells = [model, way, f"{each.megabytes:.1f}", f"{each.mib:.0f}", f"{each.error:.2g}"]
        cells += [f"{each.ratios[batch]:.2f}" for batch in batches]
        lines.append(
            "| "
            + " | ".join([*cells, *(f"{each.milliseconds[batch]:.2f}" for batch in batches)])
            + " |"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument(
        "--ways", nargs="+", choices=WAYS[1:], default=WAYS[1:], help="besides float32"
    )
    parser.add_argument(
        "--precision", default="bfloat16", help="of what is converted (default bfloat16)"
    )
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 64])
    parser.add_argument("--rounds", type=int, default=9, help="measurements of each (default 9)")
    parser.add_argument(
        "--clock", choices=CLOCKS, default="wall", help="cpu on a busy machine (default wall)"
    )
    parser.add_argument("--json", type=Path, help="also write the measurements")
    parser.add_argument("--work", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.work:
        work(options.work)
        return 0
    everything = {}
    for model in options.models:
        found = measure(model, ["float32", *options.ways], options)
        everything[model] = {way: dataclasses.asdict(each) for way, each in found.items()}
        print(f"\n{table(model, found, options.batches)}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(everything))
    return 0


if __name__ == "__main__":
    sys.exit(main())
