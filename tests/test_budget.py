"""How much there is to understand: AST nodes and files of each room, which may only become fewer.

Whoever needs more of one takes it from another, in the same commit, and says from where. Packing
buys nothing: neither it nor the width of lines changes the number of nodes, and pages may not
become denser either. ``scripts/code_sizes.py`` prints what is measured here, and says what each
figure is.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "scripts"))

import code_sizes  # noqa: E402  (a program of that folder)

BUDGET = {
    "*.py": (6856, 8),
    "cli/": (13665, 16),
    "cpu/": (6240, 5),
    "graph/": (21659, 16),
    "hooks/": (24803, 23),
    "loss_scaling/": (18303, 13),
    "offline/": (10006, 7),
    "oplists/": (8260, 8),
    "painting/": (26838, 21),
    "reporting/": (13046, 9),
    "rewriting/": (22128, 13),
    "tools/": (40811, 32),
    "package": (212615, 171),
    "C": (2231, 1),
    "tests": (300080, 291),
    "benchmarks": (75783, 79),
    "scripts": (24658, 25),
}
"""At most so many AST nodes (of C: tokens) and files."""
OTHERS = {"tuples": 5, "conditional": 15, "comprehensions": 40, "wide": 0.3, "decode": 1}
DENSITY = {
    "package": {
        "dense": 11.4,
        "tuples": 0.3,
        "conditional": 5.8,
        "comprehensions": 36.0,
        "wide": 0.1,
        "decode": 0.2,
    },
    "tests": {"dense": 12.5, **OTHERS},
    "benchmarks": {"dense": 12.1, **OTHERS},
    "scripts": {"dense": 12.0, **OTHERS},
}
"""The densest that pages may be, by :mod:`code_sizes`."""
SLACK = 500  #: nodes that a room may have saved before its row has to say so


measure_rooms = functools.cache(code_sizes.rooms)


def test_no_room_grows() -> None:
    measured = {name: (size.nodes, size.files) for name, size in measure_rooms().items()}
    assert set(measured) == set(BUDGET), "a room came or went: its row, too"
    grown = {}
    for name, found in measured.items():
        if any(map(int.__gt__, found, BUDGET[name])):
            grown[name] = (found, BUDGET[name])
    assert not grown, f"{{room: (found, budget)}} in (AST nodes, files): {grown}"


def test_what_a_room_has_saved_is_not_spent_later() -> None:
    measured = {name: (size.nodes, size.files) for name, size in measure_rooms().items()}
    saved = {name: found for name, found in measured.items() if found[0] < BUDGET[name][0] - SLACK}
    assert not saved, f"lower these rows of the budget: {saved}"


@pytest.mark.parametrize("room", DENSITY)
def test_pages_become_no_denser(room: str) -> None:
    density = measure_rooms()[room].density
    denser = {}
    for name, most in DENSITY[room].items():
        if density[name] > most:
            denser[name] = (density[name], most)
    assert not denser, f"{{what: (found, most)}}: {denser}"


def test_packing_saves_nothing_and_is_seen(tmp_path: Path) -> None:
    opened = tmp_path / "opened.py"
    opened.write_text("def f(a, b):\n    x = a\n    y = b\n    return x\n")
    packed = tmp_path / "packed.py"
    packed.write_text("def f(a, b):\n    x, y = a, b\n    return x\n")
    sizes = [code_sizes.measure([path]) for path in (opened, packed)]
    assert sizes[0].nodes <= sizes[1].nodes
    assert [size.tuples for size in sizes] == [0, 1]


def test_sentences_that_must_be_decoded_are_found() -> None:
    text = '"""What can be reached.\n\nReturns the nodes."""\nx = 1  # Of these, the first\n'
    assert [sentence for _, sentence in code_sizes.decoded_sentences(text)] == [
        "What can be reached.",
        "Of these, the first",
    ]
