"""Tunes five programs with a planted weakness, and does by two other rules what they would do with
the same runs.

    python -m benchmarks.tune [--only REGEX] [--rows FILE] [--table FILE]

The rules are those of NVIDIA's AutoCast (ModelOpt 0.35: float32 where a number of a tensor exceeds
512, nothing is checked afterwards) and of Polygraphy's ``debug precision`` (the first N layers in
the order of the graph, N by bisection). All three have the same items, metric and runs; a row says
how many runs a rule took, what it left in float32, and whether the metric is then that of float32.
Rows are kept in a file, so that what was done is not done again.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from amp_tf.cli.tune import TunedScript
from amp_tf.config import AmpConfig
from amp_tf.graph.names import matcher
from amp_tf.tools.search import Item, find_items, find_nodes, patterns_of
from amp_tf.tools.tuning.result import Goal
from amp_tf.tools.tuning.tuning import Journal, Tuning, Way, run_of

_HERE = Path(__file__).parent
_DATA_MAX = 512.0  # AutoCast's default


@dataclasses.dataclass(frozen=True)
class Planted:
    """A program with a weakness.

    Attributes:
        name: of its file.
        goal: what a good run is.
        config: what to convert.
        layer: the layer that is weak.
    """

    name: str
    goal: Goal
    config: AmpConfig
    layer: str


_ACCURACY = Goal("val_accuracy", 0.03, is_loss=False)
PROGRAMS = (
    Planted(
        "convnet_mask",
        _ACCURACY,
        AmpConfig(precision="float16", target="cpu"),
        "masked",
    ),
    Planted(
        "transformer_logits",
        _ACCURACY,
        AmpConfig(precision="bfloat16", target="cpu"),
        "sharp",
    ),
    Planted(
        "prices_labels",
        Goal("val_loss", 2.0, is_loss=True),
        AmpConfig(precision="float16", target="cpu"),
        "price",
    ),
    Planted(
        "counter_sum",
        Goal("val_loss", 0.05, is_loss=True),
        AmpConfig(precision="bfloat16", target="cpu", infer_add=("Cumsum",)),
        "count",
    ),
    Planted(
        "stations_norm",
        _ACCURACY,
        AmpConfig(precision="bfloat16", target="cpu"),
        "normalized",
    ),
)


def rows_of(planted: Planted, folder: Path) -> Iterator[dict[str, Any]]:
    """A row for each rule."""
    command = [sys.executable, str(_HERE / "programs" / f"{planted.name}.py")]
    journal = Journal(folder, {"program": planted.name})
    program = TunedScript(command, planted.config, planted.goal.metric, folder)
    tuned = Tuning(program, planted.goal, journal, tell=_tell).for_accuracy()
    report, comparison = journal.read("mixed.json"), journal.read("comparison.json") or {}
    items = find_items(report)
    nodes = [node.item for node in find_nodes(report)]
    planted_nodes = [node for node in nodes if f"/{planted.layer}" in f"/{node.name}"]

    def row(rule: str, patterns: Sequence[str], runs: int, outcome: Any) -> dict[str, Any]:
        tests = [matcher(pattern) for pattern in patterns]
        kept = [node for node in nodes if any(test(node.name) for test in tests)]
        value = outcome.value
        return {
            "program": planted.name,
            "precision": planted.config.precision,
            "planted": len(planted_nodes),
            "float32": tuned.float32[0],
            "mixed": tuned.mixed,
            "rule": rule,
            "runs": runs,
            "kept": len(kept),
            "names": list(patterns),
            "operations": None if outcome.share is None else 1 - outcome.share,
            "metric": value,
            "is_good": planted.goal.is_good(value, tuned.limit),
        }

    if tuned.patterns is not None:
        yield row("amp_tf", tuned.patterns, tuned.runs, tuned.chosen)

    def try_(chosen: Sequence[Item]) -> Any:
        patterns = patterns_of(chosen)
        run = run_of(patterns)
        if (known := journal.runs.get(run)) is None:
            known = program.run(Way.MIXED, patterns)
            journal.add(run, known)
            _tell(f"{len(chosen)} items: {known.failure or known.value}")
        return known

    large = {
        row["name"] for row in comparison.get("nodes", ()) if float(row["largest"]) > _DATA_MAX
    }
    ranges = [node for node in nodes if node.name in large]
    yield row("AutoCast", patterns_of(ranges), 1, try_(ranges))
    ordered = [layer for item in items for layer in (item.parts or (item,))]
    count, runs = _bisect(
        ordered,
        lambda some: planted.goal.is_good(try_(some).value, tuned.limit),
    )
    yield row("Polygraphy", patterns_of(ordered[:count]), runs, try_(ordered[:count]))


def _bisect(items: Sequence[Item], is_good: Callable[[Sequence[Item]], bool]) -> tuple[int, int]:
    """How many of the first items suffice, and how many runs it took."""
    too_few, enough, runs = 0, len(items), 0
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        runs += 1
        if is_good(items[:middle]):
            enough = middle
        else:
            too_few = middle
    return enough, runs


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as a table of Markdown."""
    lines = [
        "| program | 16 bit | metric: float32 → all in 16 bit | rule | runs | nodes kept (planted) "
        "| products in float32 | metric | good |",
        "| --- | --- | --- | --- | ---: | ---: | ---: | ---: | --- |",
    ]
    for row in rows:
        operations = "?" if row["operations"] is None else f"{row['operations']:.1%}"
        metric = "none" if row["metric"] is None else f"{row['metric']:.4g}"
        mixed = "none" if row["mixed"] is None else f"{row['mixed']:.4g}"
        lines.append(
            f"| {row['program']} | {row['precision']} | {row['float32']:.4g} → {mixed} | "
            f"{row['rule']} | {row['runs']} "
            f"| {row['kept']} ({row['planted']}) | {operations} | {metric} | "
            f"{'yes' if row['is_good'] else 'no'} |"
        )
    return "\n".join([*lines, ""])


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--only", default="", metavar="REGEX", help="the programs whose names match"
    )
    parser.add_argument(
        "--rows",
        type=Path,
        metavar="FILE",
        help="keeps the rows, and goes on with those that it has",
    )
    parser.add_argument("--table", type=Path, metavar="FILE", help="writes the table")
    args = parser.parse_args()
    rows = json.loads(args.rows.read_text()) if args.rows and args.rows.exists() else []
    for planted in PROGRAMS:
        if re.search(args.only, planted.name) and not any(
            row["program"] == planted.name for row in rows
        ):
            _tell(f"{planted.name}:")
            with tempfile.TemporaryDirectory(prefix="amp_tf_tune_") as folder:
                rows += rows_of(planted, Path(folder))
            if args.rows:
                args.rows.write_text(json.dumps(rows, indent=1))
    print(table(rows))
    if args.table:
        args.table.write_text(table(rows))


if __name__ == "__main__":
    main()
