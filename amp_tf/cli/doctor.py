"""``amp-tf doctor``: what this machine can do, what is in the way, and what to do about it.

A conversion that ran counts more than a table. A TensorFlow for GPUs that sees none is a note, not
a problem: plain ``tensorflow`` is built with CUDA on CPU servers too.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import os
import sys
from collections.abc import Iterator, Mapping, Sequence

from amp_tf.cli.machine import MachineFacts, gather, is_off
from amp_tf.config import (
    DISABLE_VAR,
    ENABLE_VAR,
    AmpConfig,
    Switches,
    find_unknown_variables,
)
from amp_tf.errors import ConfigError
from amp_tf.hooks.summary import ON_GPU
from amp_tf.oplists.targets import resolve_target

_STDERR = 2  #: its file descriptor; where it is closed, ``sys.stderr`` is None
_OLDEST = 16  #: the minor version of the oldest TensorFlow 2 that amp_tf is tested with
_NEWEST = 21  #: that of the newest
_VERSIONS = f">=2.{_OLDEST},<2.{_NEWEST + 1}"  #: as pip takes them
MATH_MODE_VARS = (
    "TF_SET_ONEDNN_FPMATH_MODE",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "DNNL_DEFAULT_FPMATH_MODE",
)


def run(args: argparse.Namespace) -> int:
    """Prints the report.

    Returns 0 without problems, 1 with problems, and 2 if TensorFlow cannot be imported.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # hides TensorFlow's startup messages
    if args.quiet:
        os.dup2(os.open(os.devnull, os.O_WRONLY), _STDERR)  # TensorFlow's C++ part logs there, too
    try:
        facts = gather(os.environ, with_trials=not args.no_trials)
    except ImportError as error:
        print(f"amp-tf doctor: {no_tensorflow(error)}", file=sys.stderr)
        return 2
    issues = list(find_issues(facts))
    is_well = not any(issue.is_problem for issue in issues)  # notes do not count
    if not args.quiet:
        print(render(facts, issues))
    return int(not is_well)


def no_tensorflow(error: ImportError) -> str:
    """Returns the message where TensorFlow cannot be imported."""
    return (
        f"TensorFlow cannot be imported from {sys.executable}: {error}. If it is missing, install "
        f"it: pip install 'tensorflow-cpu{_VERSIONS}', or 'tensorflow[and-cuda]{_VERSIONS}' for a "
        "machine with an NVIDIA GPU."
    )


_TRIALS = (
    "Two matrix products, run in each precision (converted: nodes; error: the largest, relative to "
    "float32's largest value)"
)


def render(facts: MachineFacts, issues: Sequence[Issue]) -> str:
    """Renders the report as text."""
    lines = ["Versions", *_pairs(facts.versions), "", "Devices"]
    for device in facts.devices:
        fast = ", ".join(device.fast_in) or "float32 alone"
        lines.append(f"  {device.name:16}{device.description}; fast in {fast}")
    lines.append(f"  {'costs of ops':16}{facts.hardware.costs.source}")
    lines += ["", "What turns amp_tf on", *_pairs(facts.ways)]
    if facts.trials:
        lines += ["", _TRIALS]
        row = "  {:8}{:10}{:11}{:>9}{:>10}  {}"
        lines.append(row.format("device", "way", "precision", "converted", "error", "").rstrip())
        for trial in facts.trials:
            figures = (trial.converted, f"{trial.error:.1e}", trial.failure)
            line = row.format(trial.device, trial.way, trial.precision, *figures)
            lines.append(line.rstrip())
    for title, is_problem in (("Problems", True), ("Notes", False)):
        of_kind = [issue for issue in issues if issue.is_problem is is_problem]
        if of_kind:
            lines += ["", title]
        for issue in of_kind:
            lines += [f"  - {issue.what}.", f"    {issue.fix}."]
    if not any(issue.is_problem for issue in issues):
        lines += ["", "No problems."]
    return "\n".join(lines)


def _pairs(values: Mapping[str, str]) -> list[str]:
    """Renders names with their values, a line each."""
    return [f"  {name:16}{value or 'not installed'}" for name, value in values.items()]


@dataclasses.dataclass(frozen=True)
class Issue:
    """A problem, or a note, that the user should know of."""

    is_problem: bool  #: whether it keeps amp_tf from working; else it is a note
    what: str  #: what was found
    fix: str  #: what to do


_problem = functools.partial(Issue, True)
_note = functools.partial(Issue, False)


def find_issues(facts: MachineFacts) -> Iterator[Issue]:
    """Yields each thing that can be in the way, with what to do about it."""
    yield from _issues_of_settings(facts.environ)
    yield from _issues_of_installation(facts)
    yield from _issues_of_keras(facts)
    yield from _issues_of_devices(facts)
    failures = []
    for trial in facts.trials:
        if trial.failure:
            failures.append(f"{trial.device}, {trial.way}, {trial.precision}: {trial.failure}")
    if failures:
        yield _problem(
            "; ".join(failures),
            "If no finding above explains it, please report this with the output of amp-tf doctor",
        )


