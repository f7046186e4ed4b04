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


def run(args: argparse.Namespace) -> int:
    """Prints the comparison; of a script that was not compared see :func:`compare_script`."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # hides TensorFlow's startup messages
    config = check_settings(read_config(args), args.steps, args.nodes)
    if args.output is not None and args.float32_only:
        fix = "Leave --float32-only out to find what has to stay in float32"
        raise AmpError("ranges give no patterns", where="--output", fix=fix)
    request = CompareRequest(Path(), config, args.steps, args.nodes, args.float32_only)
    for path in {args.html, args.json, args.output} - {None, STDOUT}:
        files.check_writable(path)  # before minutes of work
    if args.inputs is None:
        if os.path.isdir(args.subject[0]) or is_keras_file(args.subject[0]):
            fix = "Name it with --inputs, or write -- in front of a script's command"
            raise AmpError("there is no file of inputs", where=args.subject[0], fix=fix)
        found = compare_script(args.subject, request)
        return found if isinstance(found, int) else _write(found["comparison"], found["text"], args)
    if len(args.subject) > 1:
        fix = "Write one model with --inputs, or a command after -- without it"
        raise AmpError("expected one model", where=" ".join(args.subject), fix=fix)
    _model, function = load_signature(args.subject[0], args.signature)
    arrays, size = (
        read_inputs(args.inputs, list(function.structured_input_signature[1])),
        args.batch_size,
    )
    batches = [dict(arrays)]
    if size is not None:
        if size < 1:
            raise AmpError(
                f"{size} is not a number of rows", where="--batch-size", fix="Write 1 or more"
            )
        counts = {len(array) if array.ndim else 0 for array in arrays.values()}
        if len(counts) != 1 or counts == {0}:
            raise AmpError(
                "the arrays have different numbers of rows",
                where="--batch-size",
                fix="Leave it out",
            )
        starts = range(0, max(counts), size)
        batches = [
            {name: array[start : start + size] for name, array in arrays.items()}
            for start in starts
        ]
    compared = request.compare(function, batches, hardware_for(request.config))
    compared = dataclasses.replace(
        compared, name=os.path.basename(os.path.normpath(args.subject[0]))
    )
    return _write(compared.to_dict(), compared.for_command(), args)


def _write(found: Mapping[str, Any], text: str, args: argparse.Namespace) -> int:
    data = json.dumps(found, indent=1)
    print(data if args.json == STDOUT else text)
    written = {} if args.json in (None, STDOUT) else {args.json: f"{data}\n"}
    if args.html is not None:
        written[args.html] = files.page([{**found, "text": text}])
    for path, content in written.items():
        with files.writing(path):
            files.write(path, content)
    if args.output is not None and (found["is_healthy"] or found["mends"]):
        write_patterns(args.output, found)
        reads = f"{variable_of('keep_float32')}={file_of_patterns(args.output)} reads it"
        print(f"{args.output} is written. {reads}.", file=sys.stderr)
    elif args.output is not None:
        print(
            f"{args.output} is not written: no patterns were found that suffice.", file=sys.stderr
        )
    return 0 if found["is_healthy"] else 1


NOT_COMPARED = 2  #: the status where there is no answer
_PATIENCE_S = 60  # a program that is ended may save something first, or ignore it
_GLANCE_S = 0.2


def compare_script(
    command: Sequence[str], request: CompareRequest, log: IO[bytes] | None = None
) -> dict[str, Any] | int:
    """Runs a command until the first training step in it is compared; ``log`` is where its output
    goes, if elsewhere.

    Returns the comparison's data as ``comparison`` and its text as ``text``. Where nothing was
    compared, that was printed to stderr, and it is the exit status: 2; as in a shell 126 or 127
    where the command cannot be started, and 128 and the signal's number where a signal ended it.
    """
    with tempfile.TemporaryDirectory(prefix="amp_tf_compare_") as folder:
        request = dataclasses.replace(request, folder=Path(folder))
        request.send()
        # Without amp_tf, whatever the script turns on: functions for XLA would be in 16 bit before
        # they are compared.
        environ = {**bootstrapped(os.environ), VARIABLE: folder, DISABLE_VAR: "1"}
        try:
            with started(command, environ, log) as program:
                deadline = math.inf
                while program.poll() is None and time.monotonic() < deadline:
                    time.sleep(_GLANCE_S)
                    if deadline == math.inf and "comparison" in (request.read_answer() or {}):
                        deadline = time.monotonic() + _PATIENCE_S
            status = program.returncode
        except OSError as error:
            print(
                f"amp-tf compare: {command[0]} cannot be started: {error.strerror}.",
                file=sys.stderr,
            )
            return 127 if isinstance(error, FileNotFoundError) else 126
        found = request.read_answer() or request.read_answer(is_of_forward=True)
        if found is not None and "comparison" in found:
            return found
        if found is None and status in (-signal.SIGINT, 128 + signal.SIGINT):
            print("amp-tf compare: interrupted", file=sys.stderr)
            return 128 + signal.SIGINT
        how = f"it ended with status {status}" if status else "it ended"
        if found:
            why = found["error"]
        elif not (request.folder / PYTHON).exists():
            why = (
                f"{how}, and started no Python in which amp_tf is installed. Install amp_tf in "
                "that environment."
            )
        elif not (request.folder / TENSORFLOW).exists():
            why = f"{how} before it imported TensorFlow. Write the command that trains after --."
        else:
            why = (
                f"{how} and ran nothing that can be compared: no fit, evaluate or predict, no "
                "tf.function with a "
                "matmul or convolution, and no run of a session that computes gradients. Code "
                "that runs eagerly stays "
                "in float32. To compare a model that a session only runs forward, save it, and "
                "write amp-tf compare "
                "MODEL --inputs FILE."
            )
        print(f"amp-tf compare: {' '.join(command)}: {why}", file=sys.stderr)
        return NOT_COMPARED


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
            os.killpg(program.pid, signal.SIGKILL) if is_behind else program.kill()
            program.wait()
        if before is not None:
            signal.signal(signal.SIGINT, before)
