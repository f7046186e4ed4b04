"""The table: the figures of every model and block for every target, one row a line."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

from benchmarks.decisions import traces
from benchmarks.decisions.figures import Figures, figures_of
from benchmarks.decisions.rewriting import Target, path_of, rewrite

COMMITTED = Path(__file__).parent / "table.txt"
HEAD = (
    "# model or block, way, target: products' work in 16 bit %, elements written in 16 bit %, "
    "casts, expected gain"
)

Found = TypeVar("Found")
Key = tuple[str, str, str]  #: model or block, way, target


def decided(
    names: Sequence[str],
    kept: Path,
    only: Sequence[Target],
    at_once: int,
    elsewhere: Path | None = None,
) -> dict[Key, Figures]:
    """The figures of models and blocks; what is not traced yet is traced.

    Args:
        names: the models and blocks.
        kept: the folder of the traces.
        only: the targets.
        at_once: processes.
        elsewhere: a folder of rewritten graphs to take in place of what this amp_tf makes.
    """
    found: dict[Key, Figures] = {}
    decide = functools.partial(_decided, kept=kept, only=only, elsewhere=elsewhere)
    for row in each(decide, names, at_once):
        found |= row
    return found


def each(work: Callable[[str], Found], names: Sequence[str], at_once: int) -> Iterator[Found]:
    """Does some work for each name in processes, which report their progress on stderr.

    They live for some names each, because TensorFlow keeps what it traced, and are then killed: one
    that ends by itself may wait for TensorFlow's threads for ever.
    """
    many = 20 * at_once
    for start in range(0, len(names), many):
        with get_context("spawn").Pool(at_once) as pool:
            for number, found in enumerate(pool.imap(work, names[start : start + many]), start + 1):
                print(f"\r{number} of {len(names)}", end="", file=sys.stderr, flush=True)
                yield found
    print(file=sys.stderr)


def _decided(
    name: str, kept: Path, only: Sequence[Target], elsewhere: Path | None
) -> dict[Key, Figures]:
    devices = sorted({target.device for target in only})
    traces.make(name, traces.WAYS, devices, kept)
    found = {}
    for way, target in itertools.product(traces.WAYS, only):
        trace = traces.read(traces.path_of(kept, name, way, target.device))
        if elsewhere:
            graph = path_of(elsewhere, name, way, target.name).read_bytes()
        else:
            graph = rewrite(trace, target).graph
        found[name, way, target.name] = figures_of(trace, graph, target.table)
    return found


def lines(found: Mapping[Key, Figures]) -> Iterator[str]:
    """The table, one row a line."""
    yield HEAD
    for key, row in found.items():
        yield _line(key, row)


def _line(key: Key, row: Figures) -> str:
    name, way, target = key
    gain = "-" if row.gain is None else f"{row.gain:.3f}"
    shares = f"{row.products:5.1f} {row.elements:5.1f}"
    return f"{name:32} {way:7} {target:16} {shares} {row.casts:4} {gain:>6}"


def read(path: Path) -> dict[Key, Figures]:
    """The rows of a table that :func:`lines` wrote."""
    found = {}
    for line in path.read_text().splitlines():
        if line.startswith("#"):
            continue
        name, way, target, products, elements, casts, gain = line.split()
        row = Figures(float(products), float(elements), int(casts), None)
        if gain != "-":
            row = dataclasses.replace(row, gain=float(gain))
        found[name, way, target] = row
    return found


def differences(before: Mapping[Key, Figures], now: Mapping[Key, Figures]) -> list[str]:
    """The rows that differ by more than 1 %, or are in one table alone, in both forms."""
    found = []
    for key in dict.fromkeys([*before, *now]):
        earlier = before.get(key)
        later = now.get(key)
        if earlier and later and not earlier.differs(later):
            continue
        if earlier:
            found.append(f"- {_line(key, earlier)}")
        if later:
            found.append(f"+ {_line(key, later)}")
    return found
