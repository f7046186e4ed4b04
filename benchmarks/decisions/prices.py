"""The price of each rule of the contract, on every model and block, and its use.

    python -m benchmarks.decisions.prices [--rules range,needs] [--names quick]
    python -m tests.truth --all --without needs --rows needs.jsonl
    python -m benchmarks.decisions.prices --rules "" --truth needs=needs.jsonl

writes ``benchmarks/decisions/prices.md``. Each rule is left out alone. Its price is the difference
in 16-bit work, elements and casts. Means are over all models, blocks and ways; the worst is one of
them. Nothing is timed, so any host gives the same. Three columns are written by hand in
``prices.json``: the failures without the rule, the reason why it stays, and a program that shows
it. ``--truth`` counts there the programs of the truth table above the limit without the rule.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.decisions import traces
from benchmarks.decisions.__main__ import names_in
from benchmarks.decisions.figures import Figures, figures_of
from benchmarks.decisions.rewriting import GPU_TARGET, Target, rewrite, targets
from benchmarks.decisions.table import Key, each
from benchmarks.results import table_row

PAGE = Path(__file__).with_name("prices.md")
KEPT = Path(__file__).with_name("prices.json")
TARGETS = ("amd-zen5", GPU_TARGET)
TEXTS = ("fails without it", "decision", "program")  #: the columns that are written by hand

COLUMNS = (
    "rule",
    "target",
    "graphs changed",
    "products %",
    "elements %",
    "casts",
    "gain ÷",
    "worst: products, elements",
    *TEXTS,
)

#: The figures with a rule and without it, where they differ, by rule.
Differences = dict[str, dict[Key, tuple[Figures, Figures]]]


@dataclasses.dataclass(frozen=True)
class Price:
    """The price of one rule for one target.

    Attributes:
        changed: graphs that it changes.
        products, elements: per cent of the products' work and of the elements written that it keeps
            in float32, mean.
        casts: that it adds, mean of a graph.
        gain: by what factor it divides the expected gain, the geometric mean; ``None`` for a GPU.
        worst: the model or block and way for which it keeps most of the products' work, or of the
            elements, or divides the gain most; with that figure.
    """

    changed: int
    products: float
    elements: float
    casts: float
    gain: float | None
    worst: str

    @classmethod
    def of(cls, rows: Mapping[Key, tuple[Figures, Figures]], graphs: int) -> Price:
        """The price by the graphs that change, of so many in all."""
        products = 0.0
        elements = 0.0
        casts = 0
        gains = []
        worst = (0.0, 0.0)
        worst_of = "-"
        for (name, way, _), (ruled, free) in rows.items():
            casts += ruled.casts - free.casts
            if ruled.gain and free.gain:
                gains.append(free.gain / ruled.gain)
            # The shares that the rule takes from 16 bit.
            taken = (free.products - ruled.products, free.elements - ruled.elements)
            products += taken[0]
            elements += taken[1]
            rounded = (round(taken[0], 1), round(taken[1], 1))
            if worst_of == "-" or rounded > worst:
                worst = rounded
                worst_of = f"{name}, {way}: {worst[0]:.1f}, {worst[1]:.1f}"
        gain = None
        if len(gains) == len(rows):  # on a CPU
            unchanged = [1.0] * (graphs - len(gains))
            gain = round(statistics.geometric_mean([*gains, *unchanged]), 4)
        return cls(
            changed=len(rows),
            products=round(products / graphs, 4),
            elements=round(elements / graphs, 4),
            casts=round(casts / graphs, 4),
            gain=gain,
            worst=worst_of,
        )


def contract() -> list[str]:
    """The names of the rules that keep something in float32 for accuracy's sake."""
    from amp_tf.painting.paint import RULES

    return list(dict.fromkeys(row.name for row in RULES if row.reasons))


def measure(
    names: Sequence[str], rules: Sequence[str], kept: Path, only: Sequence[Target], at_once: int
) -> Differences:
    """Finds the figures that each rule changes when it alone is left out."""
    found: Differences = {rule: {} for rule in rules}
    work = functools.partial(_changes, rules=rules, kept=kept, only=only)
    for rows in each(work, names, at_once):
        for rule, key, pair in rows:
            found[rule][key] = pair
    return found


