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
from amp_tf.reporting.files import Row
from amp_tf.reporting.text import plural
from amp_tf.tools.progress import on_stderr, teller
from amp_tf.tools.starting import PYTHON
from amp_tf.tools.timing.recording import LEAST, STEP
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
    """A command that trains or predicts, and what its runs told so far."""

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
            status = run_program(
                self.command, environ, output, lambda: _read_answer(place).get("is_enough")
            )
            answer = _read_answer(place)
            if not answer.get("is_enough"):
                text = output.read_text(errors="replace")
                self._check_end(status, text, answer, (place / PYTHON).exists())
        is_named = bool(self.step)
        self.step = answer["step"]
        self.device = answer["device"]
        if is_mixed:
            self.summary = f"amp_tf: {answer['summary']}"
            if not answer["converted"]:
                fix = (
                    "Leave the variable out, and nothing is lost; or name a precision, as with "
                    "--precision bfloat16"
                )
                if not is_named:
                    fix = (
                        f"If the program does something else later than {self.step}, name that "
                        f"with --step, such as --step fit. If not: {fix[0].lower()}{fix[1:]}"
                    )
                raise self._error(f"there is nothing to time ({answer['summary']})", fix)
        return Run(tuple(answer["step_ms"]), answer["first_end"] - begin, answer["peak_mib"])

    def _check_end(self, status: int, text: str, answer: Row, has_amp_tf: bool) -> None:
        """Checks that a program that ended by itself did so well, after enough steps."""
        if status:
            raise self._error(how_it_ended(status, text))
        if not has_amp_tf:
            raise self._error(
                "it started no Python in which amp_tf is installed",
                "Install amp_tf in that environment",
            )
        if not answer:
            what = "it made no step"
            if self.step:
                what = f"{what} of {self.step}"
            raise self._error(what, f"{_A_STEP}; code that runs eagerly has none")
        count = len(answer["step_ms"])
        if count < LEAST:
            raise self._error(
                f"it made {plural(answer['calls'], 'step')} of {answer['step']}, of which "
                f"{count} count, and {LEAST} are needed",
                f"Let it make more, as by more epochs. {_A_STEP}",
            )

    def _error(self, what: str, fix: str = "") -> AmpError:
        return AmpError(what, where=" ".join(self.command), fix=fix)


def _read_answer(place: Path) -> Row:
    """Reads the answer of the process that made most steps; empty where none made any."""
    answers = list(map(files.read_plain, place.glob("*.json")))
    return max(answers, key=lambda one: (one["is_enough"], len(one["step_ms"])), default={})
