"""``amp-tf report``: writes pages and data of reports, and makes reports of models and graphs."""

from __future__ import annotations

import argparse
import dataclasses
import os
import shlex
from pathlib import Path

import amp_tf
from amp_tf.cli.commands import STDOUT
from amp_tf.cli.options import read_config
from amp_tf.config import sources
from amp_tf.errors import AmpError, FileError, printable
from amp_tf.offline import reading
from amp_tf.offline.saved_model import read_graphs
from amp_tf.oplists.targets import hardware_for
from amp_tf.reporting import files
from amp_tf.reporting.figures import percent
from amp_tf.reporting.files import Document, Row
from amp_tf.reporting.graphs import GraphReport
from amp_tf.reporting.reports import RewriteReport

_GRAPHS = (".pb", ".pbtxt")


def run(args: argparse.Namespace) -> int:
    """Writes the files that were asked for, and prints a line for each report."""
    html = args.html
    data = args.json
    if not (html or data):
        data = STDOUT
    if html == data == STDOUT:
        raise AmpError(
            "both are to go to stdout", where="--html, --json", fix="Name a file for one"
        )
    documents: list[Row] = []
    for source in args.sources:
        documents += _documents(source, args)
    try:
        lines = [printable(_line_of(document)) for document in documents]
        for path, render in ((html, files.page), (data, files.to_json)):
            if path == STDOUT:
                lines = [render(documents)]
            elif path:
                with files.writing(path):
                    files.write(path, render(documents))
    except AmpError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise FileError(
            f"a report is broken ({type(error).__name__}: {error})",
            where=" ".join(args.sources),
            fix="Name a file as AMP_TF_REPORT or amp_tf.report().save(…) wrote it",
        ) from error
    print(*lines, sep="\n")
    return 0


def _line_of(document: Document) -> str:
    """Returns the line that is printed for a report."""
    share = (document["figures"] or {}).get("products_share_f16")
    counts = f"{document['converted']:,} of {document['total']:,} nodes converted"
    if share is not None:
        counts = f"{percent(share)} of matmul and convolution work in 16 bit, {counts}"
    return f"{files.title(document)}: {counts}"


def _documents(source: str, args: argparse.Namespace) -> list[Row]:
    """Returns the reports in a file or folder, or makes one of a model or a graph."""
    fix = "Name a report, or a folder of them, a model or a graph"
    with files.naming(source, "cannot be read", fix):
        os.stat(source)
    is_model = reading.is_keras_file(source) or reading.is_saved_model(source)
    if os.path.isdir(source) and not is_model:
        written = sorted(Path(source).glob("amp_tf_*.json"))
        documents: list[Row] = []
        for path in written:
            documents += files.read(path)
        if not documents:
            raise FileError(
                "holds no report or model",
                where=source,
                fix="Name a folder that AMP_TF_REPORT wrote to, or that holds a SavedModel; of the "
                "graphs of a log folder name a graphdef_preop….pb",
            )
        return documents
    if not is_model and not source.endswith(_GRAPHS):
        return files.read(source)
    config = read_config(args)
    hardware = hardware_for(config)
    facts = {
        "process": {"program": shlex.quote(source), "amp_tf": amp_tf.__version__},
        "settings": sources(config, program="amp-tf report"),
    }
    config = dataclasses.replace(config, report_path=args.html or args.json or "-")
    found: list[GraphReport] = []
    for graph in read_graphs(source, config, hardware):
        found += graph.rewritten(config, hardware=hardware).report.graphs
    return [RewriteReport(tuple(found), facts=facts).to_dict()]
