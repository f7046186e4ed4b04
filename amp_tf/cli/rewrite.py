"""``amp-tf rewrite IN OUT``: converts a SavedModel or a GraphDef on disk."""

from __future__ import annotations

import argparse
import json
import os.path
import sys
from typing import Any

from amp_tf.cli.options import (
    DEFAULT_SIGNATURE,
    add_config_options,
    answer,
    check_preserved,
    find_signature,
    hardware_for,
    load_model,
    read_config,
    tell_errors,
    tell_target,
)
from amp_tf.config import AmpConfig
from amp_tf.errors import AmpError
from amp_tf.graph.names import tell_unmatched
from amp_tf.hooks.switch import disable
from amp_tf.offline.reading import is_keras_file, read_graph_file, saved_model_of, write_graph_file
from amp_tf.offline.saved_model import WEIGHTS, convert_saved_model, rewrite_saved_model
from amp_tf.reporting import files
from amp_tf.reporting.schema import RewriteReport
from amp_tf.rewriting.pipeline import rewrite


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Adds the command to the parser of ``amp-tf``."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "rewrite",
        help="convert a SavedModel or a GraphDef on disk",
        description="Converts a SavedModel or a GraphDef on disk, and says what was converted and what was left in "
        "float32. The result runs in a TensorFlow without amp_tf.",
    )
    parser.add_argument(
        "source",
        metavar="IN",
        help="a SavedModel's folder, a Keras file (.keras, .h5), or a GraphDef file (.pb, .pbtxt)",
    )
    parser.add_argument("result", metavar="OUT", nargs="?", help="the folder or file to write; not with --dry-run")
    parser.add_argument("--dry-run", action="store_true", help="only say what would be converted")
    parser.add_argument("--force", action="store_true", help="replace OUT if it exists, even if it is IN")
    parser.add_argument(
        "--preserve", action="append", default=[], metavar="NODE", help="a node that stays as it is (GraphDef files)"
    )
    parser.add_argument(
        "--weights",
        choices=WEIGHTS,
        default=WEIGHTS[0],
        help="f16 stores the variables of a model that it reads in 16 bit alone so: half the size, for inference",
    )
    parser.add_argument(
        "--check",
        metavar="FILE",
        help="run model and copy on a .npz file with an array for each argument of the signature, and print the errors",
    )
    parser.add_argument("--report", metavar="FILE", help="write the reason for every node as JSON")
    add_config_options(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    """Converts and prints what was done, op by op.

    Raises:
        AmpError: the input, the output or a setting is wrong.
    """
    config = read_config(args)
    if not args.dry_run:
        _check_result(args.source, args.result, args.force)
    if args.report:
        files.check_writable(args.report)  # before the model is written
    is_model = os.path.isdir(args.source) or is_keras_file(args.source)
    if not is_model and (args.check or args.weights != WEIGHTS[0]):
        where, fix = (
            "--check" if args.check else "--weights",
            "Name a SavedModel's folder or a Keras file, or leave it out",
        )
        raise AmpError("is for models, and this is a GraphDef file", where=where, fix=fix)
    if args.check and args.dry_run:
        raise AmpError("there is no copy to check", where="--check", fix="Leave --dry-run out")
    if is_model and args.preserve:
        raise AmpError(
            "is for GraphDef files, and this is a model",
            where="--preserve",
            fix="What a SavedModel's signatures name is preserved without it; --keep-float32 keeps other nodes",
        )
    # The file is looked at before anything is written, and the copy may come in the place of the original.
    expected = _answer(args, args.source) if args.check else {}
    report = _rewrite_model(args, config) if is_model else _rewrite_file(args, config)
    if args.report:
        with files.writing(args.report):
            files.write(args.report, json.dumps(report.to_dict(), indent=1))
    print(report)
    if args.check:
        print("check:", *tell_errors(expected, _answer(args, args.result)), sep="\n  ")
    if report.converted and not args.dry_run:
        print(f"{args.result} is written.", file=sys.stderr)
    if not report.converted:
        is_or_would = "would be" if args.dry_run else "is"
        print(f"{args.result or 'The result'} {is_or_would} an unconverted copy of {args.source}.", file=sys.stderr)
    tell_target(report)
    if report.unmatched:
        names = (node.name for node in report.nodes)
        print(f"No node's name matches: {tell_unmatched(report.unmatched, names)}", file=sys.stderr)
    if report.lock_changes:
        print(f"Lock file: {report.lock_changes}", file=sys.stderr)
    return 0


def _rewrite_model(args: argparse.Namespace, config: AmpConfig) -> RewriteReport:
    if args.dry_run:
        return rewrite_saved_model(args.source, config, hardware=hardware_for(config), weights=args.weights)[1]
    options = {"hardware": hardware_for(config), "replace": args.force, "weights": args.weights}
    return convert_saved_model(args.source, args.result, config, **options)


def _answer(args: argparse.Namespace, model: str) -> dict[str, Any]:
    """What a model, as it is saved, answers to the inputs of ``--check``."""
    disable()  # the environment may have turned amp_tf on
    with saved_model_of(model) as folder:
        loaded = load_model(folder)  # whose variables live as long as it does
        return answer(find_signature(loaded, DEFAULT_SIGNATURE, folder), args.check)


def _rewrite_file(args: argparse.Namespace, config: AmpConfig) -> RewriteReport:
    graph = read_graph_file(args.source)
    check_preserved(args.preserve, graph)
    result = rewrite(graph, config, preserve=args.preserve, hardware=hardware_for(config))
    if not args.dry_run:
        write_graph_file(result.graph, args.result)
    _tell_converted_ends(result.graph, result.report)
    return result.report


def _check_result(source: str, result: str | None, is_forced: bool) -> None:
    if result is None:
        raise AmpError("there is no OUT", fix="Name a file or folder to write, or add --dry-run")
    if not is_forced and os.path.isfile(result):
        is_input = os.path.exists(source) and os.path.samefile(source, result)
        what = "it is the input, which would be overwritten" if is_input else "the file exists"
        raise AmpError(what, where=result, fix="Name another file, or replace it with --force; nothing was written")


def _tell_converted_ends(graph: Any, report: RewriteReport) -> None:
    """Warns of nodes that no other node reads, probably fetched, whose type has changed."""
    read = {name.removeprefix("^").partition(":")[0] for node in graph.node for name in node.input}
    ends = [node.name for node in report.graphs[0].nodes if node.precision.is_f16 and node.name not in read]
    if ends:
        print(f"Results of 16 bit: {', '.join(ends)}. With --preserve NODE a node stays float32.", file=sys.stderr)
