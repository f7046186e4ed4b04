"""``amp-tf compare``: where a script's training, or a SavedModel, goes wrong in 16 bit."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from amp_tf.cli.compared_script import NOT_COMPARED, compare_script
from amp_tf.cli.options import add_config_options, hardware_for, read_config
from amp_tf.cli.signatures import DEFAULT_SIGNATURE, find_signature, load_model, read_inputs
from amp_tf.config import AmpConfig
from amp_tf.errors import AmpError
from amp_tf.offline.live_model import is_keras_file, saved_model_of
from amp_tf.reporting import files
from amp_tf.reporting.page import html
from amp_tf.tools.comparing.comparison import Comparison
from amp_tf.tools.comparing.pipeline import compare
from amp_tf.tools.comparing.ranges import Ranges, find_ranges
from amp_tf.tools.progress import on_terminal

_STDOUT = "-"


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Adds the command to the parser of ``amp-tf``."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "compare",
        help="say where a model goes wrong in 16 bit",
        usage="amp-tf compare [options] -- python train.py [argument ...]\n"
        "       amp-tf compare [options] MODEL --inputs FILE",
        description="Runs a step in float32 and as amp_tf rewrites it, and says where it goes wrong and what to write "
        "so that it does not: the first training of a script, which ends then; or a signature of a model. Status "
        "0 where it is healthy, 1 where it is not, 2 where nothing was compared (a wrong option, model or file of "
        "inputs; a script that trains nothing).",
    )
    parser.set_defaults(error_status=NOT_COMPARED)
    parser.add_argument(
        "subject",
        nargs="+",
        help="the command that trains, after --; or a model: a SavedModel's folder or a Keras file (.keras, .h5)",
    )
    parser.add_argument(
        "--inputs", metavar="FILE", help="a .npz file with an array for each argument of the signature, under its name"
    )
    parser.add_argument(
        "--signature",
        default=DEFAULT_SIGNATURE,
        metavar="NAME",
        help=f"of a model; by default {DEFAULT_SIGNATURE}",
    )
    parser.add_argument(
        "--batch-size", type=int, metavar="N", help="rows of the arrays a batch; by default all at once"
    )
    parser.add_argument("--steps", type=int, default=8, metavar="N", help="batches at most; by default 8")
    parser.add_argument("--nodes", metavar="REGEX", help="further nodes to measure besides those in 16 bit")
    parser.add_argument(
        "--float32-only", action="store_true", help="run float32 alone, and say which tensors leave float16's range"
    )
    parser.add_argument(
        "--json", nargs="?", const=_STDOUT, metavar="FILE", help="write everything as JSON, or print it without FILE"
    )
    parser.add_argument("--html", metavar="FILE", help="write a page: one file that needs no network")
    add_config_options(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    """Prints the comparison.

    Returns:
        0 where the model is healthy, 1 where it is not; of a script that was not compared see :func:`compare_script`.

    Raises:
        AmpError: the model, the inputs or a setting is wrong.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # hides TensorFlow's startup messages
    config = read_config(args)
    if args.inputs is None:
        if os.path.isdir(args.subject[0]) or is_keras_file(args.subject[0]):
            fix = "Name it with --inputs, or write -- in front of a script's command"
            raise AmpError("there is no file of inputs", where=args.subject[0], fix=fix)
        asked = {"steps": args.steps, "nodes": args.nodes, "float32_only": args.float32_only}
        found = compare_script(args.subject, config, **asked)
        return found if isinstance(found, int) else _write(found["comparison"], found["text"], args)
    if len(args.subject) > 1:
        fix = "Write one model with --inputs, or a command after -- without it"
        raise AmpError("expected one model", where=" ".join(args.subject), fix=fix)
    compared = _compare_model(args.subject[0], args, config)
    return _write(compared.to_dict(), compared.for_command(), args)


def _write(found: Mapping[str, Any], text: str, args: argparse.Namespace) -> int:
    data = json.dumps(found, indent=1)
    print(data if args.json == _STDOUT else text)
    written = {} if args.json in (None, _STDOUT) else {args.json: f"{data}\n"}
    if args.html is not None:
        written[args.html] = html.page([{**found, "text": text}])
    for path, content in written.items():
        with files.writing(path):
            files.write(path, content)
    return 0 if found["is_healthy"] else 1


def _compare_model(source: str, args: argparse.Namespace, config: AmpConfig) -> Comparison | Ranges:
    with saved_model_of(source) as folder:
        model = load_model(folder)  # whose variables live as long as it does
    function = find_signature(model, args.signature, source)
    arrays = read_inputs(args.inputs, list(function.structured_input_signature[1]))
    given = function, _batches(arrays, args.batch_size), config
    hardware, progress = hardware_for(config), on_terminal()
    found: Comparison | Ranges
    if args.float32_only:
        found = find_ranges(*given, steps=args.steps, hardware=hardware, progress=progress)
    else:
        found = compare(*given, steps=args.steps, nodes=args.nodes, hardware=hardware, progress=progress)
    return dataclasses.replace(found, name=os.path.basename(os.path.normpath(source)))


def _batches(arrays: Mapping[str, np.ndarray], size: int | None) -> list[dict[str, np.ndarray]]:
    if size is None:
        return [dict(arrays)]
    if size < 1:
        raise AmpError(f"{size} is not a number of rows", where="--batch-size", fix="Write 1 or more")
    counts = [len(array) if array.ndim else 0 for array in arrays.values()]
    if len(set(counts)) != 1 or not counts[0]:
        raise AmpError("the arrays have different numbers of rows", where="--batch-size", fix="Leave it out")
    starts = range(0, counts[0], size)
    return [{name: array[start : start + size] for name, array in arrays.items()} for start in starts]
