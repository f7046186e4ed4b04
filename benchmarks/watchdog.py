"""What the watchdog does with faults, with bad data and with healthy runs, and what it costs.

    python -m benchmarks.watchdog faults [--runs 50] [--first 0]
    python -m benchmarks.watchdog healthy [--runs 50]
    python -m benchmarks.watchdog overhead [--rounds 21]

Run i draws everything from seed i: a small network of blocks, its data, and for ``faults`` a block and a step at which
16 bit overflows (float16) or cancels to 0/0 (both types), and every second time another step whose data hold nan. Even
runs are float16, odd ones bfloat16. The block at fault is forced to 16 bit, or amp_tf's own rules would keep it from
harm. Each run is trained in float32 as well, without the
batch of bad data, and is right if the watchdog reverted that block and no other, once, if as many steps were made, if
just the bad batch was called bad, and if the last loss is float32's within 5 %. A healthy run is right if nothing was
reverted or called bad, and if every loss is that of the same run without the watchdog, to the last bit.

``overhead`` trains copies of a model in turn, two with the watchdog and two without it: the median over rounds of the
ratio within a round. In bfloat16 the watchdog also brings the check for gradients that are not finite; float16 has
it in any case.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import amp_tf
from amp_tf import lock
from amp_tf.tools.watchdog import reverts

STEPS, BATCH, WIDTH = 12, 16, 8
CLOSE = 0.05  # float16's and bfloat16's own roundings, over twelve steps


class Block(keras.layers.Layer):
    """A dense layer and an activation; at one step, something that float32 alone can do.

    Args:
        kind: ``"overflow"``: its activations grow beyond float16 and back; ``"cancel"``: 1 is added to small numbers
            and taken away again, and they are divided by what is left; ``""`` for a healthy block.
        at: the step, from 1 on.
    """

    def __init__(self, kind: str, at: int, name: str) -> None:
        super().__init__(name=name)
        self._kind, self._at = kind, at
        self._dense = keras.layers.Dense(WIDTH, activation="tanh")

    def build(self, shape: Any) -> None:
        self._dense.build(shape)
        self._count = self.add_weight(shape=(), dtype="int32", trainable=False, initializer="zeros")
        self._one = self.add_weight(shape=(), trainable=False, initializer="ones")

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self._count.assign_add(1)
        is_now = tf.equal(tf.convert_to_tensor(self._count), self._at)
        y = x + self._dense(x)
        if self._kind == "overflow":
            gain = tf.where(is_now, 3e6, 1.0)
            return tf.reshape(y * gain, tf.shape(y)) / gain
        if self._kind == "cancel":
            small = tf.where(is_now, 1e-4, 1.0) * (1.0 + tf.stop_gradient(y) ** 2)
            one = tf.convert_to_tensor(self._one)  # a variable, or TensorFlow would take the constants together
            return y * (small / ((small + one) - one))
        return y


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a run is to be.

    Attributes:
        seed: of everything.
        precision: the 16-bit type.
        depth: how many blocks.
        kind, place, at: the fault: what it is, in which block from 0 on, and at which step from 1 on.
        bad: the step whose data hold nan; 0 for none.
    """

    seed: int
    precision: str
    depth: int
    kind: str
    place: int
    at: int
    bad: int

    @classmethod
    def draw(cls, seed: int, *, is_healthy: bool) -> Plan:
        rng = np.random.default_rng(seed)
        precision = ("float16", "bfloat16")[seed % 2]
        depth = int(rng.integers(2, 6))
        kind = "overflow" if precision == "float16" and rng.random() < 0.6 else "cancel"
        at, bad = (int(step) for step in rng.choice(np.arange(1, STEPS + 1), 2, replace=False))
        place = int(rng.integers(depth))
        if is_healthy:
            return cls(seed, precision, depth, "", 0, 0, 0)
        return cls(seed, precision, depth, kind, place, at, bad if rng.random() < 0.5 else 0)

    @property
    def block(self) -> str:
        """The name of the block at fault."""
        return f"block_{self.place}"

    @property
    def scope(self) -> str:
        """A regular expression for its name scope, to which Keras may add a number."""
        return rf"(^|/){self.block}(_\d+)?"

    def __str__(self) -> str:
        parts = [self.precision, f"{self.kind} in {self.block} at step {self.at}" if self.kind else "healthy"]
        return ", ".join([*parts, *([f"nan at {self.bad}"] if self.bad else [])])


