"""Runs the ``amp-tf`` command: parses its options, calls its subcommand, and prints errors.

A subcommand's module is imported when it runs, so that help costs no more than Python's own start.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

from amp_tf.cli.commands import COMMANDS, parser
from amp_tf.errors import AmpError

BY_SIGNAL = 128  #: what a shell adds to the number of the signal that ended a command


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line.

    SIGTERM and SIGHUP raise SystemExit with 143 and 129, so that temporary files go.

    Args:
        arguments: the words after ``amp-tf``; by default those of this process.

    Returns:
        The exit status: the subcommand's own; its ``error_status`` after an error, which is printed
        to stderr; 2 for a wrong command line or without TensorFlow; as in a shell, 130 if the user
        interrupted it, and 141 if nobody reads its output any more.
    """
    _prepare_streams()
    stdout: Any = sys.stdout
    if stdout is not None:
        stdout = _Stdout(stdout)
    with _ended_by_signals(), contextlib.redirect_stdout(stdout):
        return _main(arguments)


class _Stdout:
    """Names stdout in the errors of writing to it, which say no file themselves."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._stream, name)
        if not callable(value):
            return value

        def call(*arguments: Any, **options: Any) -> Any:
            try:
                return value(*arguments, **options)
            except OSError as error:
                error.filename = "stdout"
                raise

        return call


def _prepare_streams() -> None:
    """Lets stdout and stderr take whatever is printed.

    A character that stdout's encoding lacks is written as an escape, as on stderr. A stderr that is
    closed becomes one that nobody reads: the file that is opened next would get its number, and
    TensorFlow's log.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (it stays open)
        os.set_inheritable(sys.stderr.fileno(), True)


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Makes SIGTERM and SIGHUP raise SystemExit inside the block.

    Later ones are ignored, so that nothing cuts off the cleaning up.
    """
    before: dict[int, Any] = {}

    def end(number: int, _: Any) -> None:
        for each in before:
            signal.signal(each, signal.SIG_IGN)
        raise SystemExit(BY_SIGNAL + number)

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:  # as under nohup
                before[number] = signal.signal(number, end)
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler or signal.SIG_DFL)


def _main(arguments: list[str] | None) -> int:
    name = "amp-tf"
    error_status = 1
    try:  # around the imports, too: a user may interrupt them
        args, unknown = parser().parse_known_args(arguments)
        if unknown:
            args.refuse(f"unrecognized arguments: {' '.join(unknown)}")
        name = f"amp-tf {args.command_name}"
        command = COMMANDS[args.command_name]
        error_status = command.error_status
        module, _, function = command.home.partition(".")
        status = int(getattr(importlib.import_module(f"amp_tf.cli.{module}"), function)(args))
        print(end="", flush=True)  # here, where an error can still be reported
        return status
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        return BY_SIGNAL + signal.SIGINT
    except ImportError as error:
        from amp_tf.cli.doctor import no_tensorflow

        print(f"{name}: {no_tensorflow(error)}", file=sys.stderr)
        return 2
    except (AmpError, OSError) as error:
        # Python would try to write the rest of the output again as it ends.
        if isinstance(error, OSError):
            with contextlib.suppress(AttributeError, OSError):  # stdout is closed, or not a file
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return BY_SIGNAL + signal.SIGPIPE
        print(f"{name}: {error}", file=sys.stderr)
        return error_status
    finally:
        # No summary line: in a command of ours it would say that nothing was converted.
        if (switch := sys.modules.get("amp_tf.hooks.switch")) is not None:
            switch.disable()


if __name__ == "__main__":
    sys.exit(main())
