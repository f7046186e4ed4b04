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
from benchmarks.results import table_head, table_row
from benchmarks.step_time import options
from benchmarks.step_time.modes import COMPARED, WAYS, Mode, modes
from benchmarks.step_time.suite import Row, Settings, Worker, take_turns
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
    rows = {mode.name: Row(model, way, mode.name) for mode in chosen}
    profiled: dict[str, list[dict[str, tuple[float, float]]]] = {name: [] for name in rows}
    with contextlib.ExitStack() as stack:
        workers = {}
        for mode in chosen:
            workers[mode.name] = worker = Worker(model, mode, batch, settings)
            stack.callback(worker.close)
            worker.ask(do="prepare", way=way)
        order = list(workers)
        # Profiled first, because kernels that prove short without the profiler escape it then.
        for _ in range(settings.rounds):
            for name, ops in take_turns(order, workers, "profile", settings.seconds):
                profiled[name].append(ops)
        for number in range(1, MOST_ROUNDS * settings.rounds + 1):
            for name, answer in take_turns(order, workers, "round", settings.seconds):
                row = rows[name]
                rows[name] = dataclasses.replace(row, ms=(*row.ms, answer["ms"]))
            reference, *others = rows.values()
            error = max([standard_error(row, reference) for row in others], default=0.0)
            if number >= settings.rounds and error <= settings.error:
                break
    return {name: Profile(row, _medians(profiled[name])) for name, row in rows.items()}


def _medians(turns: Sequence[Mapping[str, tuple[float, float]]]) -> dict[str, Figure]:
    """The median figure of each op over the turns; an op that did not run took no time."""
    found = {}
    for op in sorted(set().union(*turns)):
        figures = [turn.get(op, (0.0, 0.0)) for turn in turns]
        ms = statistics.median(ms for ms, _ in figures)
        count = statistics.median(count for _, count in figures)
        found[op] = Figure(ms, count)
    return found


def table(profiles: Mapping[str, Profile], rows: int) -> str:
    """The ops that take the most in any mode, all kernels, and the step, as Markdown."""
    most: dict[str, float] = {}
    for profile in profiles.values():
        for op, figure in profile.ops.items():
            most[op] = max(most.get(op, 0.0), figure.ms)
    columns = ["op"]
    kernels = ["all"]
    steps = ["step, by the clock"]
    for mode, profile in profiles.items():
        columns.append(f"{mode} ms (kernels)")
        kernels.append(f"{profile.kernels_ms:.2f}")
        steps.append(f"{statistics.median(profile.row.ms):.2f}")
    lines = [table_head(columns)]
    for op in sorted(most, key=lambda op: -most[op])[:rows]:
        cells = [op]
        for profile in profiles.values():
            figure = profile.ops.get(op)
            cells.append(f"{figure.ms:.2f} ({figure.count:.0f})" if figure else "–")
        lines.append(table_row(cells))
    lines += [table_row(kernels), table_row(steps)]
    return "\n".join(lines)


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
        print(f"**{model}, {asked.way}**\n\n{table(profiles, asked.rows)}\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
