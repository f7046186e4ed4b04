"""The ``amp-tf`` command: the table of its subcommands and their options, and what their errors print.

A subcommand's module is imported when it runs, so that help costs no more than Python's own start.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import os
import re
import signal
import sys
import textwrap
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import amp_tf
from amp_tf.config import GOALS, LEVELS, LIST_NAMES, PRECISIONS, TARGETS, USE_COMPARE, WEIGHTS
from amp_tf.errors import AmpError, ConfigError
from amp_tf.values import dtype_name

_KILLED = 128  # what a shell adds to the number of the signal that ended a command
DEFAULT_SIGNATURE = "serving_default"
STDOUT = "-"  #: as the name of a file


@dataclasses.dataclass(frozen=True)
class Command:
    """A subcommand."""

    home: str  #: its module in this package, and the function that gets its arguments and returns the exit status
    help: str  #: for people
    description: str
    #: one a line: its name and what it takes, then after two blanks its help, which may go on below. A name without
    #: dashes is an argument; an option that takes nothing is a flag
    options: str
    #: what ``add_argument`` is given beside that, by name
    more: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    usage: str | None = None  #: where argparse's own is not as good
    one_of: tuple[str, ...] = ()  #: the options of which one is given at most
    is_one_needed: bool = False  #: whether one of these must be
    has_settings: bool = False  #: whether settings of :class:`~amp_tf.config.AmpConfig` are options, too
    error_status: int = 1  #: the exit status of an error


_WHAT = "a SavedModel's folder, a Keras file (.keras, .h5), or a GraphDef file (.pb, .pbtxt)"
_PRECISION: Mapping[str, Any] = {"type": dtype_name, "choices": PRECISIONS}
_PATTERNS = "layer:PATH for a Keras layer, or regular expressions for node names, comma-separated"
_ABOUT = "Automatic mixed precision for TensorFlow, which TF_ENABLE_AUTO_MIXED_PRECISION=1 turns on in any program."
_LISTS = "Op types, comma-separated. An op is on one list at most: allow is converted, infer and clear next to it."
_SETTINGS = f"""
    --precision  the 16-bit type; auto, the default: float16 on GPUs, bfloat16 on CPUs that are faster in it, else none
    --target  the device to convert for, where nodes name none; gpu also works on a machine without a GPU
    --goal  convert for speed, or for the largest batch (memory)
    --level  UNSAFE_FORCE_ALL converts all it can, TREAT_INFER_AS_DENY less, TENSOR_CORES_ONLY on GPUs the allow list
    --lock FILE  a lock file, which amp-tf tune writes (by default amp.lock): what it names stays in float32
    --keep-float32 PATTERNS  what stays in float32: {_PATTERNS}
    --force-f16 PATTERNS  what is converted if it can be: {_PATTERNS}