@dataclasses.dataclass(frozen=True)
class Trained:
    """What came of a run.

    Attributes:
        losses: after each step, as Keras shows them.
        steps: how many the optimizer made.
        watched, reverts, bad_batches, lost: what the watchdog counts.
        layers: what is in its lock file.
    """

    losses: Sequence[float]
    steps: int
    watched: int = 0
    reverts: int = 0
    bad_batches: int = 0
    lost: int = 0
    layers: Sequence[str] = ()


class _Losses(keras.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.found.append(float(logs["loss"]))


def train(plan: Plan, *, leaves_bad_out: bool = False) -> Trained:
    """Trains a run's model with what is on now."""
    keras.utils.set_random_seed(plan.seed)
    rng = np.random.default_rng(plan.seed)
    x = rng.normal(size=(STEPS, BATCH, WIDTH)).astype("float32")
    y = np.tanh(x[:, :, :1] - x[:, :, 1:2])
    if plan.bad and leaves_bad_out:
        x, y = (np.delete(data, plan.bad - 1, axis=0) for data in (x, y))
    elif plan.bad:
        x[plan.bad - 1, int(rng.integers(BATCH)), int(rng.integers(WIDTH))] = np.nan
    blocks = [Block(plan.kind if n == plan.place else "", plan.at, f"block_{n}") for n in range(plan.depth)]
    layers = [keras.Input((WIDTH,)), keras.layers.Dense(WIDTH), keras.layers.BatchNormalization(), *blocks]
    model = keras.Sequential([*layers, keras.layers.Dense(1)], name="net")
    optimizer = keras.optimizers.SGD(0.02, momentum=0.9)
    if amp_tf.is_enabled() and plan.precision == "float16":
        optimizer = amp_tf.LossScaleOptimizer(optimizer, 2.0**8)  # which overflows in none of these
    model.compile(optimizer, "mse", metrics=["mae"], jit_compile=False)
    seen = _Losses()
    data = tf.data.Dataset.from_tensor_slices((x.reshape(-1, WIDTH), y.reshape(-1, 1))).batch(BATCH)
    model.fit(data, verbose=0, callbacks=[seen])
    return Trained(seen.found, int(model.optimizer.iterations.numpy()))


def train_watched(plan: Plan) -> Trained:
    """Trains a run's model in 16 bit under the watchdog."""
    reverts.counts = reverts.Counts()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "amp.lock")
        with amp_tf.enable(settings(plan, watchdog=True, lock=str(path))):
            trained = train(plan)
        layers = [one.name for one in lock.read(str(path)).decisions] if path.exists() else []
    counted = {name: getattr(reverts.counts, name) for name in ("watched", "reverts", "bad_batches", "lost")}
    return dataclasses.replace(trained, layers=layers, **counted)


def settings(plan: Plan, **more: Any) -> amp_tf.AmpConfig:
    forced = (f"{plan.scope}/",) if plan.kind else ()
    return amp_tf.AmpConfig(precision=plan.precision, force_f16=forced, ignore_performance=True, **more)


def judge_fault(plan: Plan) -> str:
    """What is wrong with a run with a fault; empty for nothing."""
    truth, found = train(plan, leaves_bad_out=True), train_watched(plan)
    wrong = []
    if found.watched != STEPS:
        wrong.append(f"{found.watched} steps watched")
    if found.steps != truth.steps or found.lost:
        wrong.append(f"{truth.steps - found.steps} steps lost")
    if found.reverts != 1 or not all(re.search(f"{plan.scope}(/|$)", name) for name in found.layers):
        wrong.append(f"{found.reverts} reverts: {', '.join(found.layers) or 'nothing'}")
    if found.bad_batches != bool(plan.bad):
        wrong.append(f"{found.bad_batches} batches called bad")
    off = abs(found.losses[-1] - truth.losses[-1]) / truth.losses[-1]
    if not off <= CLOSE:
        wrong.append(f"the loss is {off:.1%} off")
    return ", ".join(wrong)


