"""``amp-tf compare -- python train.py``: starts the command with the comparison inside, and waits for the answer."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from amp_tf.cli.run import bootstrapped
from amp_tf.config import DISABLE_VAR, AmpConfig
from amp_tf.errors import ConfigError
from amp_tf.tools.comparing.start import PYTHON, TENSORFLOW, VARIABLE
from amp_tf.tools.comparing.training import CompareRequest
from amp_tf.values import check_pattern

NOT_COMPARED = 2  #: the status where there is no answer
_PATIENCE_S = 60  # a program that is ended may save something first, or ignore it
_GLANCE_S = 0.2


def compare_script(
    command: Sequence[str], config: AmpConfig, *, log: IO[bytes] | None = None, **asked: Any
) -> dict[str, Any] | int:
    """Runs a command until the first training step in it is compared.

    Args:
        command: the program and its arguments.
        config: what to convert.
        log: where the program's output goes; by default where that of this process goes.
        **asked: the other fields of an :class:`CompareRequest`.

    Returns:
        The comparison's data as ``comparison`` and its text as ``text``. Where nothing was compared, that was printed
        to stderr, and it is the exit status: 2; as in a shell 126 or 127 where the command cannot be started, and 128
        and the signal's number where a signal ended it.

    Raises:
        ConfigError: ``steps`` or ``nodes`` mean nothing.
    """
    if asked["steps"] < 1:
        raise ConfigError(f"{asked['steps']} is not a number of batches", where="--steps", fix="Write 1 or more")
    if asked["nodes"] is not None:
        check_pattern(asked["nodes"], where="--nodes")
    with tempfile.TemporaryDirectory(prefix="amp_tf_compare_") as folder:
        request = CompareRequest(Path(folder), config, **asked)
        request.send()
        # Without amp_tf, whatever the script turns on: functions for XLA would be in 16 bit before they are compared.
        environ = {**bootstrapped(os.environ), VARIABLE: folder, DISABLE_VAR: "1"}
        try:
            with started(command, environ, log) as program:
                _wait(program, request)
            status = program.returncode
        except OSError as error:
            print(f"amp-tf compare: {command[0]} cannot be started: {error.strerror}.", file=sys.stderr)
            return 127 if isinstance(error, FileNotFoundError) else 126
        found = request.read_answer()
        if found is not None and "comparison" in found:
            return found
        if found is None and status in (-signal.SIGINT, 128 + signal.SIGINT):
            print("amp-tf compare: interrupted", file=sys.stderr)
            return 128 + signal.SIGINT
        why = found["error"] if found else _why_nothing(request, status)
        print(f"amp-tf compare: {' '.join(command)}: {why}", file=sys.stderr)
        return NOT_COMPARED


def _wait(program: subprocess.Popen[bytes], request: CompareRequest) -> None:
    """Waits for the program to end, which it does soon after the answer is there."""
    deadline = None
    while program.poll() is None:
        time.sleep(_GLANCE_S)
        found = request.read_answer() if deadline is None else None
        if found is not None and "comparison" in found:
            deadline = time.monotonic() + _PATIENCE_S
        if deadline is not None and time.monotonic() > deadline:
            break


@contextlib.contextmanager
def started(
    command: Sequence[str], environ: Mapping[str, str], log: IO[bytes] | None
) -> Iterator[subprocess.Popen[bytes]]:
    """Starts a command that ends with this process, and at the latest with the block.

    Args:
        command: the program and its arguments.
        environ: its environment.
        log: where its output goes; with one, it runs in the background, and all that it started ends with it. ``None``
            for where the output of this process goes; then Ctrl-C of the terminal is left to the program.

    Raises:
        OSError: it cannot be started.
    """

    def end(number: int, _: Any) -> None:
        raise SystemExit(128 + number)

    ending = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, end) for number in ending}
    is_behind = log is not None
    nothing = subprocess.DEVNULL if is_behind else None
    program = None
    try:
        program = subprocess.Popen(
            command, env=environ, stdin=nothing, stdout=log, stderr=log, start_new_session=is_behind
        )
        if not is_behind:  # only now: the program would begin with it ignored, too
            before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.SIG_IGN)
        yield program
    finally:
        if program is not None and program.poll() is None:
            os.killpg(program.pid, signal.SIGKILL) if is_behind else program.kill()
            program.wait()
        for number, handler in before.items():
            signal.signal(number, handler)


def _why_nothing(request: CompareRequest, status: int) -> str:
    how = f"it ended with status {status}" if status else "it ended"
    if not request.is_marked(PYTHON):
        return f"{how}, and started no Python in which amp_tf is installed. Install amp_tf in that environment."
    if not request.is_marked(TENSORFLOW):
        return f"{how} before it imported TensorFlow. Write the command that trains after --."
    return (
        f"{how} and trained nothing that amp_tf would convert: it called no fit, no tf.function that asks for "
        "gradients, and no run of a session that needs gradients. A loop without tf.function runs in float32."
    )
