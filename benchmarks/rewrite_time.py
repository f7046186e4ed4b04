"""CPU time of amp_tf's rewrite beside that of TensorFlow's own C++ pass, on the same graphs.

    python benchmarks/rewrite_time.py                      all graphs; tracing takes minutes, once
    python benchmarks/rewrite_time.py lstm synthetic-10k   some graphs
    python benchmarks/rewrite_time.py --first-step         also the first training step

The graphs are training graphs with calls inlined and loops lowered. ``--cache`` keeps them in the
system's temporary directory. Each figure is a median of rounds, in CPU time of the calling thread,
in which both run.

- TensorFlow's pass: the time of OptimizeGraph with the bfloat16 pass alone, less its time with a
  pass that ends at once, round by round.
- amp_tf: ``amp_tf.rewrite``, verification included.
- Memory: the growth of a fresh process' peak resident size during one ``amp_tf.rewrite``, divided
  by the size of the serialized graph.

The exit status is 1 if a goal is missed: at most twice TensorFlow's time, at most 6 times the
graph's size, at most 3 % of the first training step.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tensorflow.core.framework import graph_pb2  # noqa: E402  the path and the log level must be set first

import amp_tf  # noqa: E402

TIME_GOAL = 2.0
MEMORY_GOAL = 6.0
STEP_GOAL = 0.03
CONFIG = amp_tf.AmpConfig(precision="bfloat16", target="cpu")


@dataclasses.dataclass(frozen=True)
class Graph:
    """A graph to rewrite.

    Attributes:
        first_step: seconds of the first training step in float32, tracing included; 0 if not
            measured.
    """

    graph_def: graph_pb2.GraphDef
    preserve: tuple[str, ...]
    first_step: float = 0.0


@dataclasses.dataclass(frozen=True)
class Result:
    """Seconds for one graph, medians of the rounds; memory in bytes."""

    nodes: int
    tensorflow: float
    amp_tf: float
    memory: int
    size: int
    first_step: float

    @property
    def ratio(self) -> float:
        return self.amp_tf / self.tensorflow

    @property
    def memory_ratio(self) -> float:
        return self.memory / self.size

    @property
    def reaches_goals(self) -> bool:
        # On small graphs the memory is that of the kernel registry and of Python's own arenas, not
        # of the graph.
        in_memory = self.memory_ratio <= MEMORY_GOAL or self.size < 2**20
        in_step = not self.first_step or self.amp_tf <= STEP_GOAL * self.first_step
        return self.ratio <= TIME_GOAL and in_memory and in_step


def resnet50(first_step: bool) -> Graph:
    return _application("ResNet50", 224, first_step)


def efficientnet_b7(first_step: bool) -> Graph:
    return _application("EfficientNetB7", 224, first_step)


def bert_base(first_step: bool) -> Graph:
    """A BERT-like encoder with a classifier on the first token."""
    import keras
    import tensorflow as tf

    layers = keras.layers
    tokens = keras.Input([128], dtype="int32")
    x = layers.Embedding(30522, 768)(tokens)
    for _ in range(12):
        x = layers.LayerNormalization()(x + layers.MultiHeadAttention(12, 64, dropout=0.1)(x, x))
        y = layers.Dense(768)(layers.Dense(4 * 768, activation="gelu")(x))
        x = layers.LayerNormalization()(x + layers.Dropout(0.1)(y))
    model = keras.Model(tokens, layers.Dense(10)(x[:, 0]))
    return _trained(model, tf.TensorSpec([2, 128], tf.int32), first_step)


def lstm(first_step: bool) -> Graph:
    import keras
    import tensorflow as tf

    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input([32, 64]),
            layers.LSTM(256, return_sequences=True),
            layers.LSTM(256),
            layers.Dense(10),
        ]
    )
    return _trained(model, tf.TensorSpec([2, 32, 64]), first_step)


def _application(name: str, side: int, first_step: bool) -> Graph:
    import keras
    import tensorflow as tf

    build = getattr(keras.applications, name)
    model = build(
        weights=None, input_shape=(side, side, 3), classes=1000, classifier_activation=None
    )
    return _trained(model, tf.TensorSpec([2, side, side, 3]), first_step)


def _trained(model, inputs, first_step: bool) -> Graph:
    """A training step with Adam after TensorFlow's function optimizer, which inlines calls and
    lowers loops.
    """
    import keras
    import numpy as np
    import tensorflow as tf

    from tests.oracle import optimized

    optimizer = keras.optimizers.Adam(1e-3)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer.build(model.trainable_variables)

    @tf.function(jit_compile=False)
    def step(label, features):
        with tf.GradientTape() as tape:
            loss = loss_of(label, model(features, training=True))
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    specs = (tf.TensorSpec((2,), tf.int32), inputs)
    seconds = 0.0
    if first_step:
        feeds = [np.ones(spec.shape, spec.dtype.as_numpy_dtype) for spec in specs]
        start = time.perf_counter()
        step(*feeds).numpy()
        seconds = time.perf_counter() - start
    graph = step.get_concrete_function(*specs).graph
    preserve = tuple(
        dict.fromkeys(
            [*(x.op.name for x in graph.outputs), *(op.name for op in graph.control_outputs)]
        )
    )
    return Graph(optimized(graph.as_graph_def(), ("function",), preserve), preserve, seconds)


def synthetic(nodes: int) -> Graph:
    """Layers of ten nodes, with all four colors, a branch, and a control input each."""
    graph = graph_pb2.GraphDef()
    graph.versions.producer = 2000

    def add(name: str, op: str, *inputs: str, attr: str = "T", **types: int) -> str:
        node = graph.node.add(name=name, op=op)
        node.input.extend(inputs)
        for key, value in (types or {attr: 1}).items():
            node.attr[key].type = value
        return name

    add("axis", "Const", dtype=3)
    graph.node[0].attr["value"].tensor.dtype = 3
    add("x0", "Placeholder", attr="dtype")
    x = "x0"
    for i in range((nodes - 2) // 10):
        handle = add(f"v{i}", "VarHandleOp", attr="dtype")
        weights = add(f"w{i}", "ReadVariableOp", handle, attr="dtype")
        product = add(f"product{i}", "MatMul", x, weights)
        relu = add(f"relu{i}", "Relu", add(f"sum{i}", "AddV2", product, x))
        mean = add(f"mean{i}", "Mean", relu, "axis", T=1, Tidx=3)
        scale = add(f"scale{i}", "Exp", mean)
        shifted = add(f"shifted{i}", "Mul", relu, scale)
        mixed = add(
            f"mixed{i}", "Maximum", add(f"same{i}", "Identity", shifted, f"^{product}"), relu
        )
        x = mixed
    for node in graph.node:
        if node.op in ("VarHandleOp", "Placeholder"):
            node.attr["shape"].shape.unknown_rank = True
    return Graph(graph, (x,))


GRAPHS: dict[str, Callable[[bool], Graph]] = {
    "resnet50": resnet50,
    "efficientnet-b7": efficientnet_b7,
    "bert-base": bert_base,
    "lstm": lstm,
    "synthetic-1k": lambda _: synthetic(1_000),
    "synthetic-10k": lambda _: synthetic(10_000),
    "synthetic-100k": lambda _: synthetic(100_000),
}


def load(name: str, cache: pathlib.Path, first_step: bool) -> Graph:
    """The graph by its name, from the cache; made in a process of its own, so that tracing leaves
    no memory behind.
    """
    file = cache / f"{name}.pb"
    facts = cache / f"{name}.json"
    is_traced = not name.startswith("synthetic")
    if not facts.exists() or (
        first_step and is_traced and not json.loads(facts.read_text())["first_step"]
    ):
        print(f"making {name} …", file=sys.stderr, flush=True)
        command = [sys.executable, __file__, "--make", name, "--cache", str(cache)]
        subprocess.run([*command, "--first-step"] if first_step else command, check=True)
    graph = graph_pb2.GraphDef.FromString(file.read_bytes())
    known = json.loads(facts.read_text())
    return Graph(graph, tuple(known["preserve"]), known["first_step"])


def make(name: str, cache: pathlib.Path, first_step: bool) -> None:
    graph = GRAPHS[name](first_step)
    cache.mkdir(parents=True, exist_ok=True)
    (cache / f"{name}.pb").write_bytes(graph.graph_def.SerializeToString())
    known = {"preserve": graph.preserve, "first_step": graph.first_step}
    (cache / f"{name}.json").write_text(json.dumps(known))


def measure(name: str, graph: Graph, rounds: int, cache: pathlib.Path) -> Result:
    from tests.oracle import Mode, run_original

    given = graph.graph_def
    preserve = graph.preserve
    theirs = []
    ours = []
    if len(given.node) < 5000:  # the difference of two small times needs more of them
        rounds *= 6
    for _ in range(rounds):
        empty = _cpu_seconds(lambda: run_original(given, None, preserve))
        original = _cpu_seconds(lambda: run_original(given, Mode.BFLOAT16, preserve))
        theirs.append(original - empty)
        ours.append(_cpu_seconds(lambda: amp_tf.rewrite(given, CONFIG, preserve=preserve)))
    command = [sys.executable, __file__, "--memory", name, "--cache", str(cache)]
    memory = subprocess.check_output(command, stderr=subprocess.DEVNULL, text=True)
    return Result(
        nodes=len(given.node),
        tensorflow=statistics.median(theirs),
        amp_tf=statistics.median(ours),
        memory=int(memory),
        size=given.ByteSize(),
        first_step=graph.first_step,
    )


def _cpu_seconds(call: Callable[[], object]) -> float:
    start = time.thread_time()
    call()
    return time.thread_time() - start


def peak_growth(name: str, cache: pathlib.Path) -> int:
    """By how many bytes one rewrite raises this process' peak resident size (Linux)."""
    warm = synthetic(200)
    amp_tf.rewrite(warm.graph_def, CONFIG, preserve=warm.preserve)
    graph = load(name, cache, False)
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # resets the peak to the present size
    before = _status("VmRSS")
    result = amp_tf.rewrite(graph.graph_def, CONFIG, preserve=graph.preserve)
    assert result.changed
    return _status("VmHWM") - before


