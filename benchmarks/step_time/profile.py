"""The time of a step by op, each mode beside the others, from TensorFlow's profiler.

    python -m benchmarks.step_time.profile mobilenetv2 --way fit --modes float32,tf_pass,amp_tf

Each mode has a process. They take turns, first profiling steps and then timing as many; medians
over the turns count. A figure is the time by the clock in the kernels of one op, in milliseconds of
a step, with the number of kernels. Kernels that run side by side share their time in equal parts,
so that columns add up to the time in which any kernel ran. The last row is the step by the clock,
without the profiler.
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import sys
from collections.abc import Mapping, Sequence

from benchmarks.models import names
from benchmarks.step_time import options
from benchmarks.step_time.modes import COMPARED, WAYS, Mode, modes
from benchmarks.step_time.suite import Row, Settings, Worker
from benchmarks.step_time.tables import standard_error


@dataclasses.dataclass(frozen=True)
class Figure:
    """The time of one op in a step: ``ms`` milliseconds in ``count`` kernels."""

    ms: float
    count: float


MOST_ROUNDS = 6  #: times those that are asked for, where the standard error asks for more


@dataclasses.dataclass(frozen=True)
class Profile:
    """One mode: its steps by the clock, and its ops by name."""

    row: Row
    ops: Mapping[str, Figure]

    @property
    def kernels_ms(self) -> float:
        """Milliseconds of a step in all kernels."""
        return sum(figure.ms for figure in self.ops.values())


def measure(
    model: str, way: str, batch: int | None, chosen: Sequence[Mode], settings: Settings
) -> dict[str, Profile]:
    """The profiles of some modes, by their names.

    Raises:
        RuntimeError: a process failed; the message is the end of what it wrote.
    """
    times: dict[str, list[float]] = {}
    turns: dict[str, list[dict[str, tuple[float, float]]]] = {}
    rows: list[Row] = []
    with contextlib.ExitStack() as stack:
        workers = {}
        for mode in chosen:
            workers[mode.name] = worker = Worker(model, mode, batch, settings)
            stack.callback(worker.close)
            worker.ask(do="prepare", way=way)
            times[mode.name] = []
            turns[mode.name] = []
        order = list(workers)
        # Profiled first, because kernels that prove short without the profiler escape it then.
        for _ in range(settings.rounds):
            for name in order:
                turns[name].append(workers[name].ask(do="profile", seconds=settings.seconds))
            order.append(order.pop(0))
        for number in range(MOST_ROUNDS * settings.rounds):
            for name in order:
                times[name].append(workers[name].ask(do="round", seconds=settings.seconds)["ms"])
            # Each mode begins a round in turn: a later place is worth up to 6 %.
            order.append(order.pop(0))
            rows = [Row(model, way, name, ms=tuple(ms)) for name, ms in times.items()]
            errors = [standard_error(row, rows[0]) for row in rows[1:]]
            if number + 1 >= settings.rounds and max(errors, default=0.0) <= settings.error:
                break
    return {row.mode: Profile(row, _medians(turns[row.mode])) for row in rows}


def _medians(turns: Sequence[Mapping[str, tuple[float, float]]]) -> dict[str, Figure]:
    """The median figure of each op over the turns; an op that did not run took no time."""
    found = {}
    for op in sorted(set().union(*turns)):
        ms, counts = zip(*(turn.get(op, (0, 0)) for turn in turns), strict=True)
        found[op] = Figure(statistics.median(ms), statistics.median(counts))
    return found


def table(profiles: Mapping[str, Profile], rows: int) -> str:
    """The ops that take the most in any mode, all kernels, and the step, as Markdown."""
    most: dict[str, float] = {}
    for profile in profiles.values():
        for op, figure in profile.ops.items():
            most[op] = max(most.get(op, 0.0), figure.ms)
    lines = [_row("op", [f"{mode} ms (kernels)" for mode in profiles])]
    lines.append("|---|" + "---:|" * len(profiles))
    for op in sorted(most, key=lambda op: -most[op])[:rows]:
        cells = []
        for profile in profiles.values():
            figure = profile.ops.get(op)
            cells.append(f"{figure.ms:.2f} ({figure.count:.0f})" if figure else "–")
        lines.append(_row(op, cells))
    lines.append(_row("all", [f"{profile.kernels_ms:.2f}" for profile in profiles.values()]))
    steps = [f"{statistics.median(profile.row.ms):.2f}" for profile in profiles.values()]
    lines.append(_row("step, by the clock", steps))
    return "\n".join(lines)


def _row(head: str, cells: Sequence[str]) -> str:
    return f"| {' | '.join([head, *cells])} |"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = options.new_parser(__doc__, modes=COMPARED)
    parser.add_argument("--way", default="fit", choices=WAYS)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--rows", type=int, default=16)
    options.add_turns(parser)
    asked = parser.parse_args(arguments)
    settings = Settings(asked.size, asked.precision, asked.turns, asked.seconds)
    available = modes(asked.precision)
    chosen = [available[name] for name in options.names_in(asked.modes)]
    for model in names(asked.models):
        profiles = measure(model, asked.way, asked.batch, chosen, settings)
        print(
            f"**{model}, {asked.way}**", "", table(profiles, asked.rows), "", sep="\n", flush=True
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
