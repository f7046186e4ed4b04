"""What makes rows slower than their best other mode: measured again, with the kernels of both beside each other.

    python -m benchmarks.step_time.behind judging.json [--below 0.97]

Takes the figures of ``python -m benchmarks.step_time --json judging.json``. Each row in which amp_tf is behind the best
other mode by more than asked for is profiled (:mod:`benchmarks.step_time.profile`): both modes in processes of their
own, in turns. *Again* is the ratio of the steps by the clock in these turns, a second measurement that had no part in
choosing the row: what was behind by chance is not behind again. *Kernels* is how many times the time by the clock
in kernels of the best other amp_tf's is, so above 1 where amp_tf's kernels take longer. Then come the ops that differ
most, in milliseconds of a step, amp_tf's less the other's, whatever the library that computes them
(``_MklNativeFusedMatMul`` and ``_ZenFusedMatMul`` are both a ``MatMul``).
"""

from __future__ import annotations

import argparse
import collections
import re
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.models import benchmark
from benchmarks.step_time import options, profile, results
from benchmarks.step_time.modes import modes
from benchmarks.step_time.suite import Row, Settings
from benchmarks.step_time.tables import SUBJECT, best_other, by_key, median_ratio, ratio_cell

LEAST_SHARE = 0.01  #: of the other's step, by which an op must differ to be named
_LIBRARY = re.compile(r"^_(?:MklNative|Mkl|Zen)?(?:Fused)?")


def rows_behind(rows: Sequence[Row], below: float) -> Iterator[tuple[Row, Row]]:
    """Rows of amp_tf with those of the best other modes, the furthest behind first."""
    pairs = [(by[SUBJECT], best_other(by)) for by in by_key(rows).values() if SUBJECT in by]
    pairs.sort(key=lambda pair: median_ratio(*pair))
    return ((ours, other) for ours, other in pairs if median_ratio(ours, other) < below)


def differences(ours: profile.Profile, other: profile.Profile) -> list[tuple[str, float]]:
    """By how many milliseconds of a step each op takes longer than in the other mode, what differs most first.

    What differs by less than :data:`LEAST_SHARE` of the other's step is left out.
    """
    total: dict[str, float] = collections.defaultdict(float)
    for sign, ops in ((1, ours.ops), (-1, other.ops)):
        for op, figure in ops.items():
            total[_LIBRARY.sub("", op)] += sign * figure.ms
    least = LEAST_SHARE * statistics.median(other.row.ms)
    return sorted(((op, ms) for op, ms in total.items() if abs(ms) >= least), key=lambda pair: -abs(pair[1]))


def line(ours: Row, other: Row, profiles: Mapping[str, profile.Profile], count: int) -> str:
    """One row of the table."""
    own, best = profiles[ours.mode], profiles[other.mode]
    ops = ", ".join(f"{op} {ms:+.2f}" for op, ms in differences(own, best)[:count])
    cells = [
        benchmark(ours.model).title,
        ours.way,
        f"{ratio_cell(ours, other)} ({other.mode})",
        ratio_cell(own.row, best.row),
        f"{statistics.median(best.row.ms):.2f}",
        f"{own.kernels_ms / best.kernels_ms:.2f}",
        ops or "–",
    ]
    return "| " + " | ".join(cells) + " |"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measured", nargs="+", type=Path, help="files of python -m benchmarks.step_time --json")
    parser.add_argument("--below", type=float, default=0.97, help="%(default)s of the best other by default")
    parser.add_argument("--ops", type=int, default=4, help="to name in a row")
    parser.add_argument("--size", default="small", help=argparse.SUPPRESS)
    options.add_turns(parser)
    asked = parser.parse_args(arguments)
    found = results.read(asked.measured)
    settings = Settings(asked.size, found.precision, asked.turns, asked.seconds)
    available = modes(found.precision)
    print("| model | way | measured | again | best other, ms | kernels | ops that differ, ms |")
    print("|---|---|---:|---:|---:|---:|---|", flush=True)
    for ours, other in rows_behind(found.rows, asked.below):
        chosen = [available[row.mode] for row in (other, ours)]
        profiles = profile.measure(ours.model, ours.way, ours.batch, chosen, settings)
        print(line(ours, other, profiles, asked.ops), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
