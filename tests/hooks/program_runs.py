"""Runs random programs in a process of their own, with amp_tf switched on by its variables alone."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from tests.hooks.running import PROGRAMS, SWITCH, Ended, run, switched_on

KINDS = ("matrices", "convolutions")
SECONDS = 600  # for one process


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What came of one program: how many products it computed, and what is wrong, if anything."""

    seed: int
    products: int
    problem: str


def run_programs(
    kind: str, seeds: Sequence[int], site_folder: Path, *, made_small: bool = False
) -> tuple[Ended, list[Outcome]]:
    """Runs the programs of some seeds, one after the other.

    Args:
        kind: one of :data:`KINDS`; matrices are for XLA, convolutions for Grappler.
        seeds: one for each program.
        site_folder: where the process runs.
        made_small: whether programs that fail are cut down, which takes minutes.

    Returns:
        How the process ended, and the outcomes; the last one tells of a crash or of warnings.
    """
    # On CPUs ``auto`` leaves what XLA compiles in float32.
    variables = {SWITCH: "1", "AMP_TF_PRECISION": "bfloat16"} if kind == "matrices" else switched_on()
    options = ["--small"] if made_small else []
    arguments = [str(PROGRAMS / "random_programs.py"), kind, *options, *map(str, seeds)]
    ended = run(arguments, site_folder, variables, seconds=SECONDS)
    outcomes = [Outcome(**json.loads(line)) for line in ended.out.splitlines()]
    if ended.status != 0:
        outcomes.append(Outcome(seeds[len(outcomes)], 0, f"exit status {ended.status}: {ended.err[-2000:]}"))
    elif ended.warnings:
        outcomes.append(Outcome(seeds[-1], 0, "one of the programs up to here: " + "\n".join(ended.warnings)))
    return ended, outcomes
