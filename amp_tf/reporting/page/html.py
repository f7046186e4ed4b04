"""Builds the page: one HTML file with its style, its scripts, and the documents that these show."""

from __future__ import annotations

import base64
import html
import json
import os.path
import zlib
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from amp_tf.reporting.document_types import KIND
from amp_tf.reporting.layers import layer_of

Document = Mapping[str, Any]
_FRAME = "width: 100%; height: 36rem; border: 0"
_SCRIPTS = ("common.js", "report.js", "nodes.js", "comparison.js", "page.js")


def page(documents: Sequence[Document]) -> str:
    """One page for one report, for several side by side, or for one comparison.

    Args:
        documents: of reports; or that of a comparison with its text for the terminal as ``text``.
    """
    if documents[0]["schema"] != KIND:
        return _whole(f"amp_tf: {documents[0]['name']}", documents)
    shown = [{**_without_figures_of_nodes(document), "title": title(document)} for document in documents]
    return _whole(f"amp_tf: {shown[0]['title'] if len(shown) == 1 else f'{len(shown)} runs'}", shown)


def fragment(document: Document) -> str:
    """What a notebook shows, in a frame of its own, so that its style stays there.

    Of a report it shows the top: the main figure, the counts, and what keeps work in float32.
    """
    if document["schema"] != KIND:
        return _framed(_whole("amp_tf comparison", [document]), "amp_tf comparison")
    graphs = [{**graph, "nodes": [], "inserted_casts": []} for graph in document["graphs"]]
    return _framed(_whole("amp_tf report", [{**document, "graphs": graphs}], is_part=True), "amp_tf report")


def title(document: Document) -> str:
    """The name of the program that a report is of, without its folder."""
    program = str(document["process"].get("program", "")) or "a rewrite"
    first, _, rest = program.partition(" ")
    return f"{os.path.basename(first)} {rest}".strip()


def _framed(whole: str, name: str) -> str:
    return f'<iframe srcdoc="{html.escape(whole)}" title="{name}" style="{_FRAME}"></iframe>'


def _whole(name: str, documents: Sequence[Document], *, is_part: bool = False) -> str:
    data = json.dumps({"documents": documents, "isPart": is_part}, separators=(",", ":"))
    packed = base64.b64encode(zlib.compress(data.encode(), 9)).decode()
    scripts = "".join(f"<script>{_resource(script)}</script>" for script in _SCRIPTS)
    texts = "".join(f"<pre>{html.escape(document['text'])}</pre>" for document in documents if "text" in document)
    skip = "" if is_part else '<a class="skip" href="#main">To the report</a>'
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{html.escape(name)}</title><style>{_resource('style.css')}</style></head>"
        f'<body>{skip}<main id="main"><noscript>This page needs JavaScript; the JSON file has it all.{texts}</noscript>'
        "</main>"
        f'<script type="application/octet-stream" id="documents">{packed}</script>{scripts}</body></html>\n'
    )


def _without_figures_of_nodes(document: Document) -> Document:
    """The document with a short list for each node, so that 50,000 nodes fit into 2 MB."""
    graphs = [{**graph, "nodes": list(map(_short, graph["nodes"]))} for graph in document["graphs"]]
    return {**document, "graphs": graphs}


def _short(node: Mapping[str, Any]) -> list[Any]:
    """The part of a node's row that report.js reads."""
    operations = node.get("operations", 0.0)
    work = None if operations is None else round(operations * (node.get("runs") or 1.0))
    is_f16 = int(node["precision"] != "float32")
    layer = node.get("layer") or layer_of(node["name"])
    return [node["name"], node["op"], is_f16, node["reason"], node.get("cause"), work, layer]


def _resource(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
