"""Runs programs with amp_tf on.

``amp-tf run`` runs any command, ``python -m amp_tf`` a script in this process.

``amp-tf run`` is for environments whose .pth files are not read (``pip install -t``), and for
launchers with workers. The command replaces this process, with the switch set and a folder in front
of ``PYTHONPATH`` whose sitecustomize.py does what amp_tf.pth does.
"""

from __future__ import annotations

import argparse
import os
import runpy
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import _amp_tf_start
from amp_tf.cli.commands import COMMANDS
from amp_tf.cli.main import main
from amp_tf.config import ENABLE_VAR, Switches
from amp_tf.errors import ConfigError

Environment = Mapping[str, str]  #: variables by their names
NOT_STARTED = 126  #: a shell's status for a command that cannot be started
NOT_FOUND = 127  #: and for one that does not exist
_BOOTSTRAP = Path(__file__).resolve().parent / "bootstrap"


def run(args: argparse.Namespace) -> int:
    """Replaces this process by the command.

    Returns a shell's status if it cannot be started, and 2 if there is none.
    """
    command = args.command
    if command[:1] == ["--"]:
        command = command[1:]
    if not command:
        print("amp-tf run: no command. Write: amp-tf run -- python train.py", file=sys.stderr)
        return 2
    try:
        print(end="", flush=True)
        # Python ignores SIGPIPE, and the command would inherit that.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.execvpe(command[0], command, environment(os.environ))
    except OSError as error:
        print(
            f"amp-tf run: {command[0]} cannot be started: {error.strerror}. Check its name and "
            "PATH.",
            file=sys.stderr,
        )
        if isinstance(error, FileNotFoundError):
            return NOT_FOUND
        return NOT_STARTED


def switched_on(environ: Environment) -> Environment:
    """Returns the variables to add to an environment so that amp_tf is on.

    Empty if a part of it is on already, or if a variable has an invalid value, which the program
    reports when it imports TensorFlow. ``AMP_TF_DISABLE=1`` wins in any case.
    """
    try:
        if not Switches.from_env(environ).any:
            return {ENABLE_VAR: "1"}
    except ConfigError:
        pass
    return {}


def environment(environ: Environment) -> Environment:
    """Returns the environment for the command: with the switch, and bootstrapped. Idempotent."""
    return bootstrapped({**environ, **switched_on(environ)})


def bootstrapped(environ: Environment) -> Environment:
    """Returns an environment with the bootstrap folder in front of ``PYTHONPATH``. Idempotent."""
    given = environ.get("PYTHONPATH", "")
    # An empty entry is the current folder, but an empty variable has no entry.
    paths = [str(_BOOTSTRAP)]
    if given:
        paths += (path for path in given.split(os.pathsep) if path != paths[0])
    return {**environ, "PYTHONPATH": os.pathsep.join(paths)}


USAGE = (
    "usage: python -m amp_tf [-m module | script.py] [arguments of the script ...]\n"
    f"       python -m amp_tf {'|'.join(COMMANDS)} [arguments, as for amp-tf]"
)


def run_script(arguments: list[str]) -> int:
    """Runs ``script.py args…`` or ``-m module args…`` in this process, as ``__main__``; returns 0.

    The switch is set in this process' environment, so that its children have it too. A script's own
    exit status arrives as its ``SystemExit``. Without a script it is 2, without the module
    1, as from Python itself.
    """
    if arguments and arguments[0] in COMMANDS and not _is_program(arguments[0]):
        return main(arguments)
    if arguments[:1] in (["-h"], ["--help"]):
        print(USAGE)
        return 0
    as_module = arguments[:1] == ["-m"]
    rest = arguments
    if as_module:
        rest = arguments[1:]
    if not rest or rest[0].startswith("-"):
        print(USAGE, file=sys.stderr)
        return 2
    path = rest[0]
    if not as_module and not _is_program(path):
        why = f"there is no script {path!r}. Check its name and the current folder"
        print(f"python -m amp_tf: {why}.", file=sys.stderr)
        return 2  # as Python does
    os.environ.update(switched_on(os.environ))
    _amp_tf_start.install()
    sys.argv[:] = rest
    if as_module:
        # What "python -m" itself calls: it also says which module is missing.
        runpy._run_module_as_main(path)  # type: ignore[attr-defined]
        return 0
    if not getattr(sys.flags, "safe_path", False):
        # "python script.py" puts the script's own folder where "python -m" put the current one.
        sys.path[0] = os.path.dirname(os.path.realpath(path))
    runpy.run_path(path, run_name="__main__")
    return 0


def _is_program(path: str) -> bool:
    """Tells whether Python runs a path: a file, or a folder that holds a ``__main__.py``."""
    if os.path.isdir(path):
        return os.path.exists(os.path.join(path, "__main__.py"))
    return os.path.exists(path)
