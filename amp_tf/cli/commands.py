"""The subcommands of ``amp-tf``, and their options."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Mapping

import amp_tf
from amp_tf.config import PRECISIONS, TARGETS, WEIGHTS
from amp_tf.values import dtype_name

DEFAULT_SIGNATURE = "serving_default"
STDOUT = "-"  #: in the place of a file to write


@dataclasses.dataclass(frozen=True)
class Command:
    """A subcommand."""

    #: its module in this package, and the function that gets its arguments and returns the exit
    #: status
    home: str
    help: str  #: for people
    description: str
    add: Callable[[argparse.ArgumentParser], None]  #: adds its arguments and options to its parser
    usage: str | None = None  #: replaces argparse's own
    error_status: int = 1  #: the exit status of an error


_WHAT = "a SavedModel's folder, a Keras file (.keras, .h5), or a GraphDef file (.pb, .pbtxt)"
_PATTERNS = (
    "layer:PATH for a Keras layer, node:NAME for a node, regular expressions for the names of "
    "nodes, or @FILE of these; comma-separated"
)
_ABOUT = (
    "Automatic mixed precision for TensorFlow, which TF_ENABLE_AUTO_MIXED_PRECISION=1 turns on in "
    "any program."
)


def add_settings(parser: argparse.ArgumentParser, *, has_target: bool = True) -> None:
    """Adds settings as options; those that are not given leave the environment's unchanged."""
    parser.add_argument(
        "--precision",
        type=dtype_name,
        choices=PRECISIONS,
        help=(
            "the 16-bit type; auto, the default: float16 on GPUs, bfloat16 on CPUs that are "
            "faster in it, else none"
        ),
    )
    if has_target:
        parser.add_argument(
            "--target",
            choices=TARGETS,
            help=(
                "the device to convert for, where nodes name none; gpu also works on a machine "
                "without a GPU, and cpu on one without bfloat16"
            ),
        )
    parser.add_argument(
        "--keep-float32",
        metavar="PATTERNS",
        action="append",
        default=[],
        help=f"what stays in float32: {_PATTERNS}",
    )
    parser.epilog = "Other settings are those of the environment variables (docs/variables.md)."


def _add_number(parser: argparse.ArgumentParser, option: str, default: float, words: str) -> None:
    """Adds an option for a number above zero, whole or not as its default is."""

    def number(text: str) -> float:
        value = type(default)(text)
        if not value > 0:  # also where it is NaN
            raise argparse.ArgumentTypeError(f"{text} is not above 0")
        return value

    number.__name__ = type(default).__name__  # argparse names it where there is no number
    words = f"{words}; by default {default:g}"
    parser.add_argument(option, metavar="N", type=number, default=default, help=words)


def _file_to_write(name: str) -> str:
    """Checks the name of a file that a command writes beside what it prints."""
    if name == STDOUT:
        raise argparse.ArgumentTypeError(
            "stdout has what the command prints: name a file, or ./- for one of that name"
        )
    return name


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, help="the command and its arguments, after --"
    )


