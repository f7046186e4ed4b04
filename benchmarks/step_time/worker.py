"""One process of the suite: one model in one mode. It reads commands from stdin, JSON by line, and
answers on stdout.

``{"do": "prepare", "way": …}`` builds the model and runs its first steps; ``{"do": "round",
"seconds": …}`` times steps, and ``{"do": "profile", "seconds": …}`` tells which kernels they ran.
Between commands it sleeps, so that the processes of all modes can be alive and take turns.
"""

from __future__ import annotations

import collections
import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.models import benchmark
from benchmarks.step_time import traces
from benchmarks.step_time.modes import WAYS, Mode, Way, modes

FIRST_STEPS = 8
"""Steps that the first fit of each way makes: their losses are compared between modes; all but the
first warm up.
"""


def _switch_on_amp_tf(checkout: Path | None) -> None:
    """Does what the .pth file of an installed amp_tf does at the start of Python; a second time
    changes nothing.

    Args:
        checkout: whose amp_tf it is to be, in place of the one that is installed.
    """
    if checkout:
        sys.modules.pop("_amp_tf_start", None)
        sys.meta_path[:] = [
            finder for finder in sys.meta_path if type(finder).__module__ != "_amp_tf_start"
        ]
        sys.path.insert(0, str(checkout.resolve()))
    if os.environ.get("TF_ENABLE_AUTO_MIXED_PRECISION"):
        import _amp_tf_start

        _amp_tf_start.install()


class Clock:
    """Makes the Keras callback that notes when each batch ended, and its loss."""

    def __init__(self, keras: Any) -> None:
        self._keras = keras
        self.ends: list[float] = []
        self.losses: list[float] = []

    def callback(self) -> Any:
        clock = self

        class Note(self._keras.callbacks.Callback):  # type: ignore[misc]
            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                clock.ends.append(time.perf_counter())
                clock.losses.append(float(logs["loss"]))

            def on_predict_batch_end(self, batch: int, logs: Any = None) -> None:
                clock.ends.append(time.perf_counter())

        return Note()


class Runner:
    """A model, ready to make steps in one way.

    Args:
        name, size, batch: the workload and its batch size, ``None`` for the workload's own.
        way: how to run it.
    """

    def __init__(self, name: str, size: str, batch: int | None, way: Way) -> None:
        import tensorflow as tf

        self._way = way
        self._workload = benchmark(name).workload(size)
        import keras  # by now the workload has imported TensorFlow

        # The seeds of tf_keras, too: its own function changes what later seeds do.
        keras.utils.set_random_seed(0)
        self.batch = batch or self._workload.batch
        x, y = self._workload.data(4 * self.batch, 0)
        self.model = self._workload.model()
        data = tf.data.Dataset.from_tensor_slices((x, y) if way.trains else (x,)).repeat()
        self._data = data.batch(self.batch, drop_remainder=True).prefetch(2)
        if not way.through_keras:
            self._iterator = iter(self._data)
            self._step = self._custom_step()
        elif way.trains:
            optimizer = self._workload.optimizer()
            loss = self._workload.loss
            self.model.compile(optimizer=optimizer, loss=loss, jit_compile=way.jit)
        else:
            self.model.compile(jit_compile=way.jit)

    def steps(self, count: int) -> Clock:
        """Makes steps; the clock has when each ended, and in training its loss."""
        clock = Clock(self._workload.keras)
        if not self._way.through_keras:
            for _ in range(count):
                clock.losses.append(float(self._step(next(self._iterator))))
                clock.ends.append(time.perf_counter())
            return clock
        options = {"verbose": 0, "callbacks": [clock.callback()]}
        if self._way.trains:
            self.model.fit(self._data, steps_per_epoch=count, **options)
        else:
            self.model.predict(self._data, steps=count, **options)
        return clock

    def _custom_step(self) -> Any:
        import tensorflow as tf

        model = self.model
        workload = self._workload
        optimizer = workload.optimizer()
        optimizer.build(model.trainable_variables)

        @tf.function
        def step(batch: Any) -> Any:
            x, y = batch
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(workload.loss(y, model(x, training=True)))
            weights = [weight.value for weight in model.trainable_variables]
            optimizer.apply(tape.gradient(loss, weights), model.trainable_variables)
            return loss

        return step


