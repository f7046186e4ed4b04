"""Runs random programs in a process of their own, with amp_tf switched on by its variables
alone.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.hooks.random_programs import random_program
from tests.hooks.running import PROGRAMS, SWITCH, Ended, run, switched_on

KINDS = ("matrices", "convolutions", "reads")
SECONDS = 600  # for one process
# A graph that an optimizer of TensorFlow's refuses runs as it was before all of them, amp_tf
# included.
_GIVEN_UP = re.compile(r"^E\d{4} .*optimizer.*", re.MULTILINE)
_BEGIN = re.compile(r"^program (\d+) begins$", re.MULTILINE)  # the process writes it to stderr


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The result of one program: how many products it computed, and its fault, if any."""

    seed: int
    products: int
    problem: str


def run_programs(
    kind: str, seeds: Sequence[int], site_folder: Path, *, made_small: bool = False
) -> tuple[Ended, list[Outcome]]:
    """How a process ends that runs the programs of some seeds, and the outcomes; after a crash the
    last tells of it.

    Of :data:`KINDS` matrices are for XLA, the others for Grappler, reads as if each product paid.
    To cut down what fails takes minutes.
    """
    # On CPUs ``auto`` leaves what XLA compiles in float32.
    named = {SWITCH: "1", "AMP_TF_PRECISION": "bfloat16"}
    variables = {"convolutions": switched_on(), "reads": {SWITCH: "1"}}.get(kind, named)
    options = ["--small"] if made_small else []
    arguments = [str(PROGRAMS / "random_programs.py"), kind, *options, *map(str, seeds)]
    ended = run(arguments, site_folder, variables, seconds=SECONDS, status=None)
    complaints = dict(_complaints(ended.err))
    outcomes = []
    for line in ended.out.splitlines():
        outcome = Outcome(**json.loads(line))
        outcomes.append(
            dataclasses.replace(
                outcome, problem=outcome.problem or complaints.get(outcome.seed, "")
            )
        )
    if ended.status != 0:
        outcomes.append(
            Outcome(seeds[len(outcomes)], 0, f"exit status {ended.status}: {ended.err[-2000:]}")
        )
    return ended, outcomes


def _complaints(err: str) -> Iterator[tuple[int, str]]:
    """For each seed for which there are any, amp_tf's warnings and the optimizers that gave up; and
    its program.
    """
    _, *parts = _BEGIN.split(err)
    for seed, text in zip(map(int, parts[::2]), parts[1::2], strict=True):
        lines = [*Ended(0, "", text).warnings, *_GIVEN_UP.findall(text)]
        if lines:
            yield seed, "\n".join([*lines, repr(random_program(seed))])
