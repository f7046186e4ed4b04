"""``amp-tf compare``: where a script's training, or a SavedModel, goes wrong in 16 bit."""

from __future__ import annotations

import argparse
import dataclasses
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from amp_tf.cli.main import BY_SIGNAL
from amp_tf.cli.options import load_signature, read_config, read_inputs
from amp_tf.cli.programs import environment_of_run, name_status, run_program
from amp_tf.config import AmpConfig
from amp_tf.errors import AmpError
from amp_tf.offline.reading import is_keras_file
from amp_tf.oplists.hardware import Hardware
from amp_tf.reporting import files
from amp_tf.tools import keeping
from amp_tf.tools.comparing.comparison import Comparison
from amp_tf.tools.comparing.steps import check_settings
from amp_tf.tools.comparing.training import CompareRequest
from amp_tf.tools.starting import PYTHON, TENSORFLOW


def run(args: argparse.Namespace) -> int:
    """Prints the comparison.

    Returns 0 if it is healthy, 1 if not, and 2 if nothing was compared.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # hides TensorFlow's startup messages
    config = check_settings(read_config(args), args.steps)
    request = CompareRequest(Path(), config, args.steps)
    if args.output is not None:
        files.check_writable(args.output)  # before minutes of work
    if args.inputs is not None:
        return _compare_model(args, request)
    if os.path.isdir(args.subject[0]) or is_keras_file(args.subject[0]):
        raise AmpError(
            "there is no file of inputs",
            where=args.subject[0],
            fix="Name it with --inputs, or write -- in front of a script's command",
        )
    return _tell(compare_script(args.subject, request), args.output)


def _compare_model(args: argparse.Namespace, request: CompareRequest) -> int:
    """Compares a signature of a SavedModel."""
    if len(args.subject) > 1:
        raise AmpError(
            "expected one model",
            where=" ".join(args.subject),
            fix="Write one model with --inputs, or a command after -- without it",
        )
    _model, function = load_signature(args.subject[0], args.signature)
    inputs = read_inputs(args.inputs, function)
    compared = request.compare(function, [inputs], Hardware.detect_cpu())
    name = os.path.basename(os.path.normpath(args.subject[0]))
    return _tell(dataclasses.replace(compared, name=name), args.output)


def _tell(comparison: Comparison, output: str | None) -> int:
    """Prints a comparison, and writes the file of patterns; returns the exit status."""
    print(comparison)
    if output is not None:
        print(_write_patterns(comparison, output), file=sys.stderr)
    return int(not comparison.is_healthy)


def _write_patterns(comparison: Comparison, path: str) -> str:
    """Writes the patterns if there is a setting to use; returns a sentence about it."""
    if comparison.headline:
        return f"{path} is not written: {comparison.headline}"
    if not (comparison.is_healthy or comparison.has_fix):
        return f"{path} is not written: no patterns were found that suffice."
    comparison.write(path)
    return f"{keeping.written_message(path)}."


def compare_script(
    command: Sequence[str], request: CompareRequest, output: Path | None = None
) -> Comparison:
    """Runs a command until the first training step in it is compared.

    ``output`` is the file where its output goes, if elsewhere.

    Raises:
        AmpError: nothing was compared.
        KeyboardInterrupt: the program was interrupted.
    """
    with tempfile.TemporaryDirectory(prefix="amp_tf_compare_") as folder:
        request = dataclasses.replace(request, folder=Path(folder))
        request.send()
        # Without amp_tf, whatever the script turns on: functions for XLA would be in 16 bit before
        # they are compared.
        environ = environment_of_run(AmpConfig(), "comparing.training", folder, is_on=False)
        status = run_program(
            command, environ, output, lambda: request.is_answered, request.interrupt
        )
        answer = request.read_answer()
        if isinstance(answer, Comparison):
            return _with_failure(answer, request, status)
        interrupted = (-signal.SIGINT, BY_SIGNAL + signal.SIGINT)
        if not answer and (request.is_interrupted or status in interrupted):
            raise KeyboardInterrupt
        why = answer or _why_nothing(request, status)
        raise AmpError(why.removesuffix("."), where=" ".join(command))


def _with_failure(comparison: Comparison, request: CompareRequest, status: int) -> Comparison:
    """Returns a comparison with a note where the program itself failed."""
    # The program ends by itself, or is killed as it goes on; a comparison of training ends it.
    usual = [0, -signal.SIGKILL]
    if request.is_answered:
        usual.append(int(not comparison.is_healthy))
    failure = ""
    if crash := request.read_crash():
        failure = f"the program itself failed: {crash}"
    elif status not in usual and not request.is_interrupted:
        failure = f"the program itself ended with {name_status(status)}"
    if not failure:
        return comparison
    return dataclasses.replace(comparison, notes=(*comparison.notes, failure))


def _why_nothing(request: CompareRequest, status: int) -> str:
    """Says why a program that ended gave no answer."""
    if crash := request.read_crash():
        return f"it failed before its step was compared: {crash}"
    how = "it ended"
    if status:
        how = f"it ended with {name_status(status)}"
    if request.is_claimed:
        how = f"{how} while its step was compared"
        if status in (-signal.SIGKILL, BY_SIGNAL + signal.SIGKILL):
            how = f"{how}, as where memory is short. Comparing needs more than training: try "
            return f"{how}smaller batches."
        return f"{how}."
    if not (request.folder / PYTHON).exists():
        return (
            f"{how}, and started no Python in which amp_tf is installed. Install amp_tf in that "
            "environment."
        )
    if not (request.folder / TENSORFLOW).exists():
        return f"{how} before it imported TensorFlow. Write the command that trains after --."
    return (
        f"{how} and ran nothing that can be compared: no fit, evaluate or predict, no tf.function "
        "with a matmul or convolution, and no run of a session that computes gradients. Code that "
        "runs eagerly stays in float32. To compare a model that a session only runs forward, save "
        "it, and write amp-tf compare MODEL --inputs FILE."
    )
