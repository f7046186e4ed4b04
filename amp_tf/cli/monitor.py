"""``amp-tf monitor RUN [RUN]``: the layers nearest to their limits, or where two runs part."""

from __future__ import annotations

import argparse
from typing import Any

from amp_tf.errors import AmpError
from amp_tf.values import invalid


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Adds the command to the parser of ``amp-tf``."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "monitor",
        help="show what AMP_TF_MONITOR read of a run, or where two runs part",
        description="Of one run, lists the layers that are nearest to a limit of the 16-bit type. Of two runs, names "
        "the first step and layer in which they differ, and exits with 1; 0 if they do not. Runs that are to be alike "
        "need the same seeds and batches; of two checkpoints, start a run from each.",
    )
    parser.add_argument("runs", metavar="RUN", nargs="+", help="a file, or a folder for its newest file")
    parser.add_argument(
        "--tolerance", type=float, metavar="SHARE", help="how far apart norms may be; by default four roundings"
    )
    parser.set_defaults(error_status=2)
    return parser


def run(args: argparse.Namespace) -> int:
    """Prints the layers, or the first difference.

    Raises:
        AmpError: a file is none of a monitor's, or the runs have nothing in common.
    """
    from amp_tf.comparing import readings

    if len(args.runs) > 2:
        raise AmpError(f"{len(args.runs)} runs were named", where="monitor", fix="Name one run, or two to compare")
    if args.tolerance is not None and not 0 <= args.tolerance < 1:
        raise invalid(args.tolerance, "--tolerance", "numbers from 0 to 1, such as 0.01")
    runs = [readings.read(path) for path in args.runs]
    if len(runs) == 1:
        print(runs[0])
        return 0
    one, other = runs
    steps = readings.common_steps(one, other)
    if not steps:
        raise AmpError(
            "the runs have no step in common",
            where="monitor",
            fix="Read both every so many steps (AMP_TF_MONITOR_EVERY)",
        )
    if one.precision is not other.precision:
        print(f"{one.name} ran in {one.precision.value}, {other.name} in {other.precision.value}")
    divergence = readings.find_divergence(one, other, args.tolerance)
    if divergence is None:
        print(f"no layer differs in {len(steps)} readings, up to step {steps[-1]}")
        return 0
    print(divergence)
    return 1
