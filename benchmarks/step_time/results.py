"""The figures of a run as a file, so that its table and its plot can be made again without
measuring.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.step_time.modes import Mode, modes
from benchmarks.step_time.suite import Row


@dataclasses.dataclass(frozen=True)
class Results:
    """What a run, or several, gave.

    Attributes:
        facts: date, CPU, versions and command.
        precision: the 16-bit type of the Keras policy and of TensorFlow's pass.
        rows: the figures.
    """

    facts: dict[str, Any]
    precision: str
    rows: tuple[Row, ...]

    @property
    def modes(self) -> list[Mode]:
        """The modes that the rows are of, in their order."""
        known = modes(self.precision)
        return [known[name] for name in dict.fromkeys(row.mode for row in self.rows)]

    def write(self, path: Path) -> None:
        """Writes everything as JSON."""
        rows = [dataclasses.asdict(row) for row in self.rows]
        path.write_text(
            json.dumps({"machine": self.facts, "precision": self.precision, "rows": rows}, indent=1)
        )


def read(paths: Sequence[Path], modes: Collection[str] = ()) -> Results:
    """The figures of one file or several together; the facts are those of the first, with the
    commands of all.

    What several files measured has the rounds of all of them.

    Args:
        paths: the files.
        modes: the names of those that are wanted; all by default.

    Raises:
        ValueError: the files are of different 16-bit types, or one measured something in fewer
            modes than another.
    """
    files = [json.loads(path.read_text()) for path in paths]
    precisions = {file.get("precision", "bfloat16") for file in files}
    if len(precisions) > 1:
        raise ValueError(
            f"The files compare different 16-bit types ({', '.join(sorted(precisions))}); show "
            "one alone."
        )
    facts = {
        **files[0]["machine"],
        "command": "; ".join(file["machine"]["command"] for file in files),
    }
    rows = (
        Row(**{**row, "ms": tuple(row["ms"]), "losses": tuple(row["losses"])})
        for f in files
        for row in f["rows"]
    )
    rows = (row for row in rows if not modes or row.mode in modes)
    return Results(facts, precisions.pop(), _joined(rows))


def _joined(rows: Iterable[Row]) -> tuple[Row, ...]:
    """Rows with the rounds of all that are of one model, way, mode and batch."""
    found: dict[tuple[str, str, str, int], Row] = {}
    for row in rows:
        key = (row.model, row.way, row.mode, row.batch)
        found[key] = (
            dataclasses.replace(found[key], ms=found[key].ms + row.ms) if key in found else row
        )
    rounds: dict[tuple[str, str, int], int] = {}
    for row in found.values():
        if row.ms and rounds.setdefault((row.model, row.way, row.batch), len(row.ms)) != len(
            row.ms
        ):
            raise ValueError(
                f"{row.model}, {row.way}: {row.mode} has {len(row.ms)} rounds, other modes have "
                f"{rounds[row.model, row.way, row.batch]}; show files with other modes alone."
            )
    return tuple(found.values())
