"""Runs programs with amp_tf on: any command (``amp-tf run``), or a script in this process (``python
-m amp_tf``).

``amp-tf run`` is for environments whose .pth files are not read (``pip install -t``), and for
launchers with workers. The command replaces this process, with the switch set and a folder in front
of ``PYTHONPATH`` whose sitecustomize.py does what amp_tf.pth does.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import runpy
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import _amp_tf_start
from amp_tf.cli.main import COMMANDS, main
from amp_tf.config import (
    DISABLE_VAR,
    ENABLE_VAR,
    SWITCH_VARS,
    AmpConfig,
    Switches,
    variables_of,
)
from amp_tf.errors import ConfigError

_BOOTSTRAP = Path(__file__).resolve().parent / "bootstrap"


def run(args: argparse.Namespace) -> int:
    """Replaces this process by the command; the status is a shell's where it cannot be run, 2
    without one.
    """
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        print("amp-tf run: no command. Write: amp-tf run -- python train.py", file=sys.stderr)
        return 2
    environ = environment(os.environ)
    if args.precision:
        environ["AMP_TF_PRECISION"] = args.precision
    try:
        print(end="", flush=True)
        signal.signal(
            signal.SIGPIPE, signal.SIG_DFL
        )  # Python ignores SIGPIPE, and the command would inherit that
        os.execvpe(command[0], command, environ)
    except OSError as error:
        print(
            f"amp-tf run: {command[0]} cannot be started: {error.strerror}. Check its name and "
            "PATH.",
            file=sys.stderr,
        )
        return 127 if isinstance(error, FileNotFoundError) else 126  # the exit statuses of a shell


def switched_on(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables to add to an environment so that amp_tf is on.

    Empty if a part of it is on already, or if a variable has an invalid value, which the program
    reports when it imports TensorFlow. ``AMP_TF_DISABLE=1`` wins in any case.
    """
    try:
        already = Switches.from_env(environ).any
    except ConfigError:
        already = True
    return {} if already else {ENABLE_VAR: "1"}


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for the command: the switch, and what :func:`bootstrapped` adds.

    Idempotent.
    """
    return bootstrapped({**environ, **switched_on(environ)})


def bootstrapped(environ: Mapping[str, str]) -> dict[str, str]:
    """An environment with the bootstrap folder in front of ``PYTHONPATH``. Idempotent."""
    given = environ.get("PYTHONPATH", "")
    # An empty entry is the current folder, but an empty variable has no entry.
    paths = [path for path in given.split(os.pathsep) if path != str(_BOOTSTRAP)] if given else []
    return {**environ, "PYTHONPATH": os.pathsep.join([str(_BOOTSTRAP), *paths])}


def environment_of_run(config: AmpConfig, *, is_on: bool) -> dict[str, str]:
    """Returns the environment for a command that runs with amp_tf on by a configuration, or off,
    whatever the program itself turns on.
    """
    ours = (ENABLE_VAR, DISABLE_VAR, *SWITCH_VARS[:2])
    others = {name: text for name, text in os.environ.items() if name not in ours}
    environ = {**bootstrapped(others), **variables_of(config)}
    environ[ENABLE_VAR if is_on else DISABLE_VAR] = "1"
    return environ


_OURS = "INFO:absl:amp_tf"
_LAST_WORDS = 200  # characters of the output of a run that failed


def how_it_ended(status: int, output: str) -> str:
    """Returns how a run of a command failed, with the last line that it printed itself."""
    how = f"signal {-status}" if status < 0 else f"status {status}"
    last = "it printed nothing"
    for line in output.splitlines():
        if line.strip() and not line.startswith(_OURS):
            last = line[-_LAST_WORDS:].strip()
    return f"it ended with {how}: {last}"


USAGE = (
    "usage: python -m amp_tf [-m module | script.py] [arguments of the script ...]\n"
    f"       python -m amp_tf {'|'.join(COMMANDS)} [arguments, as for amp-tf]"
)


def run_script(arguments: list[str]) -> int:
    """Runs ``script.py args…`` or ``-m module args…`` in this process, as ``__main__``; returns 0.

    The switch is set in this process' environment, so that its children have it too. A script's own
    exit status arrives as its ``SystemExit``. Where there is nothing to run, it is Python's own: 2
    without a script, 1 without such a module.
    """
    if arguments and arguments[0] in COMMANDS and not os.path.exists(arguments[0]):
        return main(arguments)
    if arguments[:1] in (["-h"], ["--help"]):
        print(USAGE)
        return 0
    as_module = arguments[:1] == ["-m"]
    rest = arguments[1:] if as_module else arguments
    if not rest or rest[0].startswith("-"):
        print(USAGE, file=sys.stderr)
        return 2
    path, home, why, status = rest[0], rest[0].partition(".")[0], "", 1
    if as_module:
        if (
            not home or importlib.util.find_spec(home) is None
        ):  # packages are found by importing them
            fix = f"Check its name, and that it is installed for {sys.executable}."
            why = f"there is no module {home or path!r}. {fix}"
    elif not os.path.exists(path):
        why, status = f"there is no file {path!r}. Check its name and the current folder.", 2
    elif os.path.isdir(path) and not os.path.exists(os.path.join(path, "__main__.py")):
        why = f"the folder {path!r} has no __main__.py. Name a script."
    if why:
        print(f"python -m amp_tf: {why}", file=sys.stderr)
        return status
    os.environ.update(switched_on(os.environ))
    _amp_tf_start.install()
    sys.argv[:] = rest
    if as_module:
        runpy.run_module(path, run_name="__main__", alter_sys=True)
        return 0
    if not getattr(sys.flags, "safe_path", False):
        # Where "python -m" put the current folder, "python script.py" puts the script's own.
        sys.path[0] = os.path.dirname(os.path.realpath(path))
    runpy.run_path(path, run_name="__main__")
    return 0
