"""Finds the smallest part of a model that has to stay in float32, by training it, and writes it to a lock file.

``amp_tf.tune`` trains by calling a function in this process; the command, by running a program.
"""

from __future__ import annotations

import dataclasses
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from amp_tf.config import AmpConfig, check_config
from amp_tf.errors import ConfigError
from amp_tf.hooks import state as process_state
from amp_tf.hooks import step_times, switch
from amp_tf.lock import Lock, read
from amp_tf.oplists.targets import resolve_target
from amp_tf.reporting import files, process
from amp_tf.tools.comparing import LIBRARIES, functions
from amp_tf.tools.comparing.training import CompareRequest, Training
from amp_tf.tools.tuning.result import Outcome, Tuned, read_goal
from amp_tf.tools.tuning.tuning import Journal, Tuning, Way

METRIC = "metric"
_WHERE = "amp_tf.tune"


def tune(
    train: Callable[[], float],
    *,
    max_drop: float | None = None,
    max_rise: float | None = None,
    max_runs: int = 40,
    lock: str = "amp.lock",
    config: AmpConfig | None = None,
    tell: Callable[[str], None] = print,
) -> Tuned:
    """Finds the smallest part of a model that has to stay in float32, and writes it to a lock file.

    The function is called again and again: in float32 twice, with all in 16 bit that amp_tf converts, and with ever
    fewer layers in float32. Its first training step is compared once, to know where to begin. The method is that of
    :mod:`amp_tf.tools.search`.

    Args:
        train: builds the model anew, trains it and returns the metric, a number. What it built in an earlier call must
            not be used again: TensorFlow would run the graphs of that call.
        max_drop: by how much the metric may be smaller than in float32; or
        max_rise: by how much it may be larger, of a loss.
        max_runs: how often it is called at most.
        lock: the file to write; what one that is there keeps in float32 is tried before anything else.
        config: what to convert; the environment's settings by default.
        tell: called with a line for each run.

    Returns:
        What was found; its ``lock`` is ``None`` where nothing suffices, and then no file is written.

    Raises:
        ConfigError: an argument is not valid, amp_tf is on already, or nothing would be converted.
        FileError: the lock file cannot be written.
        AmpError: in float32 the function gives no number, or amp_tf changes it although nothing is in 16 bit.
    """
    if (max_drop is None) == (max_rise is None):
        raise ConfigError("expected max_drop or max_rise", where=_WHERE, fix="Write max_drop=0.01 for an accuracy")
    if switch.is_enabled():
        fix = "Call it with amp_tf off: it is turned on for each run"
        raise ConfigError("amp_tf is on", where=_WHERE, fix=fix)
    config = AmpConfig.from_env() if config is None else check_config(config, where=_WHERE)
    config = dataclasses.replace(config, lock=None)
    goal = read_goal(METRIC, max_drop=max_drop, max_rise=max_rise, max_runs=max_runs)
    path = Path(lock).absolute()  # the function may change the current folder
    files.check_writable(path)
    before = read(str(path), may_be_missing=True)
    with tempfile.TemporaryDirectory(prefix="amp_tf_tune_") as folder:
        program = _Function(train, config, Path(folder))
        journal = Journal(Path(folder) / "runs", {"function": getattr(train, "__name__", "train")})
        made = resolve_target(config, process_state.hardware()).facts()
        tuning = Tuning(program, goal, journal, most_runs=max_runs, tell=tell, before=before, made=made)
        state = process_state.current().config
        try:
            tuned = tuning.for_accuracy()
        finally:
            process_state.note(config=state)
    if tuned.lock is not None:
        tuned.write(path)
    return tuned


@dataclasses.dataclass(frozen=True)
class _Function:
    """A function that trains, what to convert, and a folder for the lock files of the runs."""

    train: Callable[[], float]
    config: AmpConfig
    folder: Path

    def run(self, way: Way, lock: Lock) -> Outcome:
        """Calls the function once."""
        if way is Way.FLOAT32:
            return self._call()
        path = self.folder / "amp.lock"
        path.write_text(lock.to_text())
        changes: dict[str, Any] = {"lock": str(path), "report_path": str(self.folder)}
        if way is Way.NOTHING:
            changes["keep_float32"] = (".",)
        process.reset()
        step_times.reset()
        with switch.enable(dataclasses.replace(self.config, **changes)):
            outcome = self._call()
        report = {**process.report().document(seconds=0), "steps": step_times.rows()}
        return Outcome.of(outcome.metrics, report, outcome.failure)

    def compare(self) -> Mapping[str, Any] | None:
        """Calls the function until its first training step, which is compared; ``None`` where that fails."""
        folder = self.folder / "comparison"
        folder.mkdir()
        training = Training(CompareRequest(folder, self.config, steps=8))
        try:
            for library in LIBRARIES:
                if library in sys.modules:
                    functions.install(training, library)
            self.train()
        except SystemExit:  # how a comparison ends a program
            pass
        finally:
            training.patches.restore()
        found = training.request.read_answer() or {}
        comparison: Mapping[str, Any] | None = found.get("comparison")
        return comparison

    def _call(self) -> Outcome:
        try:
            return Outcome({METRIC: float(self.train())})
        except Exception as error:
            return Outcome(failure=f"{type(error).__name__}: {error}")