def _issues_of_installation(facts: MachineFacts) -> Iterator[Issue]:
    version = facts.versions["tensorflow"]
    major, minor, *_ = version.split(".")
    if major != "2" or not _OLDEST <= int(minor) <= _NEWEST:
        installed = "tensorflow"
        if facts.distributions:
            installed = facts.distributions[0]
        released = installed.replace("tf-nightly", "tensorflow")
        fix = f"pip install '{released}{_VERSIONS}'"
        if released != installed:
            fix = f"pip uninstall {installed}, then {fix}"
        yield _problem(
            f"TensorFlow {version} is outside of what amp_tf is tested with, 2.{_OLDEST} to "
            f"2.{_NEWEST}",
            fix,
        )
    if len(facts.distributions) > 1:
        yield _problem(
            f"{' and '.join(facts.distributions)} are installed over each other",
            f"pip uninstall {' '.join(facts.distributions)}, then install one of them",
        )
    if facts.is_without_pth:
        yield _note(
            f"amp_tf is installed without amp_tf.pth, so {ENABLE_VAR}=1 alone does nothing",
            "Write amp-tf run -- python script.py, or amp_tf.enable() in the script",
        )
    elif not facts.autostart:
        yield _problem(
            f"{sys.executable} does not read amp_tf.pth, so {ENABLE_VAR}=1 alone does nothing",
            "Install amp-tf with pip into this environment, without -t, or write amp-tf run -- "
            "python script.py",
        )
    if facts.plugins:
        yield _problem(
            "another graph optimizer plugin is loaded, and TensorFlow takes only one: "
            f"{', '.join(facts.plugins)}",
            "Uninstall that plugin, or unset TF_PLUGGABLE_DEVICE_LIBRARY_PATH; XLA functions are "
            "converted anyway",
        )


def _issues_of_keras(facts: MachineFacts) -> Iterator[Issue]:
    keras = facts.keras
    if keras.error and facts.versions["keras"]:
        yield _problem(f"Keras cannot be imported: {keras.error}", "Check KERAS_BACKEND")
    elif keras.backend not in ("", "tensorflow"):
        yield _problem(
            f"Keras computes with {keras.backend}, which amp_tf does not reach",
            "Set KERAS_BACKEND=tensorflow, or change backend in ~/.keras/keras.json",
        )
    if keras.policy not in ("", "float32"):
        yield _note(
            f"Keras' dtype policy is {keras.policy} by default: layers cast by themselves, amp_tf "
            "converts what is left",
            'Take one of the two. For amp_tf: "floatx": "float32" in ~/.keras/keras.json, no '
            "keras.config.set_dtype_policy",
        )


def _issues_of_devices(facts: MachineFacts) -> Iterator[Issue]:
    why = resolve_target(AmpConfig(), facts.hardware).why_none
    if why:
        yield _note(
            f"precision auto converts nothing here: {why}",
            "AMP_TF_PRECISION=bfloat16 converts anyway, for instance to look at accuracy, but it "
            f"is slower; to see the accuracy of training on a GPU: {ON_GPU}",
        )
    if facts.is_without_gpu:
        yield _note(
            "this TensorFlow is built for NVIDIA GPUs and sees none: it computes on the CPU",
            "If there is one, see that nvidia-smi lists it (else install the driver; a container "
            "needs --gpus all), that its libraries are installed (pip install "
            "'tensorflow[and-cuda]') and that CUDA_VISIBLE_DEVICES is unset",
        )
    with_tf32 = [device.name for device in facts.devices if device.has_tf32]
    if with_tf32:
        yield _note(
            f"{', '.join(with_tf32)}: products that stay in float32 are computed in TF32, which "
            "rounds as float16 does",
            "Where they must be exact, write "
            "tf.config.experimental.enable_tensor_float_32_execution(False); amp-tf compare does "
            "so meanwhile",
        )
    modes = []
    for name in MATH_MODE_VARS:
        if facts.environ.get(name, "STRICT").upper() != "STRICT":
            modes.append(name)
    if modes:
        yield _note(
            f"{' and '.join(modes)}: where the CPU has AMX (or Arm's bf16), oneDNN rounds the "
            "operands of all float32 products of the process to 16 bit, also of those that amp_tf "
            "keeps in float32",
            "Unset it while amp_tf is on, or the report says float32 of what is rounded",
        )


def _issues_of_settings(environ: Mapping[str, str]) -> Iterator[Issue]:
    # It needs absl: where TensorFlow is missing, that may be missing too.
    from amp_tf.oplists import op_names

    unknown = find_unknown_variables(environ)
    if unknown:
        names = ", ".join(name for name, _ in unknown)
        fix = "docs/variables.md lists the variables"
        closest = dict.fromkeys(close for _, close in unknown if close)
        if closest:
            fix = f"Write {', '.join(closest)}"
        yield _note(f"not variables of amp_tf, so they change nothing: {names}", fix)
    try:
        config = AmpConfig.from_env(environ)
        Switches.from_env(environ)
    except ConfigError as error:
        what = f"{error.where}: {error.what}: everything stays in float32"
        yield _problem(what, error.fix)
        return
    entries = op_names.find_unknown(config)
    if entries:
        guesses = "".join(dict.fromkeys(entry.guess for entry in entries))
        yield _note(
            "; ".join(f"{entry.where}: {entry.what}" for entry in entries),
            f"{guesses}An op of a library of your own counts once the program has loaded it",
        )
    if is_off(environ):
        what = f"{DISABLE_VAR} is set: amp_tf is off whatever else is set, and is not tried here"
        yield _note(what, f"Unset {DISABLE_VAR}")
