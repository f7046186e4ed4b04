"""A comparison as one HTML file that needs no network, in the style of the report's page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from amp_tf.comparing.verdicts import figure, title
from amp_tf.reporting.page.html import framed, head
from amp_tf.reporting.page.words import path, text

_NODES = 100  # the JSON has them all


def page(document: Mapping[str, Any], summary: str) -> str:
    """The page.

    Args:
        document: what :meth:`Comparison.to_dict` or :meth:`Ranges.to_dict` gave.
        summary: the text for the terminal, whose first line is the heading.
    """
    return f"{head('amp_tf: ' + document['name'])}<body><main>{_article(document, summary)}</main></body></html>\n"


def fragment(document: Mapping[str, Any], summary: str) -> str:
    """The page for a notebook, in a frame of its own, so that its style stays there."""
    return framed("amp_tf comparison", _article(document, summary))


def _article(document: Mapping[str, Any], summary: str) -> str:
    heading = text(summary.splitlines()[0])
    parts = _compared(document, summary) if "outputs" in document else [_ranges(document)]
    notes = "".join(f'<p class="note">{text(note)}</p>' for note in document["notes"])
    return (
        f'<article><header><p class="brand">amp_tf comparison</p><h1 class="title">{heading}</h1></header>'
        f"{''.join(parts)}{notes}</article>"
    )


def _compared(document: Mapping[str, Any], summary: str) -> list[str]:
    outputs = sorted(document["outputs"], key=lambda output: (output["is_good"], -_number(output["ratio"])))
    nodes = [node for node in document["nodes"] if node["local"] is not None and node["has_truth"]]
    nodes.sort(key=lambda node: -_number(node["local"]))
    rows = [
        [title(output["kind"], output["name"]), *(_error(output[key]) for key in ("error", "ideal", "noise")),
         f"{_number(output['ratio']):.3g}", "yes" if output["is_good"] else "no"]
        for output in outputs
    ]  # fmt: skip
    findings = [
        [f"{finding['kind']}: {finding['node']} ({finding['op']})", finding["why"], _error(finding["local_error"]),
         _error(finding["accumulated_error"]), finding["worth"], finding["line"]]
        for finding in document["findings"]
    ]  # fmt: skip
    looked = [
        [node["name"], node["op"], "16 bit" if node["is_f16"] else "float32", _error(node["local"]),
         _error(node["accumulated"])]
        for node in nodes[:_NODES]
    ]  # fmt: skip
    return [
        *([_advice(document, summary)] if not document["is_healthy"] else []),
        _first_divergence(document["first_divergence"]),
        _table("Findings", ("where", "why", "adds", "in the run", "alone", "line"), findings),
        _table("Outputs", ("output", "error", "products", "noise", "ratio", "good"), rows),
        _table("Nodes, by what each adds", ("node", "op", "result", "adds", "in the run"), looked),
    ]


def _advice(document: Mapping[str, Any], summary: str) -> str:
    """The line and what it is worth; where there is none, the terminal's words for that."""
    if document["line"]:
        return _section("What to write", f"<p>It {text(document['worth'])}.</p><pre>{text(document['line'])}</pre>")
    said = next(line for line in summary.splitlines() if line.startswith(("No line", "What would")))
    return _section("What to write", f"<p>{text(said)}</p>")


def _first_divergence(node: Mapping[str, Any] | None) -> str:
    if node is None:
        return ""
    told = f"{path(node['name'])} ({text(node['op'])}), error {_error(node['accumulated'])} in the run"
    return _section("First divergence", f"<p>{told}</p>")


def _ranges(document: Mapping[str, Any]) -> str:
    rows = [
        [node["name"], node["op"], "float16" if node["is_f16"] else "float32", f"{node['over']:.2%}",
         f"{node['under']:.2%}", f"{_number(node['largest']):.3g}", f"{_number(node['smallest']):.1g}"]
        for node in document["nodes"]
    ]  # fmt: skip
    heads = ("tensor", "op", "would be", "above 65,504", "becomes zero", "largest", "smallest")
    return _table("Tensors that leave float16's range", heads, rows)


def _table(heading: str, heads: Iterable[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    heads = tuple(heads)
    top = "".join(f"<th>{name}</th>" for name in heads)
    body = "".join(f"<tr>{''.join(map(_cell, heads, row))}</tr>" for row in rows)
    table = f'<table class="wide labelled"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>'
    return _section(heading, f'<div class="scroll">{table}</div>')


def _cell(head: str, value: str) -> str:
    """A cell with the head of its column, which stands beside it on narrow screens."""
    inside = f"<code>{text(value)}</code>" if head == "line" else path(value)
    return f'<td data-head="{text(head)}">{inside}</td>'


def _section(heading: str, inside: str) -> str:
    return f"<section><h2>{heading}</h2>{inside}</section>"


def _number(value: float | str) -> float:
    """A number of a document, in which infinity is the text "inf"."""
    return float(value)


def _error(value: float | str) -> str:
    return figure(_number(value)) if not math.isnan(_number(value)) else "nan"