def new_runner(options: dict[str, Any], way: Way) -> Runner:
    """A runner whose model is built in a fresh Keras session, under the policy of the mode."""
    keras = benchmark(options["model"]).workload(options["size"]).keras
    keras.backend.clear_session()
    mode = modes(options["precision"])[options["mode"]]
    keras.mixed_precision.set_global_policy(mode.policy)  # was cleared as well
    return Runner(options["model"], options["size"], options["batch"], way)


def conversions(mode: Mode) -> tuple[int, int]:
    """The nodes that amp_tf converted in this process so far, and the casts that it inserted."""
    if not mode.is_ours:
        return 0, 0
    import amp_tf

    report = amp_tf.report()  # a public name, which another checkout has as well
    return report.converted, report.casts


def prepare(options: dict[str, Any], way: Way) -> tuple[Runner, dict[str, Any]]:
    """Builds a runner and makes its first steps."""
    mode = modes(options["precision"])[options["mode"]]
    converted_before, casts_before = conversions(mode)
    runner = new_runner(options, way)
    begin = time.perf_counter()
    clock = runner.steps(FIRST_STEPS)
    converted, casts = conversions(mode)
    return runner, {
        "converted": converted - converted_before,
        "casts": casts - casts_before,
        "batch": runner.batch,
        "first_step_s": clock.ends[0] - begin,
        "losses": clock.losses,
        "peak_mib": _peak_mib(),
    }


def _peak_mib() -> float:
    """Returns the largest memory so far: of the GPU, where there is one, or of the process."""
    import tensorflow as tf

    if tf.config.list_physical_devices("GPU"):
        return float(tf.config.experimental.get_memory_info("GPU:0")["peak"]) / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def timed_round(runner: Runner, seconds: float, step_s: float) -> dict[str, float]:
    """Mean milliseconds of a step over about so many seconds; the first step, which waits for data,
    does not count.
    """
    clock = runner.steps(_steps_in(seconds, step_s))
    return {"ms": (clock.ends[-1] - clock.ends[0]) / (len(clock.ends) - 1) * 1e3}


def profiled_round(runner: Runner, seconds: float, step_s: float) -> dict[str, tuple[float, float]]:
    """The milliseconds by the clock of each op's kernels in a step, and their number."""
    count = _steps_in(seconds, step_s)
    total: dict[str, float] = collections.defaultdict(float)
    kernels: dict[str, int] = collections.Counter()
    recorded = traces.record(lambda: runner.steps(count))
    ran = list(traces.kernels(recorded))
    shares = traces.shares([event for _, event in ran])
    for (op, _), ms in zip(ran, shares, strict=True):
        total[op] += ms
        kernels[op] += 1
    return {op: (total[op] / count, kernels[op] / count) for op in total}


def _steps_in(seconds: float, step_s: float) -> int:
    return max(4, int(seconds / max(step_s, 1e-5)) + 1)


def set_up(mode: Mode) -> None:
    """Puts this process into a mode, but for the policy of its models; call it before TensorFlow is
    imported.
    """
    _switch_on_amp_tf(mode.checkout)
    import tensorflow as tf

    if mode.graph_option:
        tf.config.optimizer.set_experimental_options({mode.graph_option: True})


def _package_at_work() -> str:
    """The folder of the amp_tf that this process has imported, if any."""
    package = sys.modules.get("amp_tf")
    if package is None or package.__file__ is None:
        return ""
    return str(Path(package.__file__).parent)


def main() -> int:
    options = json.loads(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else prints goes to stderr
    set_up(modes(options["precision"])[options["mode"]])
    runner = None
    step_s = 1.0
    for line in sys.stdin:
        command = json.loads(line)
        if command["do"] == "prepare":
            runner = None
            runner, answer = prepare(options, WAYS[command["way"]])
            step_s = timed_round(runner, 0.0, 1.0)["ms"] / 1e3
        elif command["do"] == "round" and runner is not None:
            answer = timed_round(runner, command["seconds"], step_s)
        elif command["do"] == "profile" and runner is not None:
            answer = profiled_round(runner, command["seconds"], step_s)
        else:  # "package"
            answer = {"amp_tf": _package_at_work()}
        print(json.dumps(answer), file=answers, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