def _status(key: str) -> int:
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {key}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "graphs", nargs="*", metavar="GRAPH", help=f"of {', '.join(GRAPHS)}; default: all"
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--first-step", action="store_true", help="time the first step, too")
    parser.add_argument(
        "--cache", type=pathlib.Path, default=pathlib.Path(tempfile.gettempdir(), "amp_tf_graphs")
    )
    parser.add_argument("--make", help=argparse.SUPPRESS)
    parser.add_argument("--memory", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := set(options.graphs) - set(GRAPHS):
        parser.error(f"unknown graphs: {', '.join(sorted(unknown))}; valid: {', '.join(GRAPHS)}")
    if options.make:
        make(options.make, options.cache, options.first_step)
        return 0
    if options.memory:
        print(peak_growth(options.memory, options.cache))
        return 0
    print(HEAD)
    status = 0
    for name in options.graphs or GRAPHS:
        graph = load(name, options.cache, options.first_step)
        result = measure(name, graph, options.rounds, options.cache)
        print(_row(name, result), flush=True)
        status |= not result.reaches_goals
    return status


HEAD = (
    "| graph | nodes | TensorFlow's pass, ms | amp_tf, ms | ratio | µs a node | memory / graph "
    "| of the first step |\n|---|---|---|---|---|---|---|---|"
)


def _row(name: str, result: Result) -> str:
    cells = [name, f"{result.nodes:,}"]
    cells += [f"{result.tensorflow * 1e3:.1f}", f"{result.amp_tf * 1e3:.1f}"]
    cells += [f"{result.ratio:.2f}", f"{result.amp_tf / result.nodes * 1e6:.1f}"]
    cells += [f"{result.memory_ratio:.1f}"]
    if result.first_step:
        cells += [f"{result.amp_tf / result.first_step:.1%} of {result.first_step:.1f} s"]
    else:
        cells += ["–"]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
