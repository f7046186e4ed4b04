"""The runs of a tuning, in a folder beside the lock file, so that one that was interrupted goes on where it was.

Each file is written whole or not at all, and each run is a line of its own: what ``kill -9`` cuts off is the last run.
A run that failed is not kept: what it lacked may be there the next time, and its last words may hold a secret.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from amp_tf.errors import ConfigError
from amp_tf.reporting import files

_HEAD, _RUNS = "tuning.json", "runs.jsonl"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a run gave.

    Attributes:
        metrics: the values of the metrics, by name.
        share: of the operations of products that were in 16 bit; ``None`` where it is not known.
        step_ms: the median time of a step; ``None`` where it is not known.
        failure: why there is no metric; empty where there is one.
        report: the report of the process; ``None`` where it is not needed any more.
    """

    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
    share: float | None = None
    step_ms: float | None = None
    failure: str = ""
    report: Mapping[str, Any] | None = None


class Journal:
    """The runs so far.

    Args:
        folder: where they are kept.
        head: what is tuned, and how; a tuning of something else must not go on with these runs.

    Raises:
        ConfigError: the folder holds the runs of something else, or another process tunes there.
        FileError: it cannot be written.
    """

    def __init__(self, folder: Path, head: Mapping[str, Any]) -> None:
        self.folder = folder.absolute()  # a function that is tuned may change the current folder
        self._known: dict[str, Outcome] = {}
        fix = "Give the same command to go on with it, delete the folder, or name another lock file"
        with files.writing(folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # programs print secrets
            self._runs = (folder / _RUNS).open("a+")
            try:
                fcntl.flock(self._runs, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until this journal is gone
            except BlockingIOError:
                what = "another process tunes there now"
                raise ConfigError(what, where=str(folder), fix="Wait for it, or name another lock file") from None
            except OSError:  # a file system without locks
                pass
        self._runs.seek(0)
        for line in self._runs:
            with contextlib.suppress(ValueError, KeyError, TypeError):  # cut off
                row = json.loads(line)
                run = row.pop("run")
                self._known[run] = Outcome(**row)
        before, now = self.read(_HEAD) or {}, json.loads(json.dumps(dict(head)))
        if self._known and before != now:
            other = ", ".join(name for name in now if before.get(name) != now[name])
            raise ConfigError(f"it holds the runs of another tuning (other {other})", where=str(folder), fix=fix)
        self.write(_HEAD, now)

    def __len__(self) -> int:
        return len(self._known)

    def get(self, run: str) -> Outcome | None:
        """A run's outcome; ``None`` where it was not made yet."""
        return self._known.get(run)

    def add(self, run: str, outcome: Outcome, *, is_fact: bool = True) -> None:
        """Keeps the outcome of a run; one that is no fact only as long as this process tunes."""
        self._known[run] = dataclasses.replace(outcome, report=None)
        row = {"run": run, **dataclasses.asdict(self._known[run])}
        del row["report"]
        if is_fact and not outcome.failure:
            with files.writing(self.folder):
                self._runs.write(f"\n{json.dumps(row)}\n")  # behind a line that was cut off, too
                self._runs.flush()

    def read(self, name: str) -> Any:
        """The content of a file of JSON; ``None`` where there is none."""
        try:
            return json.loads((self.folder / name).read_text())
        except (FileNotFoundError, ValueError):
            return None

    def write(self, name: str, content: Any) -> None:
        """Writes a file of JSON."""
        with files.writing(self.folder):
            files.put(self.folder / name, json.dumps(content))

    def remove(self) -> None:
        """Deletes the runs, which are not needed any more."""
        shutil.rmtree(self.folder, ignore_errors=True)
