"""``amp-tf report``: writes pages and data of reports, and makes reports of models and graphs."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os.path
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import amp_tf
from amp_tf.cli.options import hardware_for, read_config
from amp_tf.errors import AmpError, FileError, printable
from amp_tf.offline import reading
from amp_tf.offline.saved_model import rewrite_saved_model
from amp_tf.reporting import files
from amp_tf.reporting.figures import GraphReport, percent
from amp_tf.reporting.reports import RewriteReport
from amp_tf.rewriting.pipeline import rewrite

_GRAPHS = (".pb", ".pbtxt")


def run(args: argparse.Namespace) -> int:
    """Writes the files that were asked for, and prints a line for each report."""
    documents = [document for source in args.sources for document in _documents(source, args)]
    try:
        lines = [_line_of(document) for document in documents]
        for path in filter(None, (args.html, args.json)):
            with files.writing(path):
                files.save(documents, path, as_page=path == args.html)
    except AmpError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        what = f"a report is broken ({type(error).__name__}: {error})"
        fix = "Name a file as AMP_TF_REPORT or amp_tf.report().save(…) wrote it"
        raise FileError(what, where=" ".join(args.sources), fix=fix) from error
    if not (args.html or args.json):
        found: Any = documents
        if len(documents) == 1:
            found = documents[0]
        lines = [json.dumps(found)]
    print(*map(printable, lines), sep="\n")
    return 0


def _line_of(document: Mapping[str, Any]) -> str:
    """Returns the line that is printed for a report."""
    share = (document["figures"] or {}).get("products_share_f16")
    counts = f"{document['converted']:,} of {document['total']:,} nodes converted"
    if share is not None:
        counts = f"{percent(share)} of matmul and convolution work in 16 bit, {counts}"
    return f"{files.title(document)}: {counts}"


def _documents(source: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Returns the reports in a file or folder, or makes a report.

    One is made of a model, of a graph, or of the graphs of a log folder before their rewrite.
    """
    if not os.path.exists(source):
        fix = "Name a report, or a folder of them, a model, a graph or a log folder"
        raise FileError("there is no such file or folder", where=source, fix=fix)
    is_model = reading.is_keras_file(source) or reading.is_saved_model(source)
    graphs = [source]
    if os.path.isdir(source) and not is_model:
        written = sorted(Path(source).glob("amp_tf_*.json"))
        if written:
            return [document for path in written for document in files.read(path)]
        graphs = sorted(map(str, Path(source).glob("graphdef_preop_*.pb")))
        if not graphs:
            what = "holds no report, model or log files of amp_tf"
            fix = (
                "Name a folder that AMP_TF_REPORT or LOG_PATH wrote to, or that holds a SavedModel"
            )
            raise FileError(what, where=source, fix=fix)
    elif not is_model and not source.endswith(_GRAPHS):
        return files.read(source)
    config = read_config(args)
    hardware = hardware_for(config)
    config = dataclasses.replace(config, report_path=args.html or args.json or "-")
    found: list[GraphReport] = []
    if is_model:
        found += rewrite_saved_model(source, config, hardware=hardware)[1].graphs
    else:
        for path in graphs:
            graph = reading.read_graph_file(path)
            found += rewrite(graph, config, hardware=hardware).report.graphs
    facts = {"process": {"program": source, "amp_tf": amp_tf.__version__}}
    return [RewriteReport(tuple(found), facts=facts).to_dict()]
