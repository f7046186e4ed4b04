"""Tunes a program, in a fixed order.

First come float32, its noise, and amp_tf without 16 bit. Then all is in 16 bit, one step is
compared, and the search begins.

Runs are kept in a folder beside the file of patterns, so that a tuning that was interrupted goes on
where it was. Each file is written whole or not at all: what ``kill -9`` cuts off is the last run. A
run that failed is not kept: the reason may be gone the next time, and its output may hold a secret.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import fcntl
import hashlib
import json
import math
import shutil
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

from amp_tf.errors import AmpError, ConfigError
from amp_tf.files import read_regular
from amp_tf.reporting import files
from amp_tf.reporting.files import Document, Row
from amp_tf.tools import some
from amp_tf.tools.comparing.comparison import Comparison
from amp_tf.tools.keeping import Patterns
from amp_tf.tools.progress import Progress, during, lasting, silent
from amp_tf.tools.search import (
    Items,
    OutOfRunsError,
    find_items,
    find_smallest,
    patterns_of,
    rank,
)
from amp_tf.tools.tuning.result import Goal, Outcome, Trade, Tuned, nothing_but

_MIXED = "mixed.json"
_COMPARISON = "comparison.json"
_MINIMAL = "none of {} can be left out"
_OPEN = "whether less suffices is not known"
_NO_REPORT = "it ran no TensorFlow with amp_tf, or its report could not be written"
_NOT_PRECISION = (
    "So it is not precision that lowers the metric: allow more, or seed the program; if loss "
    "scaling is what differs, TF_ENABLE_AUTO_MIXED_PRECISION_LOSS_SCALING=0 turns it off"
)
EVERYTHING = (".",)  #: the patterns that keep all in float32


class Way(enum.Enum):
    """How a run is made: without amp_tf, with it and nothing in 16 bit, or with patterns."""

    FLOAT32 = "float32"
    NOTHING = "amp_tf with all in float32"
    MIXED = "mixed"


_NOTHING = f"{Way.NOTHING.value}/1"  #: the name of the run with nothing in 16 bit


class Program(Protocol):
    """A program that can be trained again and again."""

    def run(self, way: Way, patterns: Patterns) -> Outcome:
        """Trains once, with what patterns match in float32."""

    def compare(self) -> Comparison | None:
        """Compares one step in float32 and in 16 bit; ``None`` where that fails."""


@dataclasses.dataclass
class Tuning:
    """One tuning."""

    program: Program  #: what is tuned
    goal: Goal  #: what a good run is
    journal: Journal  #: the runs so far
    most_runs: int = 40  #: how many runs may be made, those of earlier calls included
    tell: Progress = silent  #: called with a line for each run
    progress: Progress = silent  #: called with what is being done
    from_settings: Patterns = ()  #: patterns, which every run has

    def __post_init__(self) -> None:
        self._trades: dict[str, Trade] = {}
        self._limit = self.goal.limit(())
        self._seconds = 0.0  #: the time of the last run with something in 16 bit

    def for_accuracy(self) -> Tuned:
        """Finds a small part of the model that suffices in float32.

        Raises an AmpError where float32 gives no metric, or amp_tf changes it although nothing is
        in 16 bit, and a ConfigError where nothing would be converted.
        """

        def suffices(items: Items) -> bool:
            is_new = run_of(patterns_of(items)) not in self.journal.runs
            if is_new and len(self.journal.runs) >= self.most_runs:
                raise OutOfRunsError
            return self._is_good(self._try(items))

        float32 = self._measure_float32()
        mixed = self._measure_mixed()
        if self._is_good(mixed):
            return self._result((), float32, is_minimal=True)
        comparison = self._compare()
        findings: list[str] = []
        errors: dict[str, float] = {}
        if comparison is not None:
            findings = [finding.node for finding in comparison.findings]
            for node in comparison.nodes:
                if node.has_truth and node.local is not None:
                    errors[node.name] = node.local
        ranked = rank(find_items(self.journal.read(_MIXED)), findings, errors)
        items, is_minimal = find_smallest(ranked, suffices)
        return self._result(items, float32, is_minimal=is_minimal)

    def _compare(self) -> Comparison | None:
        """Compares one step, or reads the comparison that was made; ``None`` where that fails."""
        plain = self.journal.read(_COMPARISON)
        if plain is not None:
            return Comparison.of_plain(plain)
        what = "comparing one step in float32 and in 16 bit"
        self.tell(what)
        with during(self.progress, what):
            comparison = self.program.compare()
        if comparison is not None:
            self.journal.write(_COMPARISON, comparison.to_plain())
        return comparison

    def _measure_float32(self) -> tuple[float, ...]:
        """Measures the metric in float32, twice, and sets the limit.

        It also checks that amp_tf alone changes nothing.
        """
        values = []
        for number in (1, 2):
            outcome = self._once(f"{Way.FLOAT32.value}/{number}", Way.FLOAT32, ())
            if outcome.value is None or not self._is_good(outcome):
                why = outcome.failure or f"it is {outcome.value}"
                raise AmpError(
                    f"there is no {self.goal.metric} in float32 ({why})",
                    fix="If the program fails, mend that first; else name a metric that it has in "
                    "float32",
                )
            values.append(outcome.value)
        self._limit = self.goal.limit(values)
        self.tell(f"a run is good with {self.goal.metric} {self.goal.bound(self._limit)}")
        nothing = self._once(_NOTHING, Way.NOTHING, ())
        if not self._is_good(nothing):
            raise AmpError(
                "with amp_tf on and nothing in 16 bit, the run is not good "
                f"({self._in_words(nothing)})",
                fix=_NOT_PRECISION,
            )
        return tuple(values)

    def _measure_mixed(self) -> Outcome:
        """Runs with everything in 16 bit, and checks that something was converted."""
        if self.journal.read(_MIXED) is None:
            self.journal.runs.pop(run_of(()), None)  # without its report it is no basis
        outcome = self._try(())
        report = self.journal.read(_MIXED)
        if report is None:
            why = outcome.failure or _NO_REPORT
            raise AmpError(
                f"the run with nothing in float32 left no report ({why})",
                fix="The runs before it are kept: with room on the disk, the same command goes on",
            )
        if not report["converted"]:
            why = report.get("why_nothing") or outcome.failure or "its report has no reason"
            if not outcome.failure:
                self.journal.remove()  # the corrected command may be another one
            raise ConfigError(
                f"nothing is converted, so there is nothing to tune ({why})",
                fix="Name a precision, as with --precision bfloat16, or tune on a device where 16 "
                "bit is faster",
            )
        return outcome

    def _try(self, items: Items) -> Outcome:
        """Runs with some items in float32, and notes the trade."""
        patterns = patterns_of(items)
        run = run_of(patterns)
        names = some([item.name for item in items]) or nothing_but(self.from_settings)
        outcome = self._once(run, Way.MIXED, patterns, f"{names} in float32")
        kept = (*self.from_settings, *patterns)
        self._trades[run] = Trade(kept, outcome, self._is_good(outcome))
        return outcome

    def _once(self, run: str, way: Way, patterns: Patterns, what: str = "") -> Outcome:
        """Runs the program, unless the journal has the run; ``what`` names it for people."""
        known = self.journal.runs.get(run)
        if known is not None:
            return known
        number = len(self.journal.runs) + 1
        name = f"run {number} of at most {self.most_runs}: {what or way.value}"
        begin = time.monotonic()
        with during(self.progress, f"{name}{self._left(number)}"):
            outcome = self.program.run(way, (*self.from_settings, *patterns))
        self._seconds = 0.0
        if way is Way.MIXED:
            self._seconds = time.monotonic() - begin
        if outcome.report is not None and not patterns and way is Way.MIXED:
            self.journal.write(_MIXED, outcome.report)
        is_good = self._is_good(outcome)
        self.journal.add(run, outcome, is_fact=is_good or way is Way.MIXED)
        verdict = ""
        if math.isfinite(self._limit):
            verdict = ", not good"
            if is_good:
                verdict = ", good"
        self.tell(f"{name}: {self._in_words(outcome)}{verdict}")
        return outcome

    def _left(self, number: int) -> str:
        """Tells how long this run and the later ones may take.

        It is judged by the last run in 16 bit, and empty if there was none.
        """
        if not self._seconds:
            return ""
        most = self._seconds * (self.most_runs - number + 1)
        return f", {lasting(self._seconds)} a run, at most {lasting(most)} left"

    def _in_words(self, outcome: Outcome) -> str:
        """Says what a run gave, or how it failed."""
        if outcome.value is None:
            return outcome.failure
        words = f"{self.goal.metric} {outcome.value:.6g}"
        if outcome.step_ms is None:
            return words
        return f"{words}, {outcome.step_ms:.1f} ms a step"

    def _is_good(self, outcome: Outcome) -> bool:
        return self.goal.is_good(outcome.value, self._limit)

    def _result(
        self, items: Items | None, float32: tuple[float, ...], *, is_minimal: bool
    ) -> Tuned:
        """Makes the result: some items stay in float32; ``None`` where none suffice."""
        runs = self.journal.runs
        patterns = None
        chosen = None
        why = {}
        if items is not None:
            needed = patterns_of(items)
            chosen = runs[run_of(needed)]
            if (comparison := self.journal.read(_COMPARISON)) is not None:
                why = Comparison.of_plain(comparison).why(needed)
            patterns = (*self.from_settings, *needed)
        return Tuned(
            goal=self.goal,
            patterns=patterns,
            float32=float32,
            mixed=(runs.get(run_of(())) or Outcome()).value,
            chosen=chosen,
            trades=tuple(self._trades.values()),
            runs=len(runs),
            proof=self._proof(items, is_minimal),
            made=_made_by(self.journal.read(_MIXED)),
            from_settings=self.from_settings,
            why=why,
        )

    def _proof(self, items: Items | None, is_minimal: bool) -> str:
        """Says which patterns come from the settings, and whether all others are needed."""
        parts = []
        others = "them"
        if self.from_settings:
            parts.append(f"the settings keep {some(self.from_settings)}")
            others = "the others"
        if items and is_minimal:
            parts.append(_MINIMAL.format(others))
        elif items:
            parts.append(_OPEN)
        return "; ".join(parts)


def run_of(patterns: Patterns) -> str:
    """Returns the name of the run with some patterns, in a journal."""
    return hashlib.sha256("\n".join(patterns).encode()).hexdigest()[:8]


_JOURNAL = "tuning.json"
_MOST_BYTES = 1 << 24  # of a file that the command names: a script or its settings, not its data


class Journal:
    """The runs so far, kept in a folder.

    Args:
        folder: where they are kept.
        head: what is tuned, and how.
        words: what may name files: those of the command. Runs count only as long as these files
            stay as they were, except those that the first run itself writes.
        made_with: the software and hardware. Runs that were made with others are deleted.

    Raises:
        ConfigError: the folder holds the runs of something else, or another process tunes there.
        FileError: it cannot be written.
    """

    def __init__(
        self, folder: Path, head: Document, words: Iterable[str] = (), made_with: str = ""
    ) -> None:
        self.folder = folder.absolute()
        with files.writing(folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # programs print secrets
            self._lock = (folder / "lock").open("w")
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until this journal is gone
            except BlockingIOError:
                raise ConfigError(
                    "another process tunes there now",
                    where=str(folder),
                    fix="Wait for it, or name another output",
                ) from None
            except OSError:  # a file system without locks
                pass
        before: Row = self.read(_JOURNAL) or {}
        self._head = json.loads(json.dumps(head))
        self._digests = _digests_of(words)
        self._facts: Row = before.get("runs", {})  # the runs that the folder keeps
        self._made_with = made_with
        #: with what runs were made that are deleted now; empty for none
        self.outdated = ""
        if self._facts:
            self._check_head(before)
            if before.get("made_with") == made_with:
                self._digests = before["files"]
            else:
                self.outdated = before.get("made_with") or "an earlier amp_tf"
                self._delete_runs()
        self._save()
        #: the outcomes of those that were made
        self.runs = {run: Outcome(**row) for run, row in self._facts.items()}

    def _check_head(self, before: Document) -> None:
        """Checks that the runs that the folder keeps are of the same program and settings."""
        other = [name for name, value in self._head.items() if before["head"].get(name) != value]
        for name, digest in before["files"].items():
            if self._digests.get(name) != digest:
                other.append(f"content of {name}")
        if other:
            raise ConfigError(
                f"it holds the runs of another tuning (other {', '.join(other)})",
                where=str(self.folder),
                fix="Delete the folder, name another output, or go on with the same command and "
                "program",
            )

    def _delete_runs(self) -> None:
        for name in (_MIXED, _COMPARISON):
            (self.folder / name).unlink(missing_ok=True)
        self._facts = {}

    def add(self, run: str, outcome: Outcome, *, is_fact: bool = True) -> None:
        """Keeps the outcome of a run; without ``is_fact`` only as long as this process lives."""
        self.runs[run] = dataclasses.replace(outcome, report=None)
        if not is_fact or outcome.failure:
            return
        if not self._facts:  # the files that the first run has left as they were
            unchanged = self._digests.items() & _digests_of(self._digests).items()
            self._digests = dict(unchanged)
        self._facts[run] = dataclasses.asdict(self.runs[run])
        self._save()

    def _save(self) -> None:
        kept = {
            "head": self._head,
            "made_with": self._made_with,
            "files": self._digests,
            "runs": self._facts,
        }
        self.write(_JOURNAL, kept)

    def read(self, name: str) -> Any:
        """Reads a file of JSON; returns ``None`` where there is none."""
        return files.read_plain(self.folder / name)

    def write(self, name: str, content: Any) -> None:
        """Writes a file of JSON."""
        with files.writing(self.folder):
            files.put_plain(self.folder / name, content)

    def remove(self) -> None:
        """Deletes the runs, which are not needed any more."""
        self._lock.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def _digests_of(names: Iterable[str]) -> dict[str, str]:
    """Returns a digest of the content of each file that is there and not large."""
    found = {}
    for name in names:
        with contextlib.suppress(OSError):  # a word that is no file, or a file of data
            found[name] = hashlib.sha256(read_regular(name, _MOST_BYTES)).hexdigest()
    return found


def _made_by(report: Document) -> str:
    """Tells what a run was made with, such as ``bfloat16 on CPU, TensorFlow 2.20.0``."""
    device = "CPU"
    for one in report["devices"]:
        if one["type"] == "GPU":
            device = "GPU"
    precisions = " and ".join(report["precisions"])
    return f"{precisions} on {device}, TensorFlow {report['process']['tensorflow']}"
