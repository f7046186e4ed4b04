"""Runs a Python script or module with amp_tf on, as if Python itself had been given it."""

from __future__ import annotations

import os
import runpy
import sys

from amp_tf.cli.run import switched_on

USAGE = "usage: python -m amp_tf [-m module | script.py] [arguments of the script …]"


def main(arguments: list[str]) -> int:
    """Runs ``script.py args…`` or ``-m module args…`` in this process, as ``__main__``.

    The switch is set in this process' environment, so that its children have it too.

    Args:
        arguments: what follows ``python -m amp_tf``.

    Returns:
        2 if there is nothing to run, else 0; a script's own exit status arrives as its ``SystemExit``.
    """
    if arguments[:1] in (["-h"], ["--help"]):
        print(USAGE)
        return 0
    as_module = arguments[:1] == ["-m"]
    rest = arguments[1:] if as_module else arguments
    if not rest or rest[0].startswith("-"):
        print(USAGE, file=sys.stderr)
        return 2
    os.environ.update(switched_on(os.environ))
    from amp_tf import _autostart

    _autostart.start()
    sys.argv[:] = rest
    if as_module:
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        return 0
    if not getattr(sys.flags, "safe_path", False):
        # Where "python -m" put the current folder, "python script.py" puts the script's own.
        sys.path[0] = os.path.dirname(os.path.realpath(rest[0]))
    runpy.run_path(rest[0], run_name="__main__")
    return 0
