"""``amp-tf tune -- python train.py``: finds what has to stay in float32, and writes the lock file."""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

from amp_tf.cli.options import add_config_options, hardware_for, read_config
from amp_tf.cli.tuned_script import PRINTED, TunedScript
from amp_tf.errors import AmpError, ConfigError
from amp_tf.lock import read
from amp_tf.oplists.targets import resolve_target
from amp_tf.reporting import files
from amp_tf.tools.tuning.result import Goal, Tuned, read_goal, write_lock
from amp_tf.tools.tuning.tuning import Journal, Tuning

NOT_FOUND, WRONG = 1, 2


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Adds the command to the parser of ``amp-tf``."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "tune",
        help="find the smallest part of a model that has to stay in float32",
        usage="amp-tf tune --metric NAME (--max-drop X | --max-rise X) [options] -- python train.py [argument ...]",
        description="Trains again and again, and writes to a lock file what has to stay in float32 so that a metric is "
        "as good as in float32. Interrupted, the same command goes on where it was. Status 0 where the lock file is "
        "written, 1 where nothing was found that suffices or the result is not verified, 2 where an option or the "
        "program is wrong.",
    )
    parser.set_defaults(error_status=WRONG)
    parser.add_argument("command", nargs="+", help="the command that trains, after --")
    parser.add_argument(
        "--metric",
        required=True,
        metavar="NAME",
        help="what is measured: a name in the history of fit, such as val_accuracy; module:function, called with the "
        "model after each fit, or without arguments as the program ends; or stdout:REGEX, whose group is the last such "
        "number that the program prints",
    )
    change = parser.add_mutually_exclusive_group(required=True)
    change.add_argument("--max-drop", type=float, metavar="X", help="by how much the metric may be smaller")
    change.add_argument("--max-rise", type=float, metavar="X", help="by how much a loss may be larger")
    parser.add_argument("--verify", metavar="NAME", help="a metric of data that nothing is chosen by, for the result")
    parser.add_argument("--max-runs", type=int, default=40, metavar="N", help="runs at most; by default 40")
    parser.add_argument("--for", dest="aim", default="accuracy", help=argparse.SUPPRESS)
    add_config_options(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    """Prints the result.

    Returns:
        0 where the lock file is written, 1 where it is not, or not verified.

    Raises:
        AmpError: an option or the program is wrong.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # hides TensorFlow's startup messages
    path = Path(args.lock or "amp.lock")
    files.check_writable(path)
    args.lock = None
    config = dataclasses.replace(read_config(args), lock=None)
    goal = _goal(args)
    before = read(str(path), may_be_missing=True)
    names = (goal.metric, *([args.verify] if args.verify else []))
    head = {
        "command": hashlib.sha256(json.dumps(args.command).encode()).hexdigest(),  # it may hold a secret
        "metrics": list(names),
        "most": goal.most,
        "settings": dataclasses.asdict(config),
    }
    journal = Journal(path.with_name(f"{path.name}.runs"), head)
    program = TunedScript(args.command, config, names, journal.folder)
    tuning = Tuning(
        program,
        goal,
        journal,
        most_runs=args.max_runs,
        tell=lambda line: print(f"amp-tf tune: {line}", file=sys.stderr, flush=True),
        held_out=args.verify or "",
        before=before,
        made={**resolve_target(config, hardware_for(config)).facts(), **_versions()},
    )
    try:
        tuned = tuning.for_accuracy()
    except OSError as error:
        raise AmpError(f"cannot be started ({error.strerror or error})", where=args.command[0]) from None
    except KeyboardInterrupt:
        kept = f"the runs so far are kept in {journal.folder}"
        print(f"amp-tf tune: {kept}; the same command goes on", file=sys.stderr)
        raise
    return _end(tuned, path, journal)


def _end(tuned: Tuned, path: Path, journal: Journal) -> int:
    print(tuned)
    if tuned.lock is None:
        return NOT_FOUND
    write_lock(tuned, path)
    journal.remove()
    print(f"{path} is written. It is read with AMP_TF_LOCK={path}; keep it beside the model.")
    return 0 if tuned.is_verified else NOT_FOUND


def _goal(args: argparse.Namespace) -> Goal:
    if args.aim != "accuracy":
        fix = (
            "AMP_TF_PRECISION=auto leaves in float32 what does not gain, and amp-tf calibrate measures what gains here"
        )
        raise ConfigError("tune is for accuracy alone", where="--for", fix=fix)
    for name in filter(None, (args.metric, args.verify)):
        if name.startswith(PRINTED):
            _check_printed(name.removeprefix(PRINTED))
    if args.target not in (None, "auto"):
        raise ConfigError("the runs are on this machine's devices", where="--target", fix="Leave it out")
    asked = {field: getattr(args, field) for field in ("max_drop", "max_rise", "max_runs")}
    return read_goal(args.metric, **asked, name=lambda field: f"--{field.replace('_', '-')}")


def _check_printed(pattern: str) -> None:
    fix = "Write one group for the number, such as stdout:'accuracy ([0-9.]+)'"
    try:
        groups = re.compile(pattern).groups
    except re.error as error:
        raise ConfigError(f"{pattern!r} is not a regular expression ({error})", where="--metric", fix=fix) from None
    if groups != 1:
        raise ConfigError(f"{pattern!r} has {groups} groups", where="--metric", fix=fix)


def _versions() -> dict[str, str]:
    from importlib import metadata

    for name in ("tensorflow", "tensorflow-cpu"):
        try:
            return {"tensorflow": metadata.version(name)}
        except metadata.PackageNotFoundError:
            continue
    return {}
