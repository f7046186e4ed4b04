"""``python -m benchmarks.gpu COMMAND``; the package's docstring names the commands."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from benchmarks.gpu import compiled, export, run, session

COMMANDS = {"export": export, "compile": compiled, "run": run, "session": session}


def run_command(arguments: Sequence[str] | None = None) -> int:
    """Runs one of :data:`COMMANDS` and returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, module in COMMANDS.items():
        about = {
            "description": module.__doc__,
            "formatter_class": argparse.RawDescriptionHelpFormatter,
        }
        module.add_arguments(
            commands.add_parser(name, help=str(module.__doc__).splitlines()[0], **about)
        )
    options = parser.parse_args(arguments)
    return COMMANDS[options.command].main(options)


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.exit(run_command())