def _add_preserve(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument(
        "--preserve", metavar="NODE", action="append", default=[], help=f"{what}; may be repeated"
    )


def _add_batch(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--batch",
        metavar="N",
        help="under auto, convert what is faster for requests of this batch size, or of a range "
        "such as 1-32; by default what is faster for one example and for many alike",
    )


def _add_rewrite(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="IN", help=_WHAT)
    parser.add_argument(
        "result",
        metavar="OUT",
        nargs="?",
        type=_file_to_write,
        help="the folder or file to write; not with --dry-run",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="write nothing; only say what would be converted"
    )
    parser.add_argument(
        "--force", action="store_true", help="replace OUT if it exists, even if it is IN"
    )
    _add_preserve(parser, "a node to leave unchanged, such as an output of a GraphDef file")
    _add_batch(parser)
    parser.add_argument(
        "--weights",
        choices=WEIGHTS,
        default=WEIGHTS[0],
        help=(
            "f16 stores in 16 bit those weights that are only used in 16 bit: half the size, for "
            "inference only"
        ),
    )
    parser.add_argument(
        "--check",
        metavar="FILE",
        help="run the model and its converted copy on a .npz file with an array for each argument "
        "of the signature, and print how far their outputs differ",
    )
    add_settings(parser)


def _add_explain(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("graph", metavar="GRAPH", help=_WHAT)
    parser.add_argument("node", metavar="NODE", nargs="?", help="the node's name; not with --all")
    parser.add_argument(
        "--all",
        action="store_true",
        help="print a line for each node: precision, op, function, name, reason",
    )
    parser.add_argument(
        "--op",
        action="append",
        default=[],
        help="with --all, only nodes of this op; may be repeated",
    )
    parser.add_argument(
        "--function", metavar="NAME", default="", help="the library function that contains the node"
    )
    _add_batch(parser)
    _add_preserve(parser, "a node to leave unchanged")
    add_settings(parser)


def _add_report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "sources",
        metavar="FILE",
        nargs="+",
        help="a report (.json) or a folder of them, a model, or a GraphDef file",
    )
    parser.add_argument(
        "--html", metavar="OUT", help="write a page: one file that needs no network; - is stdout"
    )
    parser.add_argument(
        "--json", metavar="OUT", help="write JSON; - is stdout, and so are neither of these options"
    )
    add_settings(parser)


def _add_compare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "subject",
        nargs="+",
        help=(
            "the command that trains, after --; or a model: a SavedModel's folder or a Keras file "
            "(.keras, .h5)"
        ),
    )
    parser.add_argument(
        "--inputs",
        metavar="FILE",
        help="a .npz file with an array for each argument of the signature, named like it",
    )
    parser.add_argument(
        "--signature",
        metavar="NAME",
        default=DEFAULT_SIGNATURE,
        help=f"the signature to call; by default {DEFAULT_SIGNATURE}",
    )
    _add_number(parser, "--steps", 8, "run the step on at most N batches")
    parser.add_argument(
        "--output",
        metavar="FILE",
        type=_file_to_write,
        help="write what has to stay in float32 to a file, which AMP_TF_KEEP_FLOAT32=@FILE reads",
    )
    add_settings(parser)


