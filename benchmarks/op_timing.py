"""Times one op in float32 and in bfloat16, in turns, on a machine that may be busy: the minimum counts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

Op = Callable[..., Any]


def run_many(op: Op, runs: int) -> Op:
    """The op as many times, one after the other, each reading the same inputs."""

    def run(*inputs: Any) -> Any:
        results: list[Any] = []
        for _ in range(runs):
            with tf.control_dependencies(results[-1:]):
                results.append(op(*inputs))
        return results[-1]

    return run


def seconds(function: Op, inputs: Sequence[Any], repeats: int) -> tuple[float, float]:
    """The least time of one call in float32 and in bfloat16, in turns.

    Args:
        function: takes tensors; it is traced once for each type.
        inputs: float32 tensors.
        repeats: calls of each.
    """
    calls = []
    for dtype in (tf.float32, tf.bfloat16):
        cast = [tf.cast(tensor, dtype) for tensor in inputs]
        concrete = tf.function(function).get_concrete_function(*cast)
        concrete(*cast)
        calls.append((concrete, cast))
    best = [float("inf")] * 2
    for _ in range(repeats):
        for index, (concrete, cast) in enumerate(calls):
            begin = time.perf_counter()
            concrete(*cast)
            best[index] = min(best[index], time.perf_counter() - begin)
    return best[0], best[1]
