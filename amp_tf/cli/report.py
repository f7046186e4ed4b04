"""``amp-tf report FILE…``: a page, or JSON, from reports of runs, from models, or from log folders."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os.path
from pathlib import Path
from typing import Any

from amp_tf.cli.options import add_config_options, hardware_for, read_config
from amp_tf.config import AmpConfig
from amp_tf.errors import AmpError, FileError, printable
from amp_tf.offline.reading import is_keras_file, is_saved_model, read_graph_file
from amp_tf.offline.saved_model import rewrite_saved_model
from amp_tf.reporting import files
from amp_tf.reporting.document_types import ProcessFacts
from amp_tf.reporting.figures import percent
from amp_tf.reporting.schema import RewriteReport
from amp_tf.rewriting.pipeline import rewrite

_GRAPHS = (".pb", ".pbtxt")


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Adds the command to the parser of ``amp-tf``."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "report",
        help="make a page of what was converted and what was not",
        description="Makes a page, or JSON, from what AMP_TF_REPORT wrote, several runs side by side; or from a "
        "SavedModel, a Keras file or a GraphDef, as it would be converted; or from a LOG_PATH folder.",
    )
    parser.add_argument(
        "sources",
        metavar="FILE",
        nargs="+",
        help="a report (.json) or a folder of them, a model, a graph, a log folder",
    )
    parser.add_argument("--html", metavar="OUT", help="write a page: one file that needs no network")
    parser.add_argument("--json", metavar="OUT", help="write JSON")
    add_config_options(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    """Writes the files that were asked for, and prints a line for each report.

    Raises:
        AmpError: a source holds nothing to report on, or a file cannot be written.
    """
    documents = [document for source in args.sources for document in _documents(source, args)]
    try:
        return _give(documents, args)
    except AmpError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        why = f"{type(error).__name__}: {error}"
        fix = "Name a file as AMP_TF_REPORT or amp_tf.report().save(…) wrote it"
        raise FileError(f"a report is broken ({why})", where=" ".join(args.sources), fix=fix) from error


def _give(documents: list[dict[str, Any]], args: argparse.Namespace) -> int:
    lines = list(map(_line, documents))
    for path in filter(None, (args.html, args.json)):
        with files.writing(path):
            files.save(documents, path, as_page=path == args.html)
    if not (args.html or args.json):
        print(json.dumps(documents[0] if len(documents) == 1 else documents))
        return 0
    for line in lines:
        print(printable(line))
    return 0


def _line(document: dict[str, Any]) -> str:
    figures = document["figures"] or {}
    counts = f"{document['converted']:,} of {document['total']:,} nodes converted"
    share = percent(figures.get("products_share_f16"))
    return f"{files.title(document)}: {share} of matmul and convolution work in 16 bit, {counts}"


def _documents(source: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    if not os.path.exists(source):
        fix = "Name a report, or a folder of them, a model, a graph or a log folder"
        raise FileError("there is no such file or folder", where=source, fix=fix)
    if os.path.isfile(source) and not is_keras_file(source) and not source.endswith(_GRAPHS):
        return files.read(source)
    if os.path.isdir(source) and not is_saved_model(source):
        return _of_folder(Path(source), args)
    return [_of_model(source, args)]


def _of_folder(folder: Path, args: argparse.Namespace) -> list[dict[str, Any]]:
    """The reports in a folder; for a log folder, one report of its graphs as they were before their rewrites."""
    if written := sorted(folder.glob("amp_tf_*.json")):
        return [document for path in written for document in files.read(path)]
    graphs = sorted(folder.glob("graphdef_preop_*.pb"))
    if not graphs:
        raise FileError(
            "holds no report, model or log files of amp_tf",
            where=str(folder),
            fix="Name a folder that AMP_TF_REPORT or LOG_PATH wrote to, or that holds a SavedModel",
        )
    config = _reporting(args)
    reports = [_rewritten(str(path), config) for path in graphs]
    found = RewriteReport(tuple(graph for report in reports for graph in report.graphs), facts=_facts(str(folder)))
    return [found.to_dict()]


def _of_model(source: str, args: argparse.Namespace) -> dict[str, Any]:
    config = _reporting(args)
    if source.endswith(_GRAPHS):
        report = _rewritten(source, config)
    else:
        report = rewrite_saved_model(source, config, hardware=hardware_for(config))[1]
    return RewriteReport(report.graphs, facts=_facts(source)).to_dict()


def _reporting(args: argparse.Namespace) -> AmpConfig:
    return dataclasses.replace(read_config(args), report_path=args.html or args.json or "-")


def _rewritten(path: str, config: AmpConfig) -> RewriteReport:
    return rewrite(read_graph_file(path), config, hardware=hardware_for(config)).report


def _facts(source: str) -> ProcessFacts:
    import amp_tf

    return ProcessFacts(process={"program": source, "amp_tf": amp_tf.__version__})
