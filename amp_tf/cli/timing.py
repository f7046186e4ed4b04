"""``amp-tf time -- python train.py``: whether a program is faster with amp_tf."""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from amp_tf.cli.options import read_config
from amp_tf.cli.programs import environment_of_run, how_it_ended, run_program
from amp_tf.config import AmpConfig
from amp_tf.errors import AmpError
from amp_tf.reporting import files
from amp_tf.reporting.text import plural
from amp_tf.tools import some
from amp_tf.tools.progress import on_stderr, teller
from amp_tf.tools.starting import PYTHON
from amp_tf.tools.timing.recording import LEAST, STEP, Recording
from amp_tf.tools.timing.rounds import Run, Timed, take_rounds

TOO_NOISY = 1
_A_STEP = (
    "A step is a batch of fit, evaluate or predict, a call of a tf.function, or a run of a session"
)


def run(args: argparse.Namespace) -> int:
    """Prints the times and the verdict."""
    program = TimedScript(args.command, read_config(args), args.step)
    float32, mixed = take_rounds(
        program.run,
        args.rounds,
        args.minutes,
        tell=teller("amp-tf time"),
        progress=on_stderr("amp-tf time"),
    )
    timed = Timed(program.step, program.device, program.summary, float32, mixed)
    if args.json:
        print(json.dumps(timed.to_dict(), indent=1))
    else:
        print(timed)
    if timed.verdict.is_known:
        return 0
    return TOO_NOISY


@dataclasses.dataclass
class TimedScript:
    """A command that trains or predicts, and what its runs have shown so far."""

    command: Sequence[str]  #: the program and its arguments
    config: AmpConfig  #: what to convert
    step: str = ""  #: the name of the step to time; empty until the first run has chosen it
    device: str = ""  #: where the steps run
    summary: str = ""  #: what amp_tf converted

    def run(self, is_mixed: bool) -> Run:
        """Runs the command once, until it has made enough steps.

        Raises:
            AmpError: it fails, it makes too few steps, or amp_tf converts nothing.
        """
        with tempfile.TemporaryDirectory(prefix="amp_tf_time_", ignore_cleanup_errors=True) as name:
            place = Path(name)
            output = place / "output.txt"
            environ = environment_of_run(self.config, "timing.recording", name, is_on=is_mixed)
            environ[STEP] = self.step
            begin = time.perf_counter()
            status = run_program(self.command, environ, output, lambda: _has_enough(place))
            recording = _read_recording(place)
            if recording is None or not recording.is_enough:
                if status:
                    raise self._failed(status, output)
                recording = self._checked(recording, (place / PYTHON).exists())
        is_named = bool(self.step)
        self.step = recording.step
        self.device = recording.device
        if is_mixed:
            self.summary = f"amp_tf: {recording.summary}"
            if not recording.converted:
                fix = "Leave the variable out, and nothing is lost"
                if self.config.precision == "auto":
                    fix += "; or name a precision, as with --precision bfloat16"
                if not is_named:
                    fix += (
                        f". If the program does something else later than {self.step}, name that "
                        "with --step, such as --step fit"
                    )
                raise self._error(f"there is nothing to time ({recording.summary})", fix)
        return Run(tuple(recording.step_ms), recording.first_end - begin, recording.peak_mib)

    def _failed(self, status: int, output: Path) -> AmpError:
        """Keeps the output of a run that failed, which may hold a secret; returns the error."""
        kept = Path(tempfile.mkdtemp(prefix="amp_tf_failed_")) / output.name
        output.replace(kept)
        ended = how_it_ended(status, kept.read_text(errors="replace"))
        return self._error(f"the program failed: {ended} ({kept} has its output)")

    def _checked(self, recording: Recording | None, has_amp_tf: bool) -> Recording:
        """Returns the recording of a program that ended by itself.

        Raises:
            AmpError: it made too few steps.
        """
        if not has_amp_tf:
            raise self._error(
                "it started no Python in which amp_tf is installed",
                "Install amp_tf in that environment",
            )
        if recording is None:
            raise self._error("it made no step", f"{_A_STEP}; code that runs eagerly has none")
        if not recording.calls:
            what = f"it made no step of {self.step!r}"
            kinds = some(list(map(repr, recording.kinds)))
            raise self._error(what, f"Name one that it makes: {kinds}")
        count = len(recording.step_ms)
        if count < LEAST:
            raise self._error(
                f"it made {plural(recording.calls, 'step')} of {recording.step}, of which "
                f"{count} count, and {LEAST} are needed (the first ones trace)",
                f"Let it make more, as by more epochs. {_A_STEP}",
            )
        return recording

    def _error(self, what: str, fix: str = "") -> AmpError:
        return AmpError(what, where=" ".join(self.command), fix=fix)


def _has_enough(place: Path) -> bool:
    """Tells whether a process has made enough steps."""
    recording = _read_recording(place)
    return recording is not None and recording.is_enough


def _read_recording(place: Path) -> Recording | None:
    """Reads what the process with most steps recorded; ``None`` where none made any."""

    def steps(one: Recording) -> tuple[bool, int, int]:
        return one.is_enough, len(one.step_ms), one.calls

    recordings = [Recording(**files.read_plain(path)) for path in place.glob("*.json")]
    return max(recordings, key=steps, default=None)
