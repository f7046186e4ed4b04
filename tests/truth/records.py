"""Rows on disk, one line of JSON each, so that a run that was cut off goes on where it was."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.truth.runner import Row


def append(path: Path, rows: Iterable[Row]) -> None:
    with path.open("a", encoding="utf-8") as lines:
        for row in rows:
            lines.write(json.dumps(dataclasses.asdict(row)) + "\n")


def read(path: Path) -> Iterator[Row]:
    """The rows of a file; a last line that was cut off is none."""
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                yield Row(**json.loads(line))
            except json.JSONDecodeError:
                return
