"""How much there is to know: lines, files and files below 100 lines of each room, which may only become fewer.

Whoever needs more of one takes it from another, in the same commit, and says from where.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[1]
SMALL = 100  #: lines
BUDGET = {
    "cli/": (1481, 9, 3),
    "cpu/": (505, 3, 1),
    "graph/": (2505, 13, 2),
    "hooks/": (3331, 19, 3),
    "loss_scaling/": (2293, 11, 1),
    "offline/": (988, 5, 1),
    "oplists/": (1529, 8, 1),
    "painting/": (2816, 14, 1),
    "reporting/": (1527, 7, 1),
    "rewriting/": (2035, 9, 1),
    "tools/": (5603, 24, 2),
    "*.py": (1258, 8, 4),
    "all": (25871, 130, 21),
    "tests/": (35984, 253, 98),
}
"""At most so many lines, files, and files below :data:`SMALL` lines: of a folder of the package, and of the tests."""


def _measured() -> dict[str, tuple[int, int, int]]:
    package = ROOT / "amp_tf"
    rooms = {folder.name: list(folder.rglob("*.py")) for folder in package.iterdir() if any(folder.rglob("*.py"))}
    rooms = {f"{name}/": paths for name, paths in sorted(rooms.items())}
    rooms |= {"*.py": list(package.glob("*.py")), "all": list(package.rglob("*.py"))}
    rooms |= {"tests/": list((ROOT / "tests").rglob("*.py"))}
    found = {}
    for name, paths in rooms.items():
        lines = [len(path.read_text().splitlines()) for path in paths]
        found[name] = (sum(lines), len(lines), sum(count < SMALL for count in lines))
    return found


def test_no_room_grows() -> None:
    measured = _measured()
    assert set(measured) == set(BUDGET), "a room came or went: its row, too"
    grown = {
        name: (found, BUDGET[name]) for name, found in measured.items() if any(map(int.__gt__, found, BUDGET[name]))
    }
    assert not grown, f"{{room: (found, budget)}} in (lines, files, files below {SMALL} lines): {grown}"


def test_what_a_room_has_saved_is_not_spent_later() -> None:
    saved = {name: found for name, found in _measured().items() if found[0] < BUDGET[name][0] - 100}
    assert not saved, f"lower these rows of the budget: {saved}"
