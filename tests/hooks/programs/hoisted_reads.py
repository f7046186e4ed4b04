"""Random programs of loops that read variables, eagerly and by Grappler, as if all products paid in bfloat16.

Prints one line of JSON: what is wrong, for each seed of a program with a fault, and how many graphs had reads moved out
of loops.

    hoisted_reads.py FIRST COUNT [RUNS]
"""

import json
import pathlib
import sys

import numpy as np
import tensorflow as tf

from amp_tf.config import AmpConfig
from amp_tf.graph.names import HOIST_SUFFIX
from amp_tf.hooks import plugin

sys.path.append(str(pathlib.Path(__file__).resolve().parents[3]))
from tests.hooks.program_values import Matrices
from tests.hooks.random_programs import count_products, random_program, run_block
from tests.pretending import pretend


def problem_of(seed, runs):
    """What is wrong with a program in some runs one after the other, each going on from the last one's variables."""
    program = random_program(seed)
    values = Matrices(seed)
    before = values.weights()
    try:
        eager = []
        tf.config.run_functions_eagerly(True)
        for _ in range(runs):
            eager.append((run_block(program, values.x, values.variables, values).numpy(), values.weights()))
        tf.config.run_functions_eagerly(False)
        values.put_back(before)
        compiled = tf.function(lambda x: run_block(program, x, values.variables, values))
        allowed = values.tolerance(count_products(program))
        for number, (expected, written) in enumerate(eager):
            deviation = np.abs(compiled(values.x).numpy() - expected).max()
            if not deviation <= allowed:
                return f"the result of run {number} is off by {deviation:.3g}, allowed is {allowed:.3g}"
            if not all(map(np.array_equal, written, values.weights())):
                return f"a variable is wrong after run {number}"
    except Exception as error:  # the point is to find whatever a user would see
        return f"{type(error).__name__}: {error}"
    return ""


def main():
    first, count, runs = (int(argument) for argument in [*sys.argv[1:], "3"][:3])
    pretend()
    moved = []

    def convert(serialized, preserve, shapes):
        result = plugin.convert_graph(serialized, preserve, shapes, AmpConfig())
        moved.append(result is not None and HOIST_SUFFIX.encode() in result)
        return result

    assert plugin.set_conversion(convert)
    problems = {seed: problem_of(seed, runs) for seed in range(first, first + count)}
    print(json.dumps({"problems": {seed: what for seed, what in problems.items() if what}, "moved": sum(moved)}))


if __name__ == "__main__":
    main()
