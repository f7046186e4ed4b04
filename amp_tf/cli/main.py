"""The ``amp-tf`` command: a row for each subcommand, each in a module of its own."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
from typing import Any

import amp_tf
from amp_tf.errors import AmpError

COMMANDS = ("run", "rewrite", "convert", "explain", "report", "doctor")
"""Modules of amp_tf.cli, those that are there: each has ``add_parser(subparsers)`` and ``run(args) -> int``."""


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line.

    Args:
        arguments: what follows ``amp-tf``; by default that of this process.

    Returns:
        The exit status: that of the subcommand, 1 after an error that was told on stderr, 2 for a wrong command line.
    """
    args = parser().parse_args(arguments)
    try:
        return int(args.run(args))
    except AmpError as error:
        print(f"amp-tf {args.command_name}: {error}", file=sys.stderr)
        return 1


def parser() -> argparse.ArgumentParser:
    """The parser with every subcommand that is there."""
    top = argparse.ArgumentParser(prog="amp-tf", description="Automatic mixed precision for TensorFlow.")
    top.add_argument("--version", action="version", version=f"amp-tf {amp_tf.__version__}")
    subparsers: Any = top.add_subparsers(dest="command_name", metavar="command", required=True)
    for name in COMMANDS:
        home = f"amp_tf.cli.{name}"
        if importlib.util.find_spec(home) is not None:
            command = importlib.import_module(home)
            command.add_parser(subparsers)
            subparsers.choices[name].set_defaults(run=command.run)
    return top


if __name__ == "__main__":
    sys.exit(main())
