"""The ``amp-tf`` command: its subcommands, and what their errors print."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import signal
import sys
from typing import Any

import amp_tf
from amp_tf.cli import MODULES
from amp_tf.config import USE_COMPARE
from amp_tf.errors import AmpError, ConfigError

_KILLED = 128  # what a shell adds to the number of the signal that ended a command


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line.

    Args:
        arguments: what follows ``amp-tf``; by default that of this process.

    Returns:
        The exit status: that of the subcommand; after an error, printed to stderr, 1, or the subcommand's
        ``error_status`` where 1 is an answer; 2 for a wrong command line and without TensorFlow; as in a shell, 130
        where the user interrupted it and 141 where nobody reads its output any more.
    """
    name = "amp-tf"
    args = argparse.Namespace()
    try:  # from the first import on, which a user may interrupt as well
        parser().parse_args(arguments, args)
        name = f"amp-tf {args.command_name}"
        status = int(args.run(args))
        print(end="", flush=True)  # here, where an error can still be reported
        return status
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        return _KILLED + signal.SIGINT
    except ImportError as error:
        from amp_tf.cli.doctor import no_tensorflow

        print(f"{name}: {no_tensorflow(error)}", file=sys.stderr)
        return 2
    except (AmpError, OSError) as error:
        if isinstance(error, OSError):  # output that could not be written Python would try again as it ends
            with contextlib.suppress(AttributeError, OSError):  # stdout is closed, or not a file
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return _KILLED + signal.SIGPIPE
        print(f"{name}: {error}", file=sys.stderr)
        return int(getattr(args, "error_status", 1))
    finally:
        # No line at exit: in a command of ours it would say that nothing was converted.
        if (switch := sys.modules.get("amp_tf.hooks.switch")) is not None:
            switch.disable()


def parser() -> argparse.ArgumentParser:
    """The parser with every subcommand."""
    top = argparse.ArgumentParser(prog="amp-tf", description="Automatic mixed precision for TensorFlow.")
    top.add_argument("--version", action="version", version=f"amp-tf {amp_tf.__version__}")
    subparsers: Any = top.add_subparsers(dest="command_name", metavar="command", required=True)
    for name in MODULES:
        importlib.import_module(f"amp_tf.cli.{name}").add_parsers(subparsers)
    gone = subparsers.add_parser("monitor")  # without help, so that no list has it
    gone.add_argument("rest", nargs=argparse.REMAINDER)
    gone.set_defaults(run=_refuse_monitor)
    return top


def _refuse_monitor(_: argparse.Namespace) -> int:
    raise ConfigError("this is no longer a command of amp_tf", fix=USE_COMPARE)


if __name__ == "__main__":
    sys.exit(main())