def judge_healthy(plan: Plan) -> str:
    """What is wrong with a healthy run; empty for nothing."""
    with amp_tf.enable(settings(plan)):
        plain = train(plan)
    found = train_watched(plan)
    wrong = [] if found.watched == STEPS else [f"{found.watched} steps watched"]
    if found.reverts or found.bad_batches or found.lost:
        wrong.append(f"{found.reverts} reverts, {found.bad_batches} batches called bad, {found.lost} steps lost")
    if found.steps != plain.steps or list(found.losses) != list(plain.losses):
        wrong.append("other losses than without the watchdog")
    return ", ".join(wrong)


def run(what: str, first: int, count: int) -> int:
    """Prints a line for each run; returns how many are wrong."""
    failures = 0
    for seed in range(first, first + count):
        plan = Plan.draw(seed, is_healthy=what == "healthy")
        begin = time.perf_counter()
        wrong = judge_healthy(plan) if what == "healthy" else judge_fault(plan)
        failures += bool(wrong)
        print(f"{seed:3} {time.perf_counter() - begin:5.1f} s  {plan}: {wrong or 'right'}", flush=True)
        keras.backend.clear_session()
    print(f"{what}: {count - failures} of {count} right")
    return failures


def dense() -> tuple[Any, tuple[int, ...]]:
    layers = [keras.layers.Dense(512, activation="relu") for _ in range(4)]
    return keras.Sequential([keras.Input((256,)), *layers, keras.layers.Dense(10)]), (128, 256)


def convolutions() -> tuple[Any, tuple[int, ...]]:
    layers: list[Any] = [keras.Input((32, 32, 3))]
    for width in (32, 64, 128):
        layers += [
            keras.layers.Conv2D(width, 3, strides=2, padding="same"),
            keras.layers.BatchNormalization(),
            keras.layers.ReLU(),
        ]
    return keras.Sequential([*layers, keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(10)]), (64, 32, 32, 3)


MODELS = {"dense": dense, "convolutions": convolutions}


def measure(name: str, precision: str, rounds: int, steps: int) -> tuple[float, float]:
    """Seconds a step without the watchdog, and the ratio with it."""

    def make(is_watched: bool) -> Callable[[], float]:
        more = {"watchdog": True, "lock": str(Path(folder, "amp.lock"))} if is_watched else {}
        with amp_tf.enable(amp_tf.AmpConfig(precision=precision, ignore_performance=True, **more)):
            keras.utils.set_random_seed(0)
            model, shape = MODELS[name]()
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(keras.optimizers.Adam(1e-4), loss, metrics=["accuracy"], jit_compile=False)
            rng = np.random.default_rng(0)
            data = rng.normal(size=shape).astype("float32"), rng.integers(0, 10, shape[0]).astype("int32")
            batches = tf.data.Dataset.from_tensors(data).cache().repeat(steps)
            model.fit(batches, epochs=2, verbose=0)

        def seconds() -> float:
            begin = time.perf_counter()
            model.fit(batches, verbose=0)
            return (time.perf_counter() - begin) / steps

        return seconds

    with tempfile.TemporaryDirectory() as folder:
        trainers = [(kind, make(kind)) for kind in (False, True, True, False)]
        make(False)  # the model that is made last is slower, whichever it is, and is not timed
        times: dict[bool, list[float]] = {False: [], True: []}
        for number in range(rounds):
            taken: dict[bool, float] = {False: 0.0, True: 0.0}
            for kind, seconds in trainers if number % 2 else trainers[::-1]:
                taken[kind] += seconds() / 2
            for kind, value in taken.items():
                times[kind].append(value)
    ratios = [watched / plain for plain, watched in zip(times[False], times[True], strict=True)]
    return statistics.median(times[False]), statistics.median(ratios)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("faults", "healthy", "overhead"))
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--first", type=int, default=0, help="the seed of the first run")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--steps", type=int, default=30, help="steps of a round")
    parser.add_argument("--precisions", nargs="+", default=["bfloat16", "float16"])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    args = parser.parse_args(arguments)
    if args.what != "overhead":
        return int(run(args.what, args.first, args.runs) > 0)
    for precision in args.precisions:
        for name in args.models:
            seconds, ratio = measure(name, precision, args.rounds, args.steps)
            print(f"{name}, {precision}: {1e3 * seconds:.2f} ms a step, {ratio - 1:+.1%} with the watchdog", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
