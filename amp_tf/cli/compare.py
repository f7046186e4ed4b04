"""``amp-tf compare``: where a script's training, or a SavedModel, goes wrong in 16 bit."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from amp_tf.cli.main import STDOUT
from amp_tf.cli.models import hardware_for, load_signature, read_config, read_inputs
from amp_tf.cli.run import bootstrapped
from amp_tf.config import DISABLE_VAR, variable_of
from amp_tf.errors import AmpError
from amp_tf.offline.reading import is_keras_file
from amp_tf.reporting import files
from amp_tf.tools.comparing import PYTHON, TENSORFLOW, VARIABLE
from amp_tf.tools.comparing.comparison import write_patterns
from amp_tf.tools.comparing.steps import check_settings
from amp_tf.tools.comparing.training import CompareRequest
from amp_tf.values import file_of_patterns

NOT_COMPARED = 2  #: the status where there is no answer
_NOT_STARTED = 126  # as in a shell
_NOT_FOUND = 127
_BY_SIGNAL = 128  # and the signal's number
_PATIENCE_S = 60  # a program that is ended may save something first, or ignore it
_GLANCE_S = 0.2


def run(args: argparse.Namespace) -> int:
    """Prints the comparison; of a script that was not compared see :func:`compare_script`."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # hides TensorFlow's startup messages
    config = check_settings(read_config(args), args.steps)
    request = CompareRequest(Path(), config, args.steps)
    for path in {args.json, args.output} - {None, STDOUT}:
        files.check_writable(path)  # before minutes of work
    if args.inputs is not None:
        return _compare_model(args, request)
    if os.path.isdir(args.subject[0]) or is_keras_file(args.subject[0]):
        fix = "Name it with --inputs, or write -- in front of a script's command"
        raise AmpError("there is no file of inputs", where=args.subject[0], fix=fix)
    found = compare_script(args.subject, request)
    if isinstance(found, int):
        return found
    return _write(found["comparison"], found["text"], args)


def _compare_model(args: argparse.Namespace, request: CompareRequest) -> int:
    """Compares a signature of a SavedModel."""
    if len(args.subject) > 1:
        fix = "Write one model with --inputs, or a command after -- without it"
        raise AmpError("expected one model", where=" ".join(args.subject), fix=fix)
    _model, function = load_signature(args.subject[0], args.signature)
    arrays = read_inputs(args.inputs, list(function.structured_input_signature[1]))
    batches = _batches(dict(arrays), args.batch_size)
    compared = request.compare(function, batches, hardware_for(request.config))
    name = os.path.basename(os.path.normpath(args.subject[0]))
    compared = dataclasses.replace(compared, name=name)
    return _write(compared.to_dict(), str(compared), args)


def _batches(arrays: dict[str, np.ndarray], size: int | None) -> list[dict[str, np.ndarray]]:
    """Divides arrays into batches of ``size`` rows; one batch without a size."""
    if size is None:
        return [arrays]
    where = "--batch-size"
    if size < 1:
        raise AmpError(f"{size} is not a number of rows", where=where, fix="Write 1 or more")
    counts = {len(array) if array.ndim else 0 for array in arrays.values()}
    if len(counts) != 1 or counts == {0}:
        what = "the arrays have different numbers of rows"
        raise AmpError(what, where=where, fix="Leave it out")
    batches = []
    for start in range(0, max(counts), size):
        rows = slice(start, start + size)
        batches.append({name: array[rows] for name, array in arrays.items()})
    return batches


def _write(found: Mapping[str, Any], text: str, args: argparse.Namespace) -> int:
    """Prints and writes what was found; returns the exit status."""
    data = json.dumps(found, indent=1)
    print(data if args.json == STDOUT else text)
    if args.json not in (None, STDOUT):
        with files.writing(args.json):
            files.write(args.json, f"{data}\n")
    if args.output is not None:
        print(_write_patterns(found, args.output), file=sys.stderr)
    return 0 if found["is_healthy"] else 1


def _write_patterns(found: Mapping[str, Any], path: str) -> str:
    """Writes the patterns if there is a setting to use; returns a sentence about it."""
    if found["headline"]:
        return f"{path} is not written: {found['headline']}"
    if not (found["is_healthy"] or found["mends"]):
        return f"{path} is not written: no patterns were found that suffice."
    write_patterns(path, found)
    reads = f"{variable_of('keep_float32')}={file_of_patterns(path)} reads it"
    return f"{path} is written. {reads}."


