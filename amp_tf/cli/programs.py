"""Runs the user's program for ``amp-tf compare``, ``tune`` and ``time``."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from amp_tf.cli.run import Environment, bootstrapped
from amp_tf.config import (
    DISABLE_VAR,
    ENABLE_VAR,
    ENV_VARS,
    LOSS_SCALING_VAR,
    AmpConfig,
    variables_of,
)
from amp_tf.errors import AmpError
from amp_tf.reporting.files import AnyPath
from amp_tf.tools.starting import FOLDER, TOOL

_PATIENCE_S = 30.0  # a program that is ended may save something first, or ignore it
_GRACE_S = 1.0  # helpers of a program that has ended may clean up
_GLANCE_S = 0.1
_MOST_GLANCES = 20  # at processes that are killed: one that waits for a disk may stay
# A line of amp_tf's, as absl or the program's own logging prints it, perhaps behind text of the
# program's that has no end of line.
_OURS = re.compile(
    r"(?:^|(?:INFO|WARNING|ERROR)\b.*?\b|[IWEF]\d{4} .*?\] )amp_tf: .*", re.MULTILINE
)
_LAST_WORDS = 200  # characters of the output of a run that failed


def environment_of_run(
    config: AmpConfig, tool: str, folder: AnyPath, *, is_on: bool
) -> dict[str, str]:
    """Returns the environment for a command with amp_tf on by a configuration, or off.

    The environment decides, whatever the program itself turns on. No variable of this process' own
    settings stays: a default value of the configuration has none that would replace it. The
    variable of loss scaling stays, because it is no part of a configuration. Runs write neither
    reports nor graphs into the user's folders: they would be those of a dozen programs that were
    ended, and take time.

    Args:
        config: what to convert.
        tool: the module that watches the command from inside (:mod:`amp_tf.tools.starting`).
        folder: where that module leaves its answers.
        is_on: whether amp_tf is on.
    """
    ours = {row.name for row in ENV_VARS} - {LOSS_SCALING_VAR}
    others = {name: text for name, text in os.environ.items() if name not in ours}
    config = dataclasses.replace(config, log_path=None, report_path=None)
    environ = {**bootstrapped(others), **variables_of(config)}
    switch = DISABLE_VAR
    if is_on:
        switch = ENABLE_VAR
    return {**environ, TOOL: tool, FOLDER: str(folder), switch: "1"}


def run_program(
    command: Sequence[str],
    environ: Environment,
    output: Path | None,
    has_answered: Callable[[], object] = lambda: False,
    on_interrupt: Callable[[], None] = lambda: None,
) -> int:
    """Runs a command until it ends, or half a minute after it has answered; returns its status.

    ``has_answered`` is true once no other process of the command has anything to add.

    With an ``output``, the file where its output goes, it runs in the background. Without,
    ``on_interrupt`` is called where the user presses Ctrl-C, which the program gets, too. SIGTERM
    and SIGHUP end it by the SystemExit that :func:`amp_tf.cli.main.main` makes of them.

    Raises:
        AmpError: it cannot be started.
    """
    streams: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        if output is not None:
            log = stack.enter_context(output.open("wb"))
            streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            streams["start_new_session"] = True
        try:
            program = subprocess.Popen(command, env=environ, **streams)
        except OSError as error:
            fix = "Check its name and PATH"
            if os.path.exists(command[0]):
                fix = "Write the whole command, such as -- python train.py"
            what = f"cannot be started ({error.strerror})"
            raise AmpError(what, where=command[0], fix=fix) from None
        handler = signal.getsignal(signal.SIGINT)
        is_watching = output is None and handler != signal.SIG_IGN
        if is_watching:
            stack.callback(signal.signal, signal.SIGINT, handler)
        stack.callback(_end, program, environ[FOLDER], has_group=output is not None)
        # Only now: a program that is started while it is ignored ignores it, too.
        if is_watching:
            signal.signal(signal.SIGINT, lambda *_: on_interrupt())
        deadline = float("inf")
        while program.poll() is None and time.monotonic() < deadline:
            time.sleep(_GLANCE_S)
            if deadline == float("inf") and has_answered():
                deadline = time.monotonic() + _PATIENCE_S
    return int(program.returncode)


def _end(program: subprocess.Popen[bytes], folder: str, *, has_group: bool) -> None:
    """Ends a program and all that it started, which may have been left behind.

    Args:
        program: it may have ended.
        folder: what the environment of its processes names.
        has_group: whether they are a group of their own, except those that have left it.
    """
    until = time.monotonic() + _GRACE_S
    while program.poll() is not None and _find_started(folder) and time.monotonic() < until:
        time.sleep(_GLANCE_S)
    if has_group:
        with contextlib.suppress(OSError):  # nothing is left of it
            os.killpg(program.pid, signal.SIGKILL)
    if program.poll() is None:
        program.kill()
    program.wait()
    for _ in range(_MOST_GLANCES):
        found = _find_started(folder)
        if not found:
            return
        for process in found:
            with contextlib.suppress(OSError):  # it has ended by now
                os.kill(process, signal.SIGKILL)
        time.sleep(_GLANCE_S)


def _find_started(folder: str) -> list[int]:
    """Finds the processes whose environment names a folder; none where there is no ``/proc``."""
    mark = f"{FOLDER}={folder}\0".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            if mark in path.read_bytes():
                found.append(int(path.parent.name))
    return found


def name_status(status: int) -> str:
    """Names the status of a program for people, such as ``status 3`` or ``signal 9``."""
    if status < 0:
        return f"signal {-status}"
    return f"status {status}"


def without_our_lines(output: str) -> str:
    """Returns what a program printed itself, of its output with amp_tf's own lines."""
    return _OURS.sub("", output)


def how_it_ended(status: int, output: str) -> str:
    """Returns how a run of a command failed, with the last line that it printed itself."""
    last = "it printed nothing"
    for line in without_our_lines(output).splitlines():
        if line.strip():
            last = f"its last line is {line[-_LAST_WORDS:].strip()!r}"
    return f"it ended with {name_status(status)}; {last}"
