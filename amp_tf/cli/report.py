"""``amp-tf report``: writes pages and data of reports, and makes reports of models and graphs."""

from __future__ import annotations

import argparse
import dataclasses
import os.path
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import amp_tf
from amp_tf.cli.options import hardware_for, read_config
from amp_tf.config import AmpConfig, sources
from amp_tf.errors import AmpError, FileError, printable
from amp_tf.offline import reading
from amp_tf.offline.saved_model import read_graphs
from amp_tf.oplists.hardware import Hardware
from amp_tf.reporting import files
from amp_tf.reporting.figures import GraphReport, percent
from amp_tf.reporting.files import Document, Row
from amp_tf.reporting.reports import RewriteReport
from amp_tf.rewriting.pipeline import rewrite, rewrite_program
from amp_tf.rewriting.recording import SECOND_VISIT

_GRAPHS = (".pb", ".pbtxt")
_BEFORE = "graphdef_preop"  # begins the names of the graphs before their rewrite, in a log folder
_FOR_XLA = "_XlaMustCompile"  # TensorFlow's mark of functions that XLA compiles


def run(args: argparse.Namespace) -> int:
    """Writes the files that were asked for, and prints a line for each report."""
    documents: list[Row] = []
    for source in args.sources:
        documents += _documents(source, args)
    try:
        lines = [_line_of(document) for document in documents]
        for path in filter(None, (args.html, args.json)):
            with files.writing(path):
                files.save(documents, path, as_page=path == args.html)
    except AmpError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise FileError(
            f"a report is broken ({type(error).__name__}: {error})",
            where=" ".join(args.sources),
            fix="Name a file as AMP_TF_REPORT or amp_tf.report().save(…) wrote it",
        ) from error
    if not (args.html or args.json):
        lines = [files.to_json(documents)]
    print(*map(printable, lines), sep="\n")
    return 0


def _line_of(document: Document) -> str:
    """Returns the line that is printed for a report."""
    share = (document["figures"] or {}).get("products_share_f16")
    counts = f"{document['converted']:,} of {document['total']:,} nodes converted"
    if share is not None:
        counts = f"{percent(share)} of matmul and convolution work in 16 bit, {counts}"
    return f"{files.title(document)}: {counts}"


def _documents(source: str, args: argparse.Namespace) -> list[Row]:
    """Returns the reports in a file or folder, or makes a report.

    One is made of a model, of a graph, or of the graphs of a log folder before their rewrite.
    """
    if not os.path.exists(source):
        raise FileError(
            "there is no such file or folder",
            where=source,
            fix="Name a report, or a folder of them, a model, a graph or a log folder",
        )
    is_model = reading.is_keras_file(source) or reading.is_saved_model(source)
    if os.path.isdir(source) and not is_model:
        written = sorted(Path(source).glob("amp_tf_*.json"))
        documents: list[Row] = []
        for path in written:
            documents += files.read(path)
        if documents:
            return documents
        if not any(Path(source).glob(f"{_BEFORE}*.pb")):
            raise FileError(
                "holds no report, model or log files of amp_tf",
                where=source,
                fix="Name a folder that AMP_TF_REPORT or LOG_PATH wrote to, or that holds a "
                "SavedModel",
            )
    elif not is_model and not source.endswith(_GRAPHS):
        return files.read(source)
    config = read_config(args)
    hardware = hardware_for(config)
    facts = {
        "process": {"program": shlex.quote(source), "amp_tf": amp_tf.__version__},
        "settings": sources(config, program="amp-tf report"),
    }
    config = dataclasses.replace(config, report_path=args.html or args.json or "-")
    found: list[GraphReport] = []
    if os.path.isdir(source) and not is_model:
        found += _of_log(source, config, hardware)
        what = (
            f"{source}: its graphs are decided again, by the settings of this command (precision "
            f"{config.precision}, target {config.target}). What the program decided stands in "
            "reasons_….txt there; AMP_TF_REPORT makes a report of it"
        )
        print(printable(f"{what}."), file=sys.stderr)
    else:
        for graph in read_graphs(source, config, hardware):
            found += graph.rewritten(config, hardware=hardware).report.graphs
    return [RewriteReport(tuple(found), facts=facts).to_dict()]


def _of_log(folder: str, config: AmpConfig, hardware: Hardware) -> Iterator[GraphReport]:
    """Decides the graphs of a log folder again, each once, and those for XLA for XLA."""
    for path in sorted(Path(folder).glob(f"{_BEFORE}*.pb"), key=_numbers):
        mark = path.name.replace(_BEFORE, SECOND_VISIT)
        if path.with_name(mark).with_suffix(".txt").exists():
            continue
        for report in _decide(reading.read_graph_file(path), config, hardware):
            if not report.is_revisit:
                yield report


def _numbers(path: Path) -> list[int]:
    """Returns a sort key: process, number in the process, time."""
    return list(map(int, re.findall(r"\d+", path.name)))


def _decide(graph: Any, config: AmpConfig, hardware: Hardware) -> Iterator[GraphReport]:
    """Decides a logged graph; a program for XLA was logged as a library without a graph."""
    functions = graph.library.function
    if graph.node or not functions or _FOR_XLA not in functions[0].attr:
        yield from rewrite(graph, config, hardware=hardware).report.graphs
        return
    # A program for XLA: a function, and those that it calls.
    root, *called = functions
    library = type(graph.library)(function=called)
    for_xla = dataclasses.replace(hardware, is_xla=True)
    for result in rewrite_program(root, called, config, for_xla, library):
        for report in result.report.graphs:
            yield dataclasses.replace(report, way="xla")
