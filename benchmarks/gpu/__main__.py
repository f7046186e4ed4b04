"""``python -m benchmarks.gpu COMMAND``: what mixed precision makes of steps for GPUs; see the package's docstring."""

from __future__ import annotations

import argparse
import os
import sys

from benchmarks.gpu import compiled, export, grappler, run

COMMANDS = {"export": export, "compile": compiled, "run": run, "grappler": grappler}


def main() -> int:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, module in COMMANDS.items():
        about = {"description": module.__doc__, "formatter_class": argparse.RawDescriptionHelpFormatter}
        module.add_arguments(commands.add_parser(name, help=str(module.__doc__).splitlines()[0], **about))
    options = parser.parse_args()
    return COMMANDS[options.command].main(options)


if __name__ == "__main__":
    sys.exit(main())
