"""A comparison as one HTML file that needs no network, in the style of the report's page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from amp_tf.comparing.comparison import figure
from amp_tf.reporting.page.html import head
from amp_tf.reporting.page.words import path, text

_NODES = 100  # the JSON has them all


def page(document: Mapping[str, Any], summary: str) -> str:
    """The page.

    Args:
        document: what :meth:`Comparison.to_dict` or :meth:`Ranges.to_dict` gave.
        summary: the text for the terminal, whose first line is the heading.
    """
    heading = text(summary.splitlines()[0])
    parts = _compared(document) if "outputs" in document else [_ranges(document)]
    notes = "".join(f'<p class="note">{text(note)}</p>' for note in document["notes"])
    return (
        f"{head('amp_tf: ' + document['name'])}<body><main><article><header>"
        f'<p class="brand">amp_tf comparison</p><h1 class="title">{heading}</h1></header>{"".join(parts)}{notes}'
        "</article></main></body></html>\n"
    )


def _compared(document: Mapping[str, Any]) -> list[str]:
    outputs = sorted(document["outputs"], key=lambda output: (output["is_good"], -_number(output["ratio"])))
    nodes = [node for node in document["nodes"] if node["local"] is not None and node["has_truth"]]
    nodes.sort(key=lambda node: -_number(node["local"]))
    rows = [
        [f"{output['kind']} {output['name']}", *(_error(output[key]) for key in ("error", "ideal", "noise")),
         f"{_number(output['ratio']):.3g}", "yes" if output["is_good"] else "no"]
        for output in outputs
    ]  # fmt: skip
    findings = [
        [finding["kind"], finding["node"], finding["op"], _error(finding["local_error"]),
         _error(finding["accumulated_error"]), finding["line"]]
        for finding in document["findings"]
    ]  # fmt: skip
    looked = [
        [node["name"], node["op"], "16 bit" if node["is_f16"] else "float32", _error(node["local"]),
         _error(node["accumulated"])]
        for node in nodes[:_NODES]
    ]  # fmt: skip
    return [
        _section("What to write", f"<pre>{text(document['line'])}</pre>") if document["line"] else "",
        _table("Findings", ("kind", "node", "op", "adds", "in the run", "alone"), findings),
        _table("Outputs", ("output", "error", "products", "noise", "ratio", "good"), rows),
        _table("Nodes, by what each adds", ("node", "op", "result", "adds", "in the run"), looked),
    ]


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
    top = "".join(f"<th>{name}</th>" for name in heads)
    body = "".join(f"<tr>{''.join(f'<td>{path(cell)}</td>' for cell in row)}</tr>" for row in rows)
    table = f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'
    return _section(heading, table)


def _section(heading: str, inside: str) -> str:
    return f"<section><h2>{heading}</h2>{inside}</section>"


def _number(value: float | str) -> float:
    """A number of a document, in which infinity is the text "inf"."""
    return float(value)


def _error(value: float | str) -> str:
    return figure(_number(value)) if not math.isnan(_number(value)) else "nan"
