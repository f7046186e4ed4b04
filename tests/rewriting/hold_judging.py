"""Rewrites random programs for speed and for memory, which computes the same bits."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple
from unittest import mock

import amp_tf
from amp_tf.rewriting import holding
from tests.truth.fuzzing.graphs import ProgramGraph
from tests.truth.fuzzing.programs import random_program

PRECISIONS = ("bfloat16", "float16")
#: Small tensors and short times count as large ones and long ones do in a user's model.
_LITTLE = {"LONG": 3, "_SMALL": 0}


class Held(NamedTuple):
    """A program in one precision, rewritten for memory: how many nodes of the whole graph wait
    more, what is wrong.
    """

    seed: int
    precision: str
    waiting: int
    problem: str


def judge(seeds, is_lowered):
    """The verdicts on the programs of these seeds, which are one graph."""
    graph = ProgramGraph([random_program(seed) for seed in seeds], seeds, is_lowered)
    for precision in PRECISIONS:
        config = amp_tf.AmpConfig(precision=precision)
        speed = graph.rewritten(config)
        with mock.patch.multiple(holding, **_LITTLE):
            memory = graph.rewritten(dataclasses.replace(config, goal="memory"))
        expected = graph.run(speed)
        values = graph.run(memory)
        wrong = {}
        for (program, name), value in values.items():
            if value.tobytes() != expected[program, name].tobytes():
                wrong.setdefault(program, []).append(name)
        waiting = _waits(memory) - _waits(speed)
        for number, seed in enumerate(seeds):
            problem = f"other bits: {', '.join(wrong[number])}" if number in wrong else ""
            yield Held(seed, precision, waiting, problem)


def _waits(graph):
    return sum(name.startswith("^") for node in graph.node for name in node.input)
