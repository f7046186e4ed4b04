"""Runs a command that trains, again and again, each time with other layers in float32."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from amp_tf.cli.compared_script import compare_script, started
from amp_tf.cli.run import bootstrapped
from amp_tf.config import DISABLE_VAR, ENABLE_VAR, ENV_VARS, SWITCH_VARS, AmpConfig
from amp_tf.hooks import metrics
from amp_tf.lock import Lock
from amp_tf.tools.tuning.result import Outcome
from amp_tf.tools.tuning.tuning import Way

PRINTED = "stdout:"  #: before a regular expression for a number that the program prints
_EVERYTHING = "."
_LAST_WORDS = 200  # characters of the output of a run that failed


@dataclasses.dataclass(frozen=True)
class TunedScript:
    """A command that trains.

    Attributes:
        command: the program and its arguments.
        config: what to convert.
        metrics: what is measured, each a name in ``fit``'s history, ``module:function`` or ``stdout:regex``.
        folder: for the outputs of the runs.
    """

    command: Sequence[str]
    config: AmpConfig
    metrics: tuple[str, ...]
    folder: Path

    def run(self, way: Way, lock: Lock) -> Outcome:
        """Runs the command once.

        Args:
            way: how.
            lock: what stays in float32.

        Raises:
            OSError: the command cannot be started.
        """
        with tempfile.TemporaryDirectory(prefix="run-", dir=self.folder, ignore_cleanup_errors=True) as name:
            return self._run(way, lock, Path(name))

    def _run(self, way: Way, lock: Lock, place: Path) -> Outcome:
        (place / "amp.lock").write_text(lock.to_text())
        output = place / "output.txt"
        with output.open("wb") as log, started(self.command, self._environ(way, place), log) as program:
            program.wait()
        text, status = output.read_text(errors="replace"), program.returncode
        answer = _read_answer(place)
        found = {**answer["values"], **dict(self._printed(text))}
        failure = ""
        if status:
            how = f"signal {-status}" if status < 0 else f"status {status}"
            failure = f"it ended with {how}: {_last_line(text)}"
        elif self.metrics[0] not in found:
            has = f"; its last fit has {', '.join(answer['history'])}" if answer["history"] else ""
            failure = f"the program gave no {self.metrics[0]}{has}" if not answer["failure"] else answer["failure"]
        if failure:
            kept = self.folder / "failed.txt"
            output.replace(kept)
            found = {}
            failure += f" ({kept} has its output)"
        report = _read_report(place)
        figures, steps = (report or {}).get("figures") or {}, (report or {}).get("steps") or [{}]
        return Outcome(found, figures.get("products_share_f16"), steps[0].get("median_ms"), failure, report)

    def compare(self) -> Mapping[str, Any] | None:
        """Compares the first step; ``None`` where that fails, and stderr says why."""
        with (self.folder / "compared.txt").open("wb") as log:
            found = compare_script(self.command, self.config, log=log, steps=8, nodes=None, float32_only=False)
        return None if isinstance(found, int) else found["comparison"]

    def _environ(self, way: Way, place: Path) -> dict[str, str]:
        others = {name: text for name, text in os.environ.items() if name not in (*SWITCH_VARS[:2], "AMP_TF_LOCK")}
        environ = {**bootstrapped(others), **variables_of(self.config)}
        asked = [name for name in self.metrics if not name.startswith(PRINTED)]
        environ |= {metrics.FOLDER: str(place), metrics.NAMES: "\n".join(asked)}
        if way is Way.FLOAT32:
            return {**environ, DISABLE_VAR: "1"}
        environ |= {ENABLE_VAR: "1", "AMP_TF_REPORT": str(place), "AMP_TF_LOCK": str(place / "amp.lock")}
        if way is Way.NOTHING:
            environ["AMP_TF_KEEP_FLOAT32"] = _EVERYTHING
        return environ

    def _printed(self, text: str) -> Iterator[tuple[str, float]]:
        """The metrics that the program prints: of each the last number."""
        for name in self.metrics:
            if name.startswith(PRINTED):
                found = re.findall(name.removeprefix(PRINTED), text)
                with contextlib.suppress(ValueError, IndexError):
                    yield name, float(found[-1])


def variables_of(config: AmpConfig) -> dict[str, str]:
    """The environment variables that mean a configuration; those of fields that have their default are left out."""
    names: dict[str, str] = {}
    for row in ENV_VARS:
        if row.field:
            names.setdefault(row.field, row.name)
    default = AmpConfig()
    changed = {field: value for field in names if (value := getattr(config, field)) != getattr(default, field)}
    return {names[field]: _as_text(value) for field, value in changed.items()}


def _as_text(value: Any) -> str:
    if isinstance(value, bool):
        return str(int(value))
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _read_answer(place: Path) -> dict[str, Any]:
    """What :mod:`amp_tf.hooks.metrics` measured in the program."""
    with contextlib.suppress(FileNotFoundError):
        return dict(json.loads((place / metrics.ANSWER).read_text()))
    return {"values": {}, "history": (), "failure": ""}


def _read_report(place: Path) -> Mapping[str, Any] | None:
    """The report of the process that converted most."""
    reports = [json.loads(path.read_text()) for path in place.glob("amp_tf_*.json")]
    return max(reports, key=lambda report: (report["converted"], report["total"]), default=None)


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("INFO:absl:amp_tf")]
    return lines[-1][-_LAST_WORDS:].strip() if lines else "it printed nothing"
