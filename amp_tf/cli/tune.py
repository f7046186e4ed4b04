"""``amp-tf tune -- python train.py``: finds what has to stay in float32, and writes the patterns."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import hashlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from amp_tf.cli.compare import compare_script, started
from amp_tf.cli.models import hardware_for, read_config
from amp_tf.cli.run import bootstrapped
from amp_tf.config import (
    DISABLE_VAR,
    ENABLE_VAR,
    SWITCH_VARS,
    AmpConfig,
    variable_of,
    variables_of,
)
from amp_tf.errors import AmpError, ConfigError
from amp_tf.reporting import files
from amp_tf.tools.comparing.training import CompareRequest
from amp_tf.tools.progress import on_stderr
from amp_tf.tools.tuning import ANSWER, FOLDER, NAMES
from amp_tf.tools.tuning.result import Goal, Outcome, read_goal
from amp_tf.tools.tuning.tuning import EVERYTHING, Journal, Tuning, Way, made_for, patterns_before
from amp_tf.values import file_of_patterns

NOT_FOUND = 1
_KEPT = "The runs so far are kept there; the same command goes on"


def run(args: argparse.Namespace) -> int:
    """Prints the result, and writes the file of patterns."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # hides TensorFlow's startup messages
    path = Path(args.output)
    files.check_writable(path)
    config = read_config(args)
    goal = _goal(args)
    before = patterns_before(path, where="--output")
    names = (goal.metric, *([args.verify] if args.verify else []))
    head = {
        "command": hashlib.sha256(
            json.dumps(args.command).encode()
        ).hexdigest(),  # it may hold a secret
        "metrics": list(names),
        "most": goal.most,
        "settings": dataclasses.asdict(config),
    }
    journal = Journal(path.with_name(f"{path.name}.runs"), head)
    program = TunedScript(args.command, config, names, journal.folder)
    tuning = Tuning(
        program,
        goal,
        journal,
        most_runs=args.max_runs,
        tell=lambda line: print(f"amp-tf tune: {line}", file=sys.stderr, flush=True),
        progress=on_stderr("amp-tf tune"),
        held_out=args.verify or "",
        before=before,
        made=made_for(config, hardware_for(config)),
    )
    try:
        tuned = tuning.for_accuracy()
    except OSError as error:
        why = error.strerror or error
        if error.filename == args.command[0]:
            raise AmpError(f"cannot be started ({why})", where=args.command[0]) from None
        raise AmpError(f"cannot be written ({why})", where=str(journal.folder), fix=_KEPT) from None
    except KeyboardInterrupt:
        print(f"amp-tf tune: {journal.folder}: {_KEPT}", file=sys.stderr)
        raise
    print(tuned)
    if tuned.patterns is None:
        return NOT_FOUND
    tuned.write(path)
    journal.remove()
    reads = f"{variable_of('keep_float32')}={file_of_patterns(path)} reads it"
    print(f"{path} is written. {reads}; keep it beside the model.")
    return 0 if tuned.is_verified else NOT_FOUND


def _goal(args: argparse.Namespace) -> Goal:
    for name in filter(None, (args.metric, args.verify)):
        if name.startswith(PRINTED):
            fix = "Write one group for the number, such as stdout:'accuracy ([0-9.]+)'"
            pattern = name.removeprefix(PRINTED)
            try:
                groups = re.compile(pattern).groups
            except re.error as error:
                what = f"{pattern!r} is not a regular expression ({error})"
                raise ConfigError(what, where="--metric", fix=fix) from None
            if groups != 1:
                raise ConfigError(f"{pattern!r} has {groups} groups", where="--metric", fix=fix)
    asked = {field: getattr(args, field) for field in ("max_drop", "max_rise", "max_runs")}
    return read_goal(args.metric, **asked, name=lambda field: f"--{field.replace('_', '-')}")


PRINTED = "stdout:"  #: before a regular expression for a number that the program prints
_PATTERNS = "patterns.txt"
_OURS = "INFO:absl:amp_tf"
_LAST_WORDS = 200  # characters of the output of a run that failed


@dataclasses.dataclass(frozen=True)
class TunedScript:
    """A command that trains."""

    command: Sequence[str]  #: the program and its arguments
    config: AmpConfig  #: what to convert
    #: what is measured, each a name in ``fit``'s history, ``module:function`` or ``stdout:regex``
    metrics: tuple[str, ...]
    folder: Path  #: for the outputs of the runs

    def run(self, way: Way, patterns: tuple[str, ...]) -> Outcome:
        """Runs the command once, with patterns; an OSError where it cannot be started."""
        with tempfile.TemporaryDirectory(
            prefix="run-", dir=self.folder, ignore_cleanup_errors=True
        ) as name:
            place = Path(name)
            kept = EVERYTHING if way is Way.NOTHING else (*self.config.keep_float32, *patterns)
            (place / _PATTERNS).write_text("\n".join(kept))  # a variable may be too short for them
            output = place / "output.txt"
            with (
                output.open("wb") as log,
                started(self.command, self._environ(way, place), log) as program,
            ):
                program.wait()
            text, status = output.read_text(errors="replace"), program.returncode
            answer: dict[str, Any] = {"values": {}, "history": (), "failure": ""}
            with contextlib.suppress(FileNotFoundError):  # what was measured in the program
                answer = dict(json.loads((place / ANSWER).read_text()))
            found = dict(answer["values"])
            for asked in self.metrics:
                if asked.startswith(PRINTED):  # the last such number
                    with contextlib.suppress(ValueError, IndexError):
                        found[asked] = float(re.findall(asked.removeprefix(PRINTED), text)[-1])
            failure = ""
            if status:
                how = f"signal {-status}" if status < 0 else f"status {status}"
                lines = [
                    line
                    for line in text.splitlines()
                    if line.strip() and not line.startswith(_OURS)
                ]
                failure = (
                    f"it ended with {how}: "
                    f"{lines[-1][-_LAST_WORDS:].strip() if lines else 'it printed nothing'}"
                )
            elif self.metrics[0] not in found:
                has = (
                    f"; its last fit has {', '.join(answer['history'])}"
                    if answer["history"]
                    else ""
                )
                failure = answer["failure"] or f"the program gave no {self.metrics[0]}{has}"
            if failure:
                failed = self.folder / "failed.txt"
                output.replace(failed)
                found = {}
                failure += f" ({failed} has its output)"
            # Of the process and its children.
            reports = [json.loads(path.read_text()) for path in place.glob("amp_tf_*.json")]
            report = max(
                reports, key=lambda report: (report["converted"], report["total"]), default=None
            )
            return Outcome.of(found, report, failure)

    def compare(self) -> Mapping[str, Any] | None:
        """Compares the first step; ``None`` where that fails, and stderr says why."""
        with (self.folder / "compared.txt").open("wb") as log:
            found = compare_script(self.command, CompareRequest(self.folder, self.config, 8), log)
        return None if isinstance(found, int) else found["comparison"]

    def _environ(self, way: Way, place: Path) -> dict[str, str]:
        others = {name: text for name, text in os.environ.items() if name not in SWITCH_VARS[:2]}
        environ = {**bootstrapped(others), **variables_of(self.config)}
        asked = [name for name in self.metrics if not name.startswith(PRINTED)]
        environ |= {FOLDER: str(place), NAMES: "\n".join(asked)}
        if way is Way.FLOAT32:
            return {**environ, DISABLE_VAR: "1"}
        return {
            **environ,
            ENABLE_VAR: "1",
            variable_of("report_path"): str(place),
            variable_of("keep_float32"): file_of_patterns(place / _PATTERNS),
        }
