"""``amp-tf tune -- python train.py`` finds what has to stay in float32, and writes the patterns."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import hashlib
import json
import math
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import amp_tf
from amp_tf.cli.compare import compare_script
from amp_tf.cli.options import read_config
from amp_tf.cli.programs import (
    environment_of_run,
    how_it_ended,
    run_program,
    without_our_lines,
)
from amp_tf.config import AmpConfig, variable_of
from amp_tf.errors import AmpError, ConfigError
from amp_tf.oplists.hardware import identity
from amp_tf.reporting import files
from amp_tf.reporting.text import plural
from amp_tf.tools import keeping
from amp_tf.tools.comparing.comparison import Comparison
from amp_tf.tools.comparing.training import CompareRequest
from amp_tf.tools.keeping import Patterns
from amp_tf.tools.progress import on_stderr, teller
from amp_tf.tools.tuning.metrics import ANSWER
from amp_tf.tools.tuning.result import Goal, Outcome
from amp_tf.tools.tuning.tuning import EVERYTHING, Journal, Tuning, Way
from amp_tf.values import file_of_patterns

NOT_FOUND = 1
_LEAST_RUNS = 5  # float32 twice, amp_tf with nothing in 16 bit, all in 16 bit, and one more
_KEPT = "The runs so far are kept there; the same command goes on"


def run(args: argparse.Namespace) -> int:
    """Prints the result, and writes the file of patterns."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # hides TensorFlow's startup messages
    path = Path(args.output)
    files.check_writable(path)
    config = read_config(args)
    goal = _goal(args)
    command = json.dumps(args.command)
    head = {
        "command": hashlib.sha256(command.encode()).hexdigest(),  # it may hold a secret
        "metric": goal.metric,
        "most": goal.most,
        "settings": dataclasses.asdict(config),
    }
    words = [word.rpartition("=")[2] for word in args.command]  # as in --settings=large.yaml
    tell = teller("amp-tf tune")
    made_with = f"{identity()}, amp_tf {amp_tf.__version__}"
    journal = Journal(path.with_name(f"{path.name}.runs"), head, words, made_with)
    if journal.outdated:
        tell(f"begins anew, because the runs of before were made with {journal.outdated}")
    if journal.runs:
        runs = plural(len(journal.runs), "run")
        tell(f"goes on with {runs} of before; to begin anew, delete {journal.folder}")
    tuning = Tuning(
        TunedScript(args.command, config, goal.metric, journal.folder),
        goal,
        journal,
        most_runs=args.max_runs,
        tell=tell,
        progress=on_stderr("amp-tf tune"),
        from_settings=tuple(config.keep_float32),
    )
    try:
        with files.writing(journal.folder, _KEPT):
            tuned = tuning.for_accuracy()
    except KeyboardInterrupt:
        print(f"amp-tf tune: {journal.folder}: {_KEPT}", file=sys.stderr)
        raise
    print(tuned)
    if tuned.patterns is None:
        return NOT_FOUND
    tuned.write(path)
    journal.remove()
    print(f"{keeping.written_message(path)}; keep it beside the model.")
    return 0


def _goal(args: argparse.Namespace) -> Goal:
    """Reads the goal; one of ``--max-drop`` and ``--max-rise`` is given.

    Raises:
        ConfigError: an option means nothing.
    """
    if args.metric.startswith(PRINTED):
        fix = "Write one group for the number, such as stdout:'accuracy ([0-9.]+)'"
        pattern = args.metric.removeprefix(PRINTED)
        try:
            groups = re.compile(pattern).groups
        except re.error as error:
            raise ConfigError(
                f"{pattern!r} is not a regular expression ({error})", where="--metric", fix=fix
            ) from None
        if groups != 1:
            raise ConfigError(f"{pattern!r} has {groups} groups", where="--metric", fix=fix)
    option = "--max-drop"
    most = args.max_drop
    if most is None:
        option = "--max-rise"
        most = args.max_rise
    if not 0 <= most < math.inf:
        raise ConfigError(f"{most!r} is not a change", where=option, fix="Write 0 or more")
    if args.max_runs < _LEAST_RUNS:
        raise ConfigError(
            f"{args.max_runs!r} runs are too few",
            where="--max-runs",
            fix=f"Write {_LEAST_RUNS} or more: float32 twice, amp_tf with nothing in 16 bit, and "
            "all in 16 bit come first",
        )
    return Goal(args.metric, most, is_loss=args.max_drop is None)


