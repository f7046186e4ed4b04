"""``amp-tf doctor``: versions, devices, ways in, a real conversion on each device, and what is in the way."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

from amp_tf.cli.checks import DoctorReport, diagnose, ways

_STDERR = 2  #: its file descriptor; where it is closed, ``sys.stderr`` is None


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Adds the command to the parser of ``amp-tf``."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "doctor",
        help="say what this machine can do and what is in the way",
        description="Looks at this machine and this Python, converts and runs small graphs on each device in each "
        "precision, and says for each problem what to do. Status 0 without problems, 1 with, 2 without TensorFlow.",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print everything as one JSON object")
    form.add_argument("--quiet", action="store_true", help="print nothing: the status says it")
    parser.add_argument("--no-trials", action="store_true", help="convert and run no graphs")
    return parser


def run(args: argparse.Namespace) -> int:
    """Prints the report; the status is 0 without problems, 1 with, 2 where TensorFlow cannot be imported."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # hides TensorFlow's startup messages
    if args.quiet:
        os.dup2(os.open(os.devnull, os.O_WRONLY), _STDERR)  # TensorFlow's C++ part logs there, too
    try:
        report = diagnose(os.environ, with_trials=not args.no_trials)
    except ImportError as error:
        print(f"amp-tf doctor: {no_tensorflow(error)}", file=sys.stderr)
        return 2
    if args.json:
        print(json.dumps(report.to_dict(), indent=2))
    elif not args.quiet:
        print(render(report))
    return 0 if report.is_well else 1


def no_tensorflow(error: ImportError) -> str:
    """The message where TensorFlow cannot be imported."""
    return (
        f"TensorFlow cannot be imported from {sys.executable}: {error}. If it is missing, install it: "
        "pip install 'tensorflow-cpu>=2.16,<2.22', or 'tensorflow[and-cuda]>=2.16,<2.22' for a machine with an NVIDIA "
        "GPU."
    )


def render(report: DoctorReport) -> str:
    """The report as text."""
    facts = report.facts
    lines = ["Versions", *_pairs(facts.versions)]
    lines += ["", "Devices"]
    for device in facts.devices:
        fast = ", ".join(device["fast_in"]) or "nothing of 16 bit"
        lines.append(f"  {device['name']:16}{device['description']}; fast in {fast}")
    lines.append(f"  {'costs of ops':16}{facts.costs}")
    lines += ["", "Ways in", *_pairs(ways(facts))]
    if facts.trials:
        lines += ["", "Two matrix products, converted and run"]
        lines.append(f"  {'device':8}{'way':10}{'precision':11}{'converted':>9}{'ms':>9}{'speed-up':>10}{'error':>10}")
        for trial in facts.trials:
            numbers = f"{trial.converted:>9}{trial.milliseconds:>9.2f}{trial.speedup:>9.2f}x{trial.error:>10.1e}"
            lines.append(f"  {trial.device:8}{trial.way:10}{trial.precision:11}{numbers}  {trial.failure}".rstrip())
    for title, is_problem in (("Problems", True), ("Notes", False)):
        found = [finding for finding in report.findings if finding.is_problem is is_problem]
        if found:
            lines += ["", title]
            lines += [text for finding in found for text in (f"  - {finding.what}.", f"    {finding.fix}.")]
    if report.is_well:
        lines += ["", "No problems."]
    return "\n".join(lines)


def _pairs(values: dict[str, str]) -> list[str]:
    return [f"  {name:16}{value or 'not installed'}" for name, value in values.items()]
