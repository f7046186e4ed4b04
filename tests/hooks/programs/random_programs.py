"""Random programs, eagerly and compiled; prints a line of JSON for each: what is wrong with it, if
anything.

``random_programs.py KIND [--small] SEED …``: with --small a program that fails is cut down. Eager
ops are never converted, so the eager run is the expected one. A line on stderr says where each
program begins, so that what is logged there belongs to one.
"""

import json
import pathlib
import sys

import numpy as np
import tensorflow as tf

import amp_tf
from amp_tf.graph.names import HOIST_SUFFIX

sys.path.append(str(pathlib.Path(__file__).resolve().parents[3]))
from amp_tf.oplists.hardware import Hardware
from tests.hooks.program_values import Convolutions, Matrices
from tests.hooks.random_programs import count_products, made_small, random_program, run_block
from tests.pretending import pretend

#: Values of programs, whether XLA compiles them, and how often they run, each run on the variables
#: of the last.
KINDS = {
    "matrices": (Matrices, True, 1),
    "convolutions": (Convolutions, False, 1),
    "reads": (Matrices, False, 3),
}


def problem_of(program, seed, kind):
    """Returns the fault of a program, or nothing."""
    try:
        return _problem_of_runs(program, seed, *KINDS[kind])
    except Exception as error:  # the point is to find whatever a user would see
        return f"{type(error).__name__}: {error}"


def _problem_of_runs(program, seed, make_values, is_for_xla, runs):
    values = make_values(seed)
    before = values.weights()
    expected = [(_eagerly(program, values), values.weights()) for _ in range(runs)]
    values.put_back(before)
    compiled = tf.function(
        lambda x: run_block(program, x, values.variables, values), jit_compile=is_for_xla
    )
    allowed = values.tolerance(count_products(program))
    for run, (right, weights) in enumerate(expected):
        deviation = np.abs(compiled(values.x).numpy() - right).max()
        if not deviation <= allowed:
            return f"the result is off by {deviation:.3g}, allowed is {allowed:.3g}"
        for number, (wanted, found) in enumerate(zip(weights, values.weights(), strict=True)):
            if not np.array_equal(wanted, found):  # writing only changes their sign or place
                off = np.abs(wanted - found).max()
                return f"variable {number} is off by {off:.3g} after run {run}"
    return ""


def _eagerly(program, values):
    tf.config.run_functions_eagerly(True)
    try:
        return run_block(program, values.x, values.variables, values).numpy()
    finally:
        tf.config.run_functions_eagerly(False)


def main():
    kind = sys.argv[1]
    # Without bfloat16 in hardware kernels would be asked for that only such a CPU has.
    if kind == "reads" or Hardware.detect_cpu().cpu_has_bf16:
        pretend()
    is_made_small = "--small" in sys.argv
    for seed in (int(argument) for argument in sys.argv[2:] if argument != "--small"):
        print(f"program {seed} begins", file=sys.stderr, flush=True)
        program = random_program(seed)
        problem = problem_of(program, seed, kind)
        if problem and is_made_small:
            program = made_small(program, lambda candidate: bool(problem_of(candidate, seed, kind)))  # noqa: B023
            problem = problem_of(program, seed, kind)
        told = f"{problem}\n{program!r}" if problem else ""
        outcome = {"seed": seed, "products": count_products(program), "problem": told}
        print(json.dumps(outcome), flush=True)
    if kind == "reads":
        moved = [node for node in amp_tf.report().nodes if HOIST_SUFFIX in node.name]
        print("reads moved:", len(moved), file=sys.stderr)


if __name__ == "__main__":
    main()
