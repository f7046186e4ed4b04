"""Golden files: what a text must be, kept beside the tests so that a change shows as a diff in
review.
"""

import difflib
from pathlib import Path

FOLDER = Path(__file__).parent / "gold"


def check_golden(name, actual, folder=FOLDER):
    """Compares a text with the golden file of that name; the AssertionError shows the difference.

    Then the text is beside it as ``….actual`` (ignored by git): look at it, and rename it if it is
    right.
    """
    path = folder / f"{name}.txt"
    beside = path.with_suffix(".actual")
    expected = path.read_text(encoding="utf-8") if path.exists() else ""
    if actual == expected:
        beside.unlink(missing_ok=True)
        return
    folder.mkdir(parents=True, exist_ok=True)
    beside.write_text(actual, encoding="utf-8")
    lines = difflib.unified_diff(
        expected.splitlines(), actual.splitlines(), str(path), str(beside), lineterm=""
    )
    raise AssertionError("\n".join(["the text is not the golden one:", *lines]))
