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
from tests.hooks.program_values import Convolutions, Matrices, Twins
from tests.hooks.random_programs import count_products, made_small, random_program, run_block
from tests.pretending import pretend

#: Values of programs, whether XLA compiles them, and how often they run, each run on the variables
#: of the last.
KINDS = {
    "matrices": (Matrices, True, 1),
    "convolutions": (Convolutions, False, 1),
    "twins": (Twins, False, 1),
    "reads": (Matrices, False, 3),
}


def problem_of(program, seed, kind):
    """Returns the fault of a program, or nothing."""
    make_values, is_for_xla, runs = KINDS[kind]
    values = make_values(seed)
    before = values.weights()
    try:
        expected = [(_eagerly(program, values), values.weights()) for _ in range(runs)]
        values.put_back(before)
        compiled = tf.function(
            lambda x: run_block(program, x, values.variables, values), jit_compile=is_for_xla
        )
        found = [(compiled(values.x).numpy(), values.weights()) for _ in range(runs)]
        deviation = max(
            np.abs(other - result).max()
            for (result, _), (other, _) in zip(expected, found, strict=True)
        )
        allowed = values.tolerance(count_products(program))
        if (
            deviation > allowed
        ):  # unless so much is lost in 16 bit alone, which one run may show less of than another
            values.put_back(before)
            values.dtype = tf.bfloat16
            lost = [np.abs(_eagerly(program, values) - result).max() for result, _ in expected]
            allowed = max(allowed, 2 * max(lost))
    except Exception as error:  # the point is to find whatever a user would see
        return f"{type(error).__name__}: {error}"
    if not deviation <= allowed:
        return f"the result is off by {deviation:.3g}, allowed is {allowed:.3g}"
    for run, ((_, written), (_, kept)) in enumerate(zip(expected, found, strict=True)):
        for number, (right, wrong) in enumerate(zip(written, kept, strict=True)):
            if not np.array_equal(right, wrong):  # writing only changes the numbers' sign or place
                return (
                    f"variable {number} is off by {np.abs(right - wrong).max():.3g} after run {run}"
                )
    return ""


def _eagerly(program, values):
    tf.config.run_functions_eagerly(True)
    try:
        return run_block(program, values.x, values.variables, values).numpy()
    finally:
        tf.config.run_functions_eagerly(False)


def main():
    kind = sys.argv[1]
    if (
        kind == "reads" or Hardware.detect_cpu().cpu_has_bf16
    ):  # else kernels are asked for that only such a CPU has
        pretend()
    for seed in (int(argument) for argument in sys.argv[2:] if argument != "--small"):
        print(f"program {seed} begins", file=sys.stderr, flush=True)
        program = random_program(seed)
        problem = problem_of(program, seed, kind)
        if problem and "--small" in sys.argv:
            program = made_small(program, lambda candidate: bool(problem_of(candidate, seed, kind)))  # noqa: B023
            problem = problem_of(program, seed, kind)
        told = f"{problem}\n{program!r}" if problem else ""
        print(
            json.dumps({"seed": seed, "products": count_products(program), "problem": told}),
            flush=True,
        )
    if kind == "reads":
        print(
            "reads moved:",
            sum(HOIST_SUFFIX in node.name for node in amp_tf.report().nodes),
            file=sys.stderr,
        )


if __name__ == "__main__":
    main()
