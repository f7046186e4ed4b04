"""The command-line options that all commands of this package share."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from benchmarks.models import BENCHMARKS, GROUPS, SIZES, cases
from benchmarks.models.wide import MODELS
from benchmarks.step_time.modes import WAYS


def new_parser(
    doc: str | None, *, models: str = "models", modes: Sequence[str]
) -> argparse.ArgumentParser:
    """A parser that knows which models to run, at what size, in which modes, with which 16-bit
    type.

    Args:
        doc: the docstring of the command, its help.
        models: ``"models"`` for a positional argument, ``"--models"`` for an option.
        modes: those that are compared where nothing else is asked for, by name.
    """
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    many = f"{', '.join(GROUPS)}, or names, comma-separated: {', '.join([*BENCHMARKS, *MODELS])}"
    parser.add_argument(models, nargs="?", default="all", metavar="MODELS", help=many)
    parser.add_argument(
        "--modes", default=",".join(modes), help="comma-separated; %(default)s by default"
    )
    parser.add_argument("--size", default="small", choices=[*SIZES, cases.SIZES[-1]])
    parser.add_argument(
        "--precision",
        default="bfloat16",
        choices=("bfloat16", "float16"),
        help="of the Keras policy and TensorFlow",
    )
    return parser


def add_ways(parser: argparse.ArgumentParser, default: str) -> None:
    """Adds ``--ways``, several of them."""
    parser.add_argument(
        "--ways", default=default, help=f"of {', '.join(WAYS)}; {default} by default"
    )


def add_turns(parser: argparse.ArgumentParser) -> None:
    """Adds ``--turns`` and ``--seconds``, of what is profiled."""
    parser.add_argument("--turns", type=int, default=5, help="of each mode; %(default)s by default")
    parser.add_argument(
        "--seconds", type=float, default=0.25, help="that each times, and profiles, in a turn"
    )


def names_in(text: str) -> list[str]:
    """The names in a comma-separated value."""
    return [name.strip() for name in text.split(",") if name.strip()]