"""
_OF_SETTINGS = {
    "--precision": _PRECISION,
    "--target": {"choices": TARGETS},
    "--goal": {"choices": GOALS},
    "--level": {"choices": LEVELS, "type": str.upper},
    "--keep-float32": {"action": "append"},
    "--force-f16": {"action": "append"},
}
_SEVERAL: Mapping[str, Any] = {"action": "append", "default": []}

COMMANDS: Mapping[str, Command] = {
    "run": Command(
        "run.run",
        "run a command with amp_tf on in every Python that it starts",
        "Runs a command with amp_tf on in every Python that it starts, also where Python does not read amp_tf.pth.",
        """
        --precision  set AMP_TF_PRECISION for the command
        command  the command and its arguments, after --
        """,
        {"--precision": _PRECISION, "command": {"nargs": argparse.REMAINDER}},
        usage="amp-tf run [--precision auto|float16|bfloat16] -- command [argument ...]",
    ),
    "rewrite": Command(
        "models.run_rewrite",
        "convert a SavedModel or a GraphDef on disk",
        "Converts a SavedModel or a GraphDef on disk, and says what was converted and what was left in float32. The "
        "result runs in a TensorFlow without amp_tf.",
        f"""
        source IN  {_WHAT}
        result OUT  the folder or file to write; not with --dry-run
        --dry-run  write nothing; only say what would be converted
        --force  replace OUT if it exists, even if it is IN
        --preserve NODE  a node to leave unchanged, such as an output of a GraphDef file; may be repeated
        --batch N  under auto, convert what is faster for requests of this batch size, or of a range such as 1-32; by
            default what is faster for one example and for many alike
        --weights  f16 stores in 16 bit those weights that are only used in 16 bit: half the size, for inference only
        --check FILE  run the model and its converted copy on a .npz file with an array for each argument of the
            signature, and print how far their outputs differ
        --report FILE  write the reason for every node as JSON
        """,
        {"result": {"nargs": "?"}, "--preserve": _SEVERAL, "--weights": {"choices": WEIGHTS, "default": WEIGHTS[0]}},
        has_settings=True,
    ),
    "explain": Command(
        "models.run_explain",
        "say why a node runs in float32 or in 16 bit",
        "Says why a node of a model or GraphDef runs in float32 or in 16 bit, and what would change that.",
        f"""
        graph GRAPH  {_WHAT}
        node NODE  the node's name; not with --all
        --all  print a line for each node: precision, op, function, name, reason
        --op OP  with --all, only nodes of this op; may be repeated
        --json  with --all, print JSON
        --function NAME  the library function that contains the node
        --batch N  under auto, the batch size that is decided for, or a range such as 1-32, as for rewrite
        --preserve NODE  a node to leave unchanged; may be repeated
        """,
        {"node": {"nargs": "?"}, "--op": _SEVERAL, "--function": {"default": ""}, "--preserve": _SEVERAL},
        has_settings=True,
    ),
    "report": Command(
        "models.run_report",
        "write an HTML page of what was converted and what was not",
        "Shows what was converted, what was not, and why: in programs that ran with AMP_TF_REPORT or TF_AUTO_MIXED_"
        "PRECISION_GRAPH_REWRITE_LOG_PATH, side by side, or in a model or GraphDef, as it would be converted.",
        """
        sources FILE  a report (.json) or a folder of them, a model, a GraphDef file, or a log folder
        --html OUT  write a page: one file that needs no network
        --json OUT  write JSON; with neither option, it is printed
        """,
        {"sources": {"nargs": "+"}},
        has_settings=True,
    ),
    "compare": Command(
        "compare.run",
        "say where a model goes wrong in 16 bit",
        "Runs a step in float32 and in 16 bit, and says where 16 bit goes wrong and which setting fixes it. The step "
        "is the training step of a script, which then exits, or a call of a saved model's signature. Status 0: "
        "healthy; 1: not healthy; 2: nothing was compared (a wrong option, model or file of inputs, or a script that "
        "trains nothing).",
        f"""
        subject  the command that trains, after --; or a model: a SavedModel's folder or a Keras file (.keras, .h5)
        --inputs FILE  a .npz file with an array for each argument of the signature, named like it
        --signature NAME  the signature to call; by default {DEFAULT_SIGNATURE}
        --batch-size N  call it once for each N rows of the arrays; by default once for all of them
        --steps N  run the step on at most N batches; by default 8
        --nodes REGEX  nodes to measure in addition to those in 16 bit
        --float32-only  run only float32, and list the tensors with values outside float16's range
        --json FILE  write everything as JSON; without FILE, print it
        --html FILE  write a page: one file that needs no network
        """,
        {
            "subject": {"nargs": "+"},
            "--signature": {"default": DEFAULT_SIGNATURE},
            "--batch-size": {"type": int},
            "--steps": {"type": int, "default": 8},
            "--json": {"nargs": "?", "const": STDOUT},
        },
        usage="amp-tf compare [options] -- python train.py [argument ...]\n"
        "       amp-tf compare [options] MODEL --inputs FILE",
        has_settings=True,
        error_status=2,
    ),
    "tune": Command(
        "tune.run",
        "find the smallest part of a model that has to stay in float32",
        "Runs the training several times, and writes to a lock file what has to stay in float32 so that a metric is as "
        "good as in float32. If it was interrupted, run it again to continue. Status 0: the lock file is written; 1: "
        "nothing was found that suffices, or the result failed --verify; 2: an option or the program is wrong.",
        """
        command  the command that trains, after --
        --metric NAME  the metric: a name in the history of fit, such as val_accuracy; module:function, called with the
            model after each fit, or without arguments when the program ends; or stdout:REGEX, the last number in the
            output that matches the group of the regular expression
        --max-drop X  how far the metric may fall below its value in float32
        --max-rise X  how far the metric, a loss, may rise above its value in float32
        --verify NAME  check the result by a metric that the search does not use
        --max-runs N  train at most N times; by default 40
        --for AIM  once also for speed
        """,
        {
            "command": {"nargs": "+"},
            "--metric": {"required": True},
            "--max-drop": {"type": float},
            "--max-rise": {"type": float},
            "--max-runs": {"type": int, "default": 40},
            "--for": {"dest": "aim", "default": "accuracy", "help": argparse.SUPPRESS},
        },
        usage="amp-tf tune --metric NAME (--max-drop X | --max-rise X) [options] -- python train.py [argument ...]",
        one_of=("--max-drop", "--max-rise"),
        is_one_needed=True,
        has_settings=True,
        error_status=2,
    ),
    "calibrate": Command(
        "doctor.run_calibrate",
        "measure how long ops take on this CPU",
        "Times matrix products, convolutions, other ops and casts on this CPU in float32 and bfloat16, and keeps the "
        "times in your cache folder. From then on AMP_TF_PRECISION=auto decides by them, for this CPU, number of cores "
        "and TensorFlow version; amp-tf doctor and reports say so. Run it on an idle machine.",
        """
        --seconds SECONDS  how long to measure; by default 70
        --details  also print the times of each matrix product and convolution
        --output FILE  only write the times to this file; auto does not use them
        --forget  remove the times, so that auto uses the included table again
        """,
        {"--seconds": {"type": float, "default": 70.0}},
    ),
    "doctor": Command(
        "doctor.run",
        "check what amp_tf can convert on this machine, and what prevents it",
        "Checks this machine and this Python, converts and runs small graphs on each device in each precision, and "
        "says for each problem what to do. Status 0: no problems; 1: problems; 2: no TensorFlow.",
        """
        --json  print everything as one JSON object
        --quiet  print nothing; only set the exit status
        --no-trials  skip converting and running graphs
        """,
        one_of=("--json", "--quiet"),
    ),
}


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line; what follows ``amp-tf`` is by default that of this process.

    Returns the exit status: that of the subcommand; after an error, printed to stderr, its ``error_status``; 2 for a
    wrong command line and without TensorFlow; as in a shell, 130 where the user interrupted it and 141 where nobody
    reads its output any more. SIGTERM and SIGHUP raise SystemExit with 143 and 129, so that temporary files go.
    """
    with _ended_by_signals():
        return _main(arguments)


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Has SIGTERM and SIGHUP raise SystemExit inside the block; what cleans up then is not ended by another one."""
    before: dict[int, Any] = {}

    def end(number: int, _: Any) -> None:
        for each in before:
            signal.signal(each, signal.SIG_IGN)
        raise SystemExit(_KILLED + number)

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:  # as under nohup
                before[number] = signal.signal(number, end)
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, signal.SIG_DFL if handler is None else handler)


def _main(arguments: list[str] | None) -> int:
    name, error_status = "amp-tf", 1
    try:  # from the first import on, which a user may interrupt as well
        args = parser().parse_args(arguments)
        name = f"amp-tf {args.command_name}"
        if args.command_name not in COMMANDS:
            raise ConfigError("this is no longer a command of amp_tf", fix=USE_COMPARE)
        command = COMMANDS[args.command_name]
        error_status = command.error_status
        module, _, function = command.home.partition(".")
        status = int(getattr(importlib.import_module(f"amp_tf.cli.{module}"), function)(args))
        print(end="", flush=True)  # here, where an error can still be reported
        return status
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        return _KILLED + signal.SIGINT
    except ImportError as error:
        from amp_tf.cli.doctor import no_tensorflow

        print(f"{name}: {no_tensorflow(error)}", file=sys.stderr)
        return 2
    except (AmpError, OSError) as error:
        if isinstance(error, OSError):  # output that could not be written Python would try again as it ends
            with contextlib.suppress(AttributeError, OSError):  # stdout is closed, or not a file
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return _KILLED + signal.SIGPIPE
        print(f"{name}: {error}", file=sys.stderr)
        return error_status
    finally:
        # No line at exit: in a command of ours it would say that nothing was converted.
        if (switch := sys.modules.get("amp_tf.hooks.switch")) is not None:
            switch.disable()


def parser() -> argparse.ArgumentParser:
    """The parser with every subcommand."""
    top = argparse.ArgumentParser(prog="amp-tf", description=_ABOUT, epilog="amp-tf COMMAND --help says more.")
    top.add_argument("--version", action="version", version=f"amp-tf {amp_tf.__version__}")
    subparsers: Any = top.add_subparsers(dest="command_name", metavar="command", required=True)
    for name, command in COMMANDS.items():
        added = subparsers.add_parser(name, help=command.help, description=command.description, usage=command.usage)
        choice = added.add_mutually_exclusive_group(required=command.is_one_needed) if command.one_of else added
        _add(added, command.options, command.more, dict.fromkeys(command.one_of, choice))
        if command.has_settings:
            add_settings(added)
    gone = subparsers.add_parser("monitor")  # without help, so that no list has it
    gone.add_argument("rest", nargs=argparse.REMAINDER)
    return top


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Adds the settings as options; those that are not given leave the environment's unchanged."""
    _add(parser, _SETTINGS, _OF_SETTINGS, {})
    lists = parser.add_argument_group("op lists", _LISTS)
    for name in LIST_NAMES:
        for action, words in (("add", "put these ops on"), ("remove", "take these ops off")):
            lists.add_argument(f"--{name}-{action}", metavar="OPS", help=f"{words} the {name} list")


def _add(parser: Any, options: str, more: Mapping[str, Mapping[str, Any]], groups: Mapping[str, Any]) -> None:
    """Adds the options of a text to a parser, or to the group that is theirs."""
    for row in re.split(r"\n(?=\S)", textwrap.dedent(options).strip()):
        what, about = re.split(r" {2,}", row, maxsplit=1)
        name, _, metavar = what.partition(" ")
        given: dict[str, Any] = {"help": " ".join(about.split()), **more.get(name, {})}
        if metavar:
            given["metavar"] = metavar
        elif name.startswith("--") and name not in more:
            given["action"] = "store_true"
        groups.get(name, parser).add_argument(name, **given)


if __name__ == "__main__":
    sys.exit(main())
