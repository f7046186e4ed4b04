"""Read the line that amp_tf logs when a process ends: how many graphs and nodes, how many
converted, how many casts.

The demo and the tests read the counts from it, so no further file or variable is needed.
"""

from __future__ import annotations

import dataclasses
import re

_LINE = re.compile(
    r"amp_tf: (?P<text>.*?(?P<graphs>[\d,]+) graphs?\b"
    r".*?(?P<converted>[\d,]+) of (?P<total>[\d,]+) nodes?"
    r".*?(?P<casts>[\d,]+) casts?\b.*)"
)


@dataclasses.dataclass(frozen=True)
class Summary:
    """The summary line of one process.

    Attributes:
        graphs: graphs rewritten or looked at.
        converted: nodes that run in 16 bit.
        total: nodes seen.
        casts: Cast nodes added.
        text: the line as it was logged, without its prefix.
    """

    graphs: int
    converted: int
    total: int
    casts: int
    text: str


def find(log: str) -> Summary | None:
    """The last summary in a process' log, or ``None`` if there is none."""
    summary = None
    for match in _LINE.finditer(log):
        numbers = {
            name: int(match[name].replace(",", ""))
            for name in ("graphs", "converted", "total", "casts")
        }
        summary = Summary(**numbers, text=match["text"].strip())
    return summary