def _add_tune(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("command", nargs="+", help="the command that trains, after --")
    parser.add_argument(
        "--metric",
        metavar="NAME",
        required=True,
        help="the metric: a name in the history of fit, such as val_accuracy; or stdout:REGEX, the "
        "last number in the output that matches the group of the regular expression",
    )
    limit = parser.add_mutually_exclusive_group(required=True)
    limit.add_argument(
        "--max-drop",
        metavar="X",
        type=float,
        help="how far the metric may fall below its value in float32",
    )
    limit.add_argument(
        "--max-rise",
        metavar="X",
        type=float,
        help="how far the metric, a loss, may rise above its value in float32",
    )
    _add_number(parser, "--max-runs", 40, "train at most N times")
    parser.add_argument(
        "--output",
        metavar="FILE",
        type=_file_to_write,
        default="keep.txt",
        help="the file to write; by default keep.txt",
    )
    add_settings(parser, has_target=False)  # its runs are on this machine's devices


def _add_time(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("command", nargs="+", help="the command to time, after --")
    parser.add_argument(
        "--step",
        metavar="NAME",
        default="",
        help="what to time: fit, evaluate, predict, a tf.function's name, or the names of what a "
        "session fetches; by default fit, else what takes longest of what has a matmul or "
        "convolution",
    )
    _add_number(parser, "--rounds", 12, "run each way at most N times, but three times in any case")
    _add_number(parser, "--minutes", 10.0, "begin no further round after N minutes")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    add_settings(parser, has_target=False)  # its runs are on this machine's devices


def _add_calibrate(parser: argparse.ArgumentParser) -> None:
    words = "measure for N seconds, but at least as long as three runs of each op take"
    _add_number(parser, "--seconds", 70.0, words)
    parser.add_argument(
        "--output",
        metavar="FILE",
        type=_file_to_write,
        help="only write the times to this file; auto does not use them",
    )


def _add_doctor(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--quiet", action="store_true", help="print nothing; only set the exit status"
    )
    parser.add_argument(
        "--no-trials", action="store_true", help="skip converting and running graphs"
    )


COMMANDS: Mapping[str, Command] = {
    "run": Command(
        "run.run",
        "run a command with amp_tf on in every Python that it starts",
        "Runs a command with amp_tf on in every Python that it starts, even where Python does not "
        "read amp_tf.pth.",
        _add_run,
        usage="amp-tf run -- command [argument ...]",
    ),
    "rewrite": Command(
        "models.run_rewrite",
        "convert a SavedModel or a GraphDef on disk",
        "Converts a SavedModel or a GraphDef on disk, and says what was converted and what was "
        "left in float32. The result runs in a TensorFlow without amp_tf.",
        _add_rewrite,
    ),
    "explain": Command(
        "models.run_explain",
        "say why a node runs in float32 or in 16 bit",
        "Says why a node of a model or GraphDef runs in float32 or in 16 bit, and what would "
        "change that.",
        _add_explain,
    ),
    "report": Command(
        "report.run",
        "write an HTML page of what was converted and what was not",
        "Shows what was converted, what was not, and why: in programs that ran with "
        "AMP_TF_REPORT, side by side; or in a model or a GraphDef, as the settings of this command "
        "convert it.",
        _add_report,
    ),
    "compare": Command(
        "compare.run",
        "say where a model goes wrong in 16 bit",
        "Runs a step in float32 and in 16 bit, and says where 16 bit goes wrong and which setting "
        "fixes it. The step is the training step of a script, which then exits, or a call of a "
        "saved model's signature. Status 0: healthy; 1: not healthy; 2: nothing was compared: an "
        "option, the model or the file of inputs is wrong, or the script failed before or ran "
        "nothing that can be compared.",
        _add_compare,
        usage="amp-tf compare [options] -- python train.py [argument ...]\n"
        "       amp-tf compare [options] MODEL --inputs FILE",
        error_status=2,
    ),
    "tune": Command(
        "tune.run",
        "find the smallest part of a model that has to stay in float32",
        "Runs the training several times, and writes to a file what has to stay in float32 so "
        "that a metric is as good as in float32; AMP_TF_KEEP_FLOAT32=@FILE reads it. If it was "
        "interrupted, run it again to continue. Status 0: the file is written; 1: nothing was "
        "found that suffices; 2: an option or the program is wrong.",
        _add_tune,
        usage=(
            "amp-tf tune --metric NAME (--max-drop X | --max-rise X) [options] -- python train.py "
            "[argument ...]"
        ),
        error_status=2,
    ),
    "time": Command(
        "timing.run",
        "say whether a program is faster with amp_tf",
        "Runs the command in float32 and with amp_tf in turns, each time until it has made enough "
        "steps, and prints how long a step takes, how much memory it needs, and which is faster. "
        "Status 0: it is known; 1: the machine is too noisy; 2: an option or the program is "
        "wrong, or nothing is converted.",
        _add_time,
        usage="amp-tf time [options] -- python train.py [argument ...]",
        error_status=2,
    ),
    "calibrate": Command(
        "calibrate.run",
        "measure how long ops take on this CPU",
        "Times matrix products, convolutions, other ops and casts on this CPU in float32 and "
        "bfloat16, and keeps the times in your cache folder. From then on AMP_TF_PRECISION=auto "
        "decides by them, for this CPU, number of cores and TensorFlow version; amp-tf doctor and "
        "reports say so. Run it on an idle machine.",
        _add_calibrate,
    ),
    "doctor": Command(
        "doctor.run",
        "check what amp_tf can convert on this machine, and what prevents it",
        "Checks this machine and this Python, converts and runs small graphs on each device in "
        "each precision, and says for each problem what to do. Status 0: no problems; 1: "
        "problems; 2: no TensorFlow.",
        _add_doctor,
    ),
}


def parser() -> argparse.ArgumentParser:
    """Makes the parser with every subcommand."""
    top = argparse.ArgumentParser(
        prog="amp-tf", description=_ABOUT, epilog="amp-tf COMMAND --help says more."
    )
    top.add_argument("--version", action="version", version=f"amp-tf {amp_tf.__version__}")
    subparsers = top.add_subparsers(dest="command_name", metavar="command", required=True)
    for name, command in COMMANDS.items():
        added = subparsers.add_parser(
            name,
            help=command.help,
            description=command.description,
            usage=command.usage,
            allow_abbrev=False,  # else a misspelt option may be taken for the beginning of another
        )
        command.add(added)
        added.set_defaults(refuse=added.error)  # argparse's own error shows the usage of amp-tf
    return top