def compare_script(
    command: Sequence[str], request: CompareRequest, log: IO[bytes] | None = None
) -> dict[str, Any] | int:
    """Runs a command until the first training step in it is compared; ``log`` is where its output
    goes, if elsewhere.

    Returns the comparison's data as ``comparison`` and its text as ``text``. If nothing was
    compared, it prints why to stderr and returns the exit status: 2, or as in a shell 126 or 127
    where the command cannot be started, or 128 and the signal's number where a signal ended it.
    """
    with tempfile.TemporaryDirectory(prefix="amp_tf_compare_") as folder:
        request = dataclasses.replace(request, folder=Path(folder))
        request.send()
        # Without amp_tf, whatever the script turns on: functions for XLA would be in 16 bit before
        # they are compared.
        environ = {**bootstrapped(os.environ), VARIABLE: folder, DISABLE_VAR: "1"}
        try:
            with started(command, environ, log) as program:
                _await_answer(program, request)
        except OSError as error:
            why = f"{command[0]} cannot be started: {error.strerror}."
            print(f"amp-tf compare: {why}", file=sys.stderr)
            return _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_STARTED
        found = request.read_answer() or request.read_answer(is_of_forward=True)
        if found is not None and "comparison" in found:
            return found
        interrupted = _BY_SIGNAL + signal.SIGINT
        if found is None and program.returncode in (-signal.SIGINT, interrupted):
            print("amp-tf compare: interrupted", file=sys.stderr)
            return interrupted
        why = found["error"] if found else _why_nothing(program.returncode, request.folder)
        print(f"amp-tf compare: {' '.join(command)}: {why}", file=sys.stderr)
        return NOT_COMPARED


def _await_answer(program: subprocess.Popen[bytes], request: CompareRequest) -> None:
    """Waits until a program ends, or a minute after it has answered."""
    deadline = math.inf
    while program.poll() is None and time.monotonic() < deadline:
        time.sleep(_GLANCE_S)
        if deadline == math.inf and "comparison" in (request.read_answer() or {}):
            deadline = time.monotonic() + _PATIENCE_S


def _why_nothing(status: int, folder: Path) -> str:
    """Says why a program that ended gave no answer."""
    how = "it ended"
    if status:
        how = f"it ended with status {status}"
    if not (folder / PYTHON).exists():
        return (
            f"{how}, and started no Python in which amp_tf is installed. Install amp_tf in that "
            "environment."
        )
    if not (folder / TENSORFLOW).exists():
        return f"{how} before it imported TensorFlow. Write the command that trains after --."
    return (
        f"{how} and ran nothing that can be compared: no fit, evaluate or predict, no tf.function "
        "with a matmul or convolution, and no run of a session that computes gradients. Code that "
        "runs eagerly stays in float32. To compare a model that a session only runs forward, save "
        "it, and write amp-tf compare MODEL --inputs FILE."
    )


@contextlib.contextmanager
def started(
    command: Sequence[str], environ: Mapping[str, str], log: IO[bytes] | None
) -> Iterator[subprocess.Popen[bytes]]:
    """Starts a command that ends with this process, and at the latest with the block; an OSError
    where it cannot be started.

    With a ``log``, where its output goes, it runs in the background, and all that it started ends
    with it. Without, its output goes where that of this process goes, and Ctrl-C of the terminal is
    left to the program. SIGTERM and SIGHUP end the block by the SystemExit that
    :func:`amp_tf.cli.main.main` makes of them.
    """
    before: Any = None
    is_behind = log is not None
    nothing = subprocess.DEVNULL if is_behind else None
    program = None
    try:
        program = subprocess.Popen(
            command, env=environ, stdin=nothing, stdout=log, stderr=log, start_new_session=is_behind
        )
        if not is_behind:  # only now: the program would begin with it ignored, too
            before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        yield program
    finally:
        if program is not None and program.poll() is None:
            if is_behind:
                os.killpg(program.pid, signal.SIGKILL)
            else:
                program.kill()
            program.wait()
        if before is not None:
            signal.signal(signal.SIGINT, before)