def _changes(
    name: str, rules: Sequence[str], kept: Path, only: Sequence[Target]
) -> list[tuple[str, Key, tuple[Figures, Figures]]]:
    from tests.left_out import without

    traces.make(name, traces.WAYS, sorted({target.device for target in only}), kept)
    found = []
    for way, target in itertools.product(traces.WAYS, only):
        trace = traces.read(traces.path_of(kept, name, way, target.device))
        ruled = rewrite(trace, target).graph
        for rule in rules:
            with without([rule]):
                free = rewrite(trace, target).graph
            if free != ruled:
                key = (name, way, target.name)
                with_it = figures_of(trace, ruled, target.table)
                without_it = figures_of(trace, free, target.table)
                found.append((rule, key, (with_it, without_it)))
    return found


def page(prices: Mapping[str, Mapping[str, Any]]) -> str:
    """The committed page, by rules and then targets."""
    lines = [
        "# What each rule of the contract costs",
        "",
        "Written by `python -m benchmarks.decisions.prices`, whose docstring says what a price is.",
        "",
        table_row(COLUMNS),
        "|---|---|" + "---:|" * 5 + "---|" * 4,
    ]
    for rule, entry in prices.items():
        title = rule
        texts = [entry.get(text, "") for text in TEXTS]
        for target, row in entry.get("prices", {}).items():
            gain = "-" if row["gain"] is None else f"{row['gain']:.3f}"
            cells = [title, target, f"{row['changed']}", f"{row['products']:.2f}"]
            cells += [f"{row['elements']:.2f}", f"{row['casts']:+.2f}", gain, row["worst"]]
            lines.append(table_row([*cells, *texts]))
            # Only the first row of a rule has them.
            title = ""
            texts = [""] * len(TEXTS)
    return "\n".join(lines) + "\n"


def failing(path: Path) -> str:
    """How many programs of a run of the truth table are above the limit and no named limit, and the
    first of them.
    """
    from tests.truth import report, runner

    bad = sorted({row.program for row in runner.read(path) if report.is_defect(row)})
    if not bad:
        return "none of the truth table"
    return f"{len(bad)} programs: {', '.join(bad[:3])}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rules", help="comma-separated; all of the contract")
    parser.add_argument(
        "--names", default="all", help="models and blocks, comma-separated; all or quick"
    )
    parser.add_argument(
        "--traces", type=Path, metavar="FOLDER", help="where traced graphs are kept"
    )
    parser.add_argument(
        "--at-once", type=int, default=len(os.sched_getaffinity(0)), help="processes"
    )
    parser.add_argument(
        "--truth",
        action="append",
        default=[],
        metavar="RULE=ROWS",
        help="rows of tests.truth without it",
    )
    asked = parser.parse_args(arguments)
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    names = names_in(asked.names)
    order = contract()
    rules = order if asked.rules is None else [rule for rule in asked.rules.split(",") if rule]
    for rule in rules:
        if rule not in order:
            parser.error(f"no rule of the contract is called {rule}; there are {', '.join(order)}")
    prices: dict[str, dict[str, Any]] = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    for given in asked.truth:
        rule, _, path = given.partition("=")
        prices.setdefault(rule, {})["fails without it"] = failing(Path(path))
    if rules:
        with tempfile.TemporaryDirectory() as temporary:
            kept = asked.traces or Path(temporary, "traces")
            kept.mkdir(parents=True, exist_ok=True)
            known = targets(Path(temporary))
            only = [known[name] for name in TARGETS]
            differences = measure(names, rules, kept, only, asked.at_once)
        graphs = len(names) * len(traces.WAYS)
        for rule, found in differences.items():
            of_targets = prices.setdefault(rule, {})["prices"] = {}
            for target in TARGETS:
                rows = {key: pair for key, pair in found.items() if key[2] == target}
                of_targets[target] = dataclasses.asdict(Price.of(rows, graphs))
    # Rules that are gone keep their rows, with the price that they had.
    ordered = {rule: prices[rule] for rule in dict.fromkeys([*order, *prices]) if rule in prices}
    KEPT.write_text(json.dumps(ordered, indent=1, ensure_ascii=False) + "\n")
    PAGE.write_text(page(ordered))
    print(page(ordered))
    return 0


if __name__ == "__main__":
    sys.exit(main())
