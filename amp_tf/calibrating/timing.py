"""Times one op alternately in float32 and in bfloat16."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

Op = Callable[..., Any]
TYPES = (tf.float32, tf.bfloat16)


def run_many(op: Op, runs: int, stacks: int = 0) -> Op:
    """Runs an op many times in a row, each writing to new memory.

    It is so in training, where activations are kept for the gradients; in a chain TensorFlow would write in place.

    Args:
        op: takes tensors.
        runs: how many times.
        stacks: how many of its inputs, counted from the last, are taken out of stacks of as many tensors, so that each
            run reads others. A part of a stack is the stack's memory, and no copy.
    """

    def run(*inputs: Any) -> Any:
        same = inputs[: len(inputs) - stacks]
        results: list[Any] = []
        for _, *others in zip(range(runs), *map(tf.unstack, inputs[len(same) :]), strict=True):
            with tf.control_dependencies(results[-1:]):
                results.append(op(*same, *others))
        return results[-1]

    return run


def take_times(
    run: Op, inputs: Sequence[Any], runs: int, until: float, repeats: int = 3
) -> tuple[Sequence[float], Sequence[float]]:
    """The times of one run of an op in float32 and in bfloat16, in seconds, a figure for each call.

    Args:
        run: takes tensors and runs the op some times; it is traced once for each type.
        inputs: float32 tensors.
        runs: of the op in each call.
        until: the value of ``time.monotonic()`` at which no more calls begin.
        repeats: calls of each type that are made in any case.
    """
    calls = []
    for dtype in TYPES:
        cast = [tf.cast(tensor, dtype) for tensor in inputs]
        concrete = tf.function(run, autograph=False).get_concrete_function(*cast)
        concrete(*cast)
        calls.append((concrete, cast))
    taken: tuple[list[float], list[float]] = ([], [])
    while len(taken[0]) < repeats or time.monotonic() < until:
        for times, (concrete, cast) in zip(taken, calls, strict=True):
            begin = time.perf_counter()
            concrete(*cast)
            times.append((time.perf_counter() - begin) / runs)
    return taken
