"""Programs of seeds, judged by the yardstick; what is far off is named by its cause, or made
small.
"""

from __future__ import annotations

import dataclasses
import functools

import tensorflow as tf

import amp_tf
from tests.truth.fuzzing.causes import cause_of
from tests.truth.fuzzing.graphs import ProgramGraph
from tests.truth.fuzzing.programs import Program, cuts, random_program
from tests.truth.modes import MODES, default_config, ideal_config
from tests.truth.runner import Row
from tests.truth.yardstick import LIMIT, distance, judge

MOST_CUTS = 40  # that are tried at once


@dataclasses.dataclass(frozen=True)
class Finding:
    """A program that is further off than the yardstick allows, in one mode.

    Attributes:
        seed: the program's.
        row: its worst tensor.
        cause: the named limit that explains it; empty for a defect.
        program: a defect's program, made small.
    """

    seed: int
    row: Row
    cause: str
    program: Program | None = None

    def __str__(self):
        row = self.row
        figures = (
            f"ratio {row.ratio:.3g}, error {row.error:.3g}, of the ideal program {row.ideal:.3g}"
        )
        found = (
            f"{row.mode}, loops and branches as {row.way}: "
            f"{row.problem or f'{row.tensor}, {figures}'}"
        )
        return f"{found}\n{self.program}" if self.program else found


def way_of(seed):
    """Loops and branches are nodes, as Grappler hands them over; in each fourth hundred functions,
    as for XLA.
    """
    return "functions" if seed // 100 % 4 == 3 else "nodes"


def batches(seeds, size):
    """Parts of a range that are run one way."""
    begin = seeds.start
    while begin < seeds.stop:
        end = min(begin + size - begin % size, seeds.stop)  # a hundred seeds are whole batches
        yield range(begin, end)
        begin = end


def rows_of(programs, seeds, modes=tuple(MODES)):
    """The verdict on every result of every program; the case is the number of the program among
    these.

    The seeds draw the inputs, and must all be run one way.
    """
    (way,) = set(map(way_of, seeds))
    try:
        yield from _judged(ProgramGraph(programs, seeds, is_lowered=way == "nodes"), way, modes)
    except (amp_tf.AmpError, tf.errors.OpError, ValueError, TypeError, AssertionError) as error:
        if len(programs) > 1:  # which of them is it?
            for index, (program, seed) in enumerate(zip(programs, seeds, strict=True)):
                for row in rows_of([program], [seed], modes):
                    yield dataclasses.replace(row, case=str(index))
            return
        # By cond_v2: TensorFlow has no gradient of some branches in loops, and a wrong one of
        # silu's in a branch.
        if isinstance(error, AssertionError) or not _runs_in_float32(programs, seeds, way):
            return
        problem = f"{type(error).__name__}: {str(error)[:500]}"
        for mode in modes:
            row = Row.of_failure(f"seed {seeds[0]}", way, mode, problem)
            yield dataclasses.replace(row, case="0")


def _runs_in_float32(programs, seeds, way):
    try:
        graph = ProgramGraph(programs, seeds, is_lowered=way == "nodes")
        graph.run(graph.graph_def)
    except (tf.errors.OpError, ValueError, TypeError):
        return False
    return True


def findings_of(rows, seeds, makes_small=True):
    """One finding for each program and mode above the limit."""
    worst = {}
    for row in rows:
        key = (row.case, row.mode)
        if is_far_off(row) and (key not in worst or worst[key].ratio < row.ratio):
            worst[key] = row
    for row in worst.values():
        seed = seeds[int(row.case)]
        program = random_program(seed)
        cause = "" if row.problem else cause_of(program, seed, row)
        if cause or not makes_small:
            yield Finding(seed, row, cause)
            continue
        yield Finding(seed, row, "", made_small(program, seed, row.mode))


def made_small(program, seed, mode):
    """A smaller program that still is further off than allowed, and not for a cause; all cuts are
    run at once.
    """
    while True:
        candidates = list(cuts(program))[:MOST_CUTS]
        smaller = _first_defect(candidates, seed, mode)
        if smaller is None:
            return program
        program = smaller


def _first_defect(candidates, seed, mode):
    """The first program that is too far off without a cause; ``None`` if none is."""
    worst = {}
    for row in rows_of(candidates, [seed] * len(candidates), [mode]) if candidates else ():
        index = int(row.case)
        if is_far_off(row) and (index not in worst or worst[index].ratio < row.ratio):
            worst[index] = row
    for index in sorted(worst):
        row = worst[index]
        if row.problem or not cause_of(candidates[index], seed, row):
            return candidates[index]
    return None


def is_far_off(row):
    return row.ratio > LIMIT or bool(row.problem)


def _judged(graph, way, modes):
    @functools.cache
    def ideal(precision):
        return graph.run(graph.rewritten(ideal_config(precision)))

    truth = graph.run(graph.graph_def)
    noisy = graph.run(graph.graph_def, noise=1.0)
    for name in modes:
        mode = MODES[name]
        values = graph.run(graph.rewritten(default_config(mode)))
        least = ideal(mode.ideal)
        for key, known in truth.items():
            program, tensor = key
            noise = distance(noisy[key], known)
            verdict = judge(tensor, values[key], least[key], known, mode.unit, noise)
            figures = dataclasses.asdict(verdict)
            yield Row(f"program {program}", way, name, str(program), tensor, **figures)
