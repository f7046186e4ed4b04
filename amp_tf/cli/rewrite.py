"""``amp-tf rewrite IN OUT``: converts a SavedModel or a GraphDef on disk."""

from __future__ import annotations

import argparse
import json
import os.path
import sys
from pathlib import Path
from typing import Any

from amp_tf.cli.options import add_config_options, check_preserved, hardware_for, read_config
from amp_tf.errors import AmpError
from amp_tf.offline.graph_file import read_graph_file, write_graph_file
from amp_tf.offline.saved_model import convert_saved_model
from amp_tf.reporting.schema import RewriteReport
from amp_tf.rewriting.pipeline import rewrite


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Adds the command to the parser of ``amp-tf``."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "rewrite",
        help="convert a SavedModel or a GraphDef on disk",
        description="Converts a SavedModel or a GraphDef on disk. The result runs in a TensorFlow without amp_tf.",
    )
    parser.add_argument("source", metavar="IN", help="a SavedModel's folder, or a GraphDef file (.pb, .pbtxt)")
    parser.add_argument("result", metavar="OUT", help="the folder or file to write")
    parser.add_argument(
        "--preserve", action="append", default=[], metavar="NODE", help="a node that stays as it is (GraphDef files)"
    )
    parser.add_argument("--report", metavar="FILE", help="write the reason for every node as JSON")
    add_config_options(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    """Converts and prints one line.

    Raises:
        AmpError: the input, the output or a setting is wrong.
    """
    config = read_config(args)
    if os.path.isdir(args.source):
        if args.preserve:
            raise AmpError(
                "is for GraphDef files, and this is a folder",
                where="--preserve",
                fix="What a SavedModel's signatures name is preserved without it; --keep-float32 keeps other nodes",
            )
        report = convert_saved_model(args.source, args.result, config, hardware=hardware_for(config))
    else:
        graph = read_graph_file(args.source)
        check_preserved(args.preserve, graph)
        result = rewrite(graph, config, preserve=args.preserve, hardware=hardware_for(config))
        write_graph_file(result.graph, args.result)
        report = result.report
        _tell_converted_ends(result.graph, report)
    if args.report:
        _write_report(report, Path(args.report))
    print(describe(report))
    if report.unmatched:
        print(f"No node's name matches: {', '.join(report.unmatched)}", file=sys.stderr)
    return 0


def _tell_converted_ends(graph: Any, report: RewriteReport) -> None:
    """A GraphDef does not say what is fetched; most likely what no node reads, and its type is another one now."""
    read = {name.removeprefix("^").partition(":")[0] for node in graph.node for name in node.input}
    ends = [node.name for node in report.graphs[0].nodes if node.precision.is_f16 and node.name not in read]
    if ends:
        print(f"Results of 16 bit: {', '.join(ends)}. With --preserve NODE a node stays float32.", file=sys.stderr)


def _write_report(report: RewriteReport, path: Path) -> None:
    try:
        path.write_text(json.dumps(report.to_dict(), indent=1), encoding="utf-8")
    except OSError as error:
        raise AmpError(
            f"cannot be written ({error.strerror})", where=str(path), fix="Name a file that can be written"
        ) from None


def describe(report: RewriteReport) -> str:
    """One line: what was converted, or why nothing was."""
    counts = f"{report.converted:,} of {report.total:,} nodes converted"
    if report.converted:
        kinds = " and ".join(precision.value for precision in report.precisions)
        return f"{counts} to {kinds}, {report.casts:,} casts"
    return f"{counts}: {report.why_nothing or 'there are no graphs'}"
