"""State that changes stands in few places: most of it is in the runtime of the hooks."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import amp_tf

ROOT = Path(amp_tf.__file__).parent
MOST = 13  #: lower it when one goes
_HOLDERS = {
    *(
        "Lock",
        "RLock",
        "Condition",
        "Event",
        "local",
        "count",
        "defaultdict",
        "deque",
        "ContextVar",
    ),
    *("WeakSet", "WeakKeyDictionary", "WeakValueDictionary"),
}
_CHANGES = {
    *(
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
    ),
    *("update", "difference_update", "intersection_update"),
}


def _name(node: ast.expr) -> str:
    """The last name of an expression, such as ``local`` of ``threading.local()`` and of
    ``local[int]()``.
    """
    if isinstance(node, ast.Call):
        return _name(node.func)
    if isinstance(node, ast.Subscript):
        return _name(node.value)
    return getattr(node, "attr", getattr(node, "id", ""))


def classes_that_change(trees: list[ast.Module]) -> set[str]:
    """The classes of which a method changes the object or what it holds, and dataclasses that are
    not frozen.
    """
    found = set()
    for tree in trees:
        for cls in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
            methods = [
                part
                for part in cls.body
                if isinstance(part, ast.FunctionDef) and part.name != "__init__"
            ]
            marks = [ast.unparse(each) for each in cls.decorator_list]
            is_open = any(mark.endswith("dataclass") or "dataclass(" in mark for mark in marks)
            if "self" in set().union(*map(_changed, methods)) or (
                is_open and "frozen=True" not in "".join(marks)
            ):
                found.add(cls.name)
    return found


def _changed(tree: ast.AST) -> set[str]:
    """The names that code assigns as globals, or of whose objects it sets, deletes or changes a
    part.
    """
    found = set()
    for node in ast.walk(tree):
        part: ast.expr | None = None
        if isinstance(node, ast.Global):
            found.update(node.names)
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in _CHANGES
        ):
            part = node.func.value
        elif isinstance(node, (ast.Subscript, ast.Attribute)) and not isinstance(
            node.ctx, ast.Load
        ):
            part = node.value
        while isinstance(part, (ast.Subscript, ast.Attribute)):
            part = part.value
        if isinstance(part, ast.Name):
            found.add(part.id)
    return found


def changing(tree: ast.Module, classes: set[str]) -> Iterator[str]:
    """The names of a module that change, or whose objects do; and functions that run once, by a
    cache.
    """
    values: dict[str, ast.expr] = {}
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = getattr(node, "value", None)
        values.update(
            {
                target.id: value
                for target in targets
                if isinstance(target, ast.Name) and value is not None
            }
        )
    changed = _changed(tree)
    for name, value in values.items():
        if name in changed or (isinstance(value, ast.Call) and _name(value) in _HOLDERS | classes):
            yield name
    for node in ast.walk(tree):
        is_cached = {"cache", "lru_cache"} & set(map(_name, getattr(node, "decorator_list", ())))
        if (
            is_cached
            and isinstance(node, ast.FunctionDef)
            and ast.unparse(node.returns or node.args) == "None"
        ):
            yield node.name


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("x = 0\ndef f():\n    global x\n    x = 1", ["x"]),
        ("x = {}\ndef f(): x['a'] = 1", ["x"]),
        ("x: list[int] = []\ndef f(): x.append(1)", ["x"]),
        ("import threading\nx = threading.local()", ["x"]),
        ("import weakref\nx: weakref.WeakSet[int] = weakref.WeakSet()", ["x"]),
        ("x = State()", ["x"]),
        ("x = object()\ndef f(): x.y = 1", ["x"]),
        ("@functools.cache\ndef tell() -> None: print()", ["tell"]),
        ("@functools.lru_cache(maxsize=2)\ndef double(x: int) -> int: return 2 * x", []),
        ("X = {'a': 1}\ndef f():\n    x = {}\n    x['a'] = X['a']", []),
        ("X = frozenset('a')\ny = Value()", []),
    ],
)
def test_what_changes_is_found(text, names):
    assert list(changing(ast.parse(text), {"State"})) == names


def test_few_globals_change():
    trees = {path: ast.parse(path.read_text()) for path in sorted(ROOT.rglob("*.py"))}
    classes = classes_that_change(list(trees.values()))
    assert {"Patches", "Runtime", "Visits"} <= classes
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path, tree in trees.items()
        for name in changing(tree, classes)
    ]
    assert "hooks/state.py: _runtime" in found
    assert len(found) <= MOST, "\n".join(found)
