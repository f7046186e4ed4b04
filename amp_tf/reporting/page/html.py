"""Builds the page: one HTML file with its style, script and data inside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from amp_tf.reporting.page import sections
from amp_tf.reporting.page.nodes import pack
from amp_tf.reporting.page.words import text

Document = Mapping[str, Any]


def page(documents: Sequence[Document]) -> str:
    """One page for one report, or for several side by side."""
    title = sections.title(documents[0]) if len(documents) == 1 else f"{len(documents)} runs"
    parts = [sections.comparison(documents)] if len(documents) > 1 else []
    parts += [_run(document, number, len(documents)) for number, document in enumerate(documents)]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>amp_tf: {text(title)}</title><style>{_resource('style.css')}</style></head>"
        f'<body><a class="skip" href="#main">To the report</a><main id="main">{"".join(parts)}</main>'
        f"<script>{_resource('page.js')}</script></body></html>\n"
    )


def fragment(document: Document) -> str:
    """The top of the page for a notebook: the one number, the counts, and what keeps work in float32."""
    style = _resource("style.css").replace(":root", ".amp-tf").replace("body", ".amp-tf")
    top = "".join(part(document) for part in (sections.hero, sections.tiles, sections.blockers))
    return f'<style>{style}</style><div class="amp-tf"><article>{top}</article></div>'


def _run(document: Document, number: int, count: int) -> str:
    body = "".join(part(document) for part in sections.PARTS)
    heading = "h1" if count == 1 else "h2"
    return (
        f'<article id="run{number}"><header><p class="brand">amp_tf report</p>'
        f"<{heading}>{text(sections.title(document))}</{heading}>{sections.origin(document)}</header>{body}"
        f'<script type="application/octet-stream" class="nodes">{pack(document)}</script></article>'
    )


def _resource(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
