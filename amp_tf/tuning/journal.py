"""The runs of a tuning, in a folder beside the lock file, so that one that was interrupted goes on where it was.

Each file is written whole or not at all, and each run is a line of its own: what ``kill -9`` cuts off is the last run.
"""

from __future__ import annotations

import contextlib
import dataclasses
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
        ConfigError: the folder holds the runs of something else.
        FileError: it cannot be written.
    """

    def __init__(self, folder: Path, head: Mapping[str, Any]) -> None:
        self.folder = folder
        self._known: dict[str, Outcome] = {}
        with files.writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            if (before := self.read(_HEAD)) is None:
                self.write(_HEAD, dict(head))
            elif before != json.loads(json.dumps(dict(head))):
                other = ", ".join(name for name in head if before.get(name) != head[name])
                raise ConfigError(
                    f"it holds the runs of another tuning (other {other})",
                    where=str(folder),
                    fix="Give the same command to go on with it, delete the folder, or name another lock file",
                )
        for line in self._lines():
            with contextlib.suppress(ValueError, KeyError, TypeError):  # cut off
                row = json.loads(line)
                run = row.pop("run")
                self._known[run] = Outcome(**row)

    def __len__(self) -> int:
        return len(self._known)

    def get(self, run: str) -> Outcome | None:
        """A run's outcome; ``None`` where it was not made yet."""
        return self._known.get(run)

    def add(self, run: str, outcome: Outcome) -> None:
        """Keeps the outcome of a run."""
        self._known[run] = dataclasses.replace(outcome, report=None)
        row = {"run": run, **dataclasses.asdict(dataclasses.replace(outcome, report=None))}
        del row["report"]
        with files.writing(self.folder), (self.folder / _RUNS).open("a") as file:
            file.write(f"\n{json.dumps(row)}\n")  # behind a line that was cut off, too

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
        """Deletes the runs: the lock file is written."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _lines(self) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / _RUNS).read_text().split("\n")
        return []
