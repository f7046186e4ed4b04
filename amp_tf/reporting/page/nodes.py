"""The nodes of a report for the page's search: columns, compressed, so that 50,000 of them fit in 2 MB."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from typing import Any

from amp_tf.reporting.layers import layer_of

_CAUSE = "{cause}"


class _Words:
    """Texts by number, each once."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def number(self, word: str) -> int:
        return self.numbers.setdefault(word, len(self.numbers))


def pack(document: Mapping[str, Any]) -> str:
    """All nodes of a document in base64: zlib of JSON, a list a column. page.js unpacks it."""
    ops, reasons, layers = _Words(), _Words(), _Words()
    columns: dict[str, list[Any]] = {
        key: [] for key in ("name", "op", "f16", "reason", "cause", "work", "graph", "layer")
    }
    for number, graph in enumerate(document["graphs"]):
        first = len(columns["name"])
        place = {node["name"]: first + offset for offset, node in enumerate(graph["nodes"])}
        for node in graph["nodes"]:
            cause = node.get("cause", "")
            words = node["reason"].replace(repr(cause), _CAUSE) if cause else node["reason"]
            columns["name"].append(node["name"])
            columns["op"].append(ops.number(node["op"]))
            columns["f16"].append(int(node["precision"] != "float32"))
            columns["reason"].append(reasons.number(words))
            columns["cause"].append(place.get(cause, -1))
            operations = node.get("operations", 0.0)
            columns["work"].append(-1 if operations is None else round(operations * (node.get("runs") or 1.0)))
            columns["graph"].append(number)
            columns["layer"].append(layers.number(layer_of(node["name"])))
    graphs = [{"function": graph["function"], "precision": graph["precision"]} for graph in document["graphs"]]
    words = {"ops": list(ops.numbers), "reasons": list(reasons.numbers), "layers": list(layers.numbers)}
    data = json.dumps({**columns, **words, "graphs": graphs}, separators=(",", ":"))
    return base64.b64encode(zlib.compress(data.encode(), 9)).decode()
