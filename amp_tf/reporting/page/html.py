"""Builds the page: one HTML file with its style, script and data inside."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from amp_tf.reporting.page import sections
from amp_tf.reporting.page.nodes import pack
from amp_tf.reporting.page.words import text

Document = Mapping[str, Any]
_FRAME = "width: 100%; height: 36rem; border: 0"


def page(documents: Sequence[Document]) -> str:
    """One page for one report, or for several side by side."""
    title = sections.title(documents[0]) if len(documents) == 1 else f"{len(documents)} runs"
    parts = [sections.comparison(documents)] if len(documents) > 1 else []
    parts += [_run(document, number, len(documents)) for number, document in enumerate(documents)]
    return (
        f"{head(f'amp_tf: {title}')}"
        f'<body><a class="skip" href="#main">To the report</a><main id="main">{"".join(parts)}</main>'
        f"<script>{_resource('page.js')}</script></body></html>\n"
    )


def fragment(document: Document) -> str:
    """The top of the page for a notebook: the one number, the counts, and what keeps work in float32.

    In a frame of its own, so that its style stays there; without a script, so nothing in it can be pressed.
    """
    top = "".join(part(document) for part in (sections.hero, sections.tiles, sections.blockers))
    still = re.sub(r"<button[^>]*>(.*?)</button>", r"<code>\1</code>", top)
    return framed("amp_tf report", f"<article>{still}</article>")


def framed(title: str, inside: str) -> str:
    """A part of a page for a notebook, in a frame of its own."""
    whole = f"{head(title)}<body><main>{inside}</main></body></html>"
    return f'<iframe srcdoc="{text(whole)}" title="{text(title)}" style="{_FRAME}"></iframe>'


def head(title: str) -> str:
    """What stands before a page's body: its title and the style."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{text(title)}</title><style>{_resource('style.css')}</style></head>"
    )


def _run(document: Document, number: int, count: int) -> str:
    level, prefix = (1, "") if count == 1 else (2, f"run{number}-")
    body = "".join(part(document) for part in sections.PARTS)
    body = re.sub(r'<h3 id="(.*?)">(.*?)</h3>', rf'<h{level + 1} id="{prefix}\1">\2</h{level + 1}>', body)
    return (
        f'<article id="run{number}"><header><p class="brand">amp_tf report</p>'
        f'<h{level} class="title">{text(sections.title(document))}</h{level}>{sections.origin(document)}</header>{body}'
        f'<script type="application/octet-stream" class="nodes">{pack(document)}</script></article>'
    )


def _resource(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