PRINTED = "stdout:"  #: before a regular expression for a number that the program prints
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_PATTERNS = "patterns.txt"


@dataclasses.dataclass(frozen=True)
class TunedScript:
    """A command that trains."""

    command: Sequence[str]  #: the program and its arguments
    config: AmpConfig  #: what to convert
    metric: str  #: a name in ``fit``'s history, or ``stdout:regex``
    folder: Path  #: for the outputs of the runs

    def run(self, way: Way, patterns: Patterns) -> Outcome:
        """Runs the command once, with patterns; an OSError where it cannot be started."""
        with tempfile.TemporaryDirectory(
            prefix="run-", dir=self.folder, ignore_cleanup_errors=True
        ) as name:
            place = Path(name)
            if way is Way.NOTHING:
                patterns = EVERYTHING
            # A variable may be too short for them.
            files.put(place / _PATTERNS, "\n".join(patterns))
            output = place / "output.txt"
            status = run_program(self.command, self._environ(way, place), output)
            text = output.read_text(errors="replace")
            value, failure = self._read_metric(place, text)
            if status:
                failure = how_it_ended(status, text)
            if failure:
                failed = self.folder / "failed.txt"
                output.replace(failed)
                value = None
                failure = f"{failure} ({failed} has its output)"
            # The process and its children leave a report each.
            reports = list(map(files.read_plain, place.glob("amp_tf_*.json")))
            report = max(
                reports, key=lambda report: (report["converted"], report["total"]), default=None
            )
            return Outcome.of(value, report, failure)

    def _read_metric(self, place: Path, text: str) -> tuple[float | None, str]:
        """Returns the metric's value, or ``None`` and why there is none."""
        if self.metric.startswith(PRINTED):
            value = _last_number(self.metric.removeprefix(PRINTED), without_our_lines(text))
            if value is None:
                return None, f"the program gave no {self.metric}"
            return value, ""
        metrics = files.read_plain(place / ANSWER) or {}
        if self.metric in metrics:
            return metrics[self.metric], ""
        failure = f"the program gave no {self.metric}"
        if metrics:
            failure += f"; its last fit has {', '.join(metrics)}"
        return None, failure

    def compare(self) -> Comparison | None:
        """Compares the first step; ``None`` where that fails, and stderr says why."""
        request = CompareRequest(self.folder, self.config, 8)
        try:
            return compare_script(self.command, request, self.folder / "compared.txt")
        except AmpError as error:
            print(f"amp-tf compare: {error}", file=sys.stderr)
            return None

    def _environ(self, way: Way, place: Path) -> dict[str, str]:
        is_on = way is not Way.FLOAT32
        environ = environment_of_run(self.config, "tuning.metrics", place, is_on=is_on)
        if is_on:
            environ[variable_of("report_path")] = str(place)
            environ[variable_of("keep_float32")] = file_of_patterns(place / _PATTERNS)
        return environ


def _last_number(pattern: str, text: str) -> float | None:
    """Returns the number at which the last match of an expression's group begins.

    It is read to its end: the group may leave out an exponent.
    """
    last = ""
    for found in re.finditer(pattern, text):
        last = found[1] or ""
        number = _NUMBER.match(text, found.start(1))
        if last and number is not None and len(number[0]) > len(last):
            last = number[0]
    with contextlib.suppress(ValueError):
        return float(last)
    return None
