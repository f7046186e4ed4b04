"""Runs a Python script or module with amp_tf on, as if Python itself had been given it.

A name that is a command of ``amp-tf`` and not a file runs that command: ``python -m amp_tf doctor``, for environments
whose scripts are not in PATH.
"""

from __future__ import annotations

import importlib.util
import os
import runpy
import sys

import _amp_tf_start
from amp_tf.cli.run import switched_on

COMMANDS = ("run", "rewrite", "explain", "compare", "tune", "report", "calibrate", "doctor")
USAGE = (
    "usage: python -m amp_tf [-m module | script.py] [arguments of the script ...]\n"
    f"       python -m amp_tf {'|'.join(COMMANDS)} [arguments, as for amp-tf]"
)


def main(arguments: list[str]) -> int:
    """Runs ``script.py args…`` or ``-m module args…`` in this process, as ``__main__``.

    The switch is set in this process' environment, so that its children have it too.

    Args:
        arguments: what follows ``python -m amp_tf``.

    Returns:
        0; a script's own exit status arrives as its ``SystemExit``. Where there is nothing to run, Python's own status:
        2 without a script, 1 without such a module.
    """
    if arguments and arguments[0] in COMMANDS and not os.path.exists(arguments[0]):
        from amp_tf.cli import main as commands

        return commands.main(arguments)
    if arguments[:1] in (["-h"], ["--help"]):
        print(USAGE)
        return 0
    as_module = arguments[:1] == ["-m"]
    rest = arguments[1:] if as_module else arguments
    if not rest or rest[0].startswith("-"):
        print(USAGE, file=sys.stderr)
        return 2
    why, status = _why_not_module(rest[0]) if as_module else _why_not_script(rest[0])
    if why:
        print(f"python -m amp_tf: {why}", file=sys.stderr)
        return status
    os.environ.update(switched_on(os.environ))
    _amp_tf_start.install()
    sys.argv[:] = rest
    if as_module:
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        return 0
    if not getattr(sys.flags, "safe_path", False):
        # Where "python -m" put the current folder, "python script.py" puts the script's own.
        sys.path[0] = os.path.dirname(os.path.realpath(rest[0]))
    runpy.run_path(rest[0], run_name="__main__")
    return 0


def _why_not_script(path: str) -> tuple[str, int]:
    """Why a path cannot be run, and Python's exit status for it; ``("", 0)`` if it can."""
    if not os.path.exists(path):
        return f"there is no file {path!r}. Check its name and the current folder.", 2
    if os.path.isdir(path) and not os.path.exists(os.path.join(path, "__main__.py")):
        return f"the folder {path!r} has no __main__.py. Name a script.", 1
    return "", 0


def _why_not_module(name: str) -> tuple[str, int]:
    """Why a module, or a package that it is in, cannot be run; packages are found by importing them."""
    home = name.partition(".")[0]
    if home and importlib.util.find_spec(home) is not None:
        return "", 0
    return f"there is no module {home or name!r}. Check its name, and that it is installed for {sys.executable}.", 1
