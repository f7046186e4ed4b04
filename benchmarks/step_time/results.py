"""The figures of a run as a file, so that its table can be made again without measuring."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from benchmarks.step_time.modes import Mode, modes
from benchmarks.step_time.suite import Row


@dataclasses.dataclass(frozen=True)
class Results:
    """The results of a run.

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


def read(path: Path) -> Results:
    """The figures that a run wrote."""
    written = json.loads(path.read_text())
    rows = []
    for row in written["rows"]:
        rows.append(Row(**{**row, "ms": tuple(row["ms"]), "losses": tuple(row["losses"])}))
    return Results(written["machine"], written["precision"], tuple(rows))
