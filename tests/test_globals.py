"""State that changes stands in few places: most of it is in the runtime of the hooks."""

import ast
from pathlib import Path

import pytest

import amp_tf

ROOT = Path(amp_tf.__file__).parent
#: The globals in lower case: these change, or hold what does. Take a name away when it goes, and
#: add none; constants have names in upper case, types in mixed case.
STATE = {
    "graph/layers.py": "recorded",
    "hooks/imports.py": "_finder",
    "hooks/state.py": "_began _runtime",
    "loss_scaling/calls.py": "_inner_calls _scaled_steps",
    "loss_scaling/ledger.py": "_ledger",
    "oplists/op_names.py": "_rows",
    "reporting/reports.py": "_ledger",
    "rewriting/pipeline.py": "clone_numbers",
    "rewriting/recording.py": "_numbers",
    "tools/comparing/training.py": "_training",
}
#: Calls whose results are in lower case and do not change.
_CONSTANT = {"attrgetter", "find_spec", "next", "partial", "suppress"}
_CHANGES = {
    "add",
    "append",
    "clear",
    "discard",
    "extend",
    "insert",
    "pop",
    "popitem",
    "remove",
    "setdefault",
    "sort",
    "update",
}


def lower_case_globals(tree):
    """Yields the names in lower case that a module assigns, other names of a thing aside."""
    for node in tree.body:
        if not isinstance(node, (ast.Assign, ast.AnnAssign)):
            continue
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        if not isinstance(target, ast.Name) or target.id != target.id.lower():
            continue
        if isinstance(node.value, (ast.Name, ast.Attribute)) or target.id.endswith("__"):
            continue
        if isinstance(node.value, ast.Call) and _last_name(node.value.func) in _CONSTANT:
            continue
        yield target.id


def changed_constants(tree):
    """Yields the names in upper case of which code sets, deletes or changes a part."""
    for node in ast.walk(tree):
        part = None
        if isinstance(node, ast.Call) and _last_name(node.func) in _CHANGES:
            part = getattr(node.func, "value", None)
        elif isinstance(node, (ast.Subscript, ast.Attribute)):
            part = None if isinstance(node.ctx, ast.Load) else node.value
        if isinstance(part, ast.Name) and part.id == part.id.upper() and part.id != "_":
            yield part.id


def _last_name(node):
    return getattr(node, "attr", getattr(node, "id", ""))


@pytest.mark.parametrize(
    ("text", "names", "constants"),
    [
        ("x = 0", ["x"], []),
        ("_x: list[int] = []\ndef f(): _x.append(1)", ["_x"], []),
        ("import threading\nx = threading.local()", ["x"], []),
        ("import operator\nx = operator.attrgetter('a')\ny = operator.le\nText = str", [], []),
        ("X = {}\ndef f(): X['a'] = 1", [], ["X"]),
        ("X = {}\ndef f(): X.update(a=1)", [], ["X"]),
        ("X = object()\ndef f(): X.y = 1", [], ["X"]),
        ("X = {'a': 1}\ndef f():\n    x = {}\n    x['a'] = X['a']", [], []),
    ],
)
def test_what_changes_is_found(text, names, constants):
    tree = ast.parse(text)
    assert list(lower_case_globals(tree)) == names
    assert list(changed_constants(tree)) == constants


def test_few_globals_change_and_no_constant_does():
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        assert list(changed_constants(tree)) == [], path
        names = " ".join(lower_case_globals(tree))
        if names:
            found[str(path.relative_to(ROOT))] = names
    assert found == STATE
