"""The rooms of the package, as its imports make them: the picture and the table of CONTRIBUTING.md.

A room is a subpackage of ``amp_tf``, or a module beside them. Imports for type checkers are left
out.
"""

from __future__ import annotations

import ast
import graphlib
import pathlib
from collections.abc import Iterator

PACKAGE = "amp_tf"


def modules(root: pathlib.Path) -> dict[str, ast.Module]:
    """The parsed modules of the package in a checkout, by dotted name; a subpackage is its
    ``__init__``.
    """
    found = {}
    for path in sorted((root / PACKAGE).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = ast.parse(path.read_text(encoding="utf-8"))
    return found


def imports(tree: ast.Module, known: dict[str, ast.Module]) -> set[str]:
    """The modules of the package that a module imports, inside functions too."""
    found = set()
    for node in _run(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in known else node.module for name in names]
        else:
            continue
        found.update(name for name in names if name in known)
    return found


def _run(node: ast.AST) -> Iterator[ast.AST]:
    """All parts of a module but those for type checkers alone."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            continue
        yield child
        yield from _run(child)


def room_of(module: str) -> str:
    return module.split(".")[1]


def find_rooms(root: pathlib.Path) -> dict[str, set[str]]:
    """Each room with the rooms that it imports from, a room after all of these.

    Raises:
        graphlib.CycleError: rooms import from each other in a circle.
    """
    known = modules(root)
    rooms: dict[str, set[str]] = {room_of(name): set() for name in known if name != PACKAGE}
    for name, tree in known.items():
        if name != PACKAGE:
            used = {room_of(other) for other in imports(tree, known) if other != PACKAGE}
            rooms[room_of(name)] |= used - {room_of(name)}
    order = graphlib.TopologicalSorter(
        {room: sorted(used) for room, used in sorted(rooms.items())}
    ).static_order()
    return {room: rooms[room] for room in order}


def picture(rooms: dict[str, set[str]]) -> str:
    """The rooms in Mermaid, lower ones below; imports that follow from others are left out."""
    below: dict[str, set[str]] = {}
    for room, used in rooms.items():
        below[room] = used.union(*(below[other] for other in used))
    lines = ["```mermaid", "flowchart TD"]
    for room, used in reversed(rooms.items()):
        shown = sorted(
            other for other in used if not any(other in below[between] for between in used)
        )
        lines.append(
            f"    {_node(room)} --> {' & '.join(map(_node, shown))}"
            if shown
            else f"    {_node(room)}"
        )
    return "\n".join([*lines, "```"])


def _node(room: str) -> str:
    return f"{room.strip('_')}[{room}]" if room.startswith("_") else room


def table(root: pathlib.Path) -> str:
    """Lists the rooms from high to low, each with the first paragraph of its docstring."""
    known = modules(root)
    rows = ["| room | what it holds |", "| --- | --- |"]
    for room in reversed(find_rooms(root)):
        name = f"{PACKAGE}.{room}"
        said = (
            (ast.get_docstring(known[name]) or "")
            .partition("\n\n")[0]
            .replace("\n", " ")
            .replace("``", "`")
        )
        slash = "/" if (root / PACKAGE / room).is_dir() else ""
        rows.append(f"| `{room}{slash}` | {said} |")
    return "\n".join(rows)


def contents(root: pathlib.Path) -> str:
    """The picture, and the table under it."""
    return f"{picture(find_rooms(root))}\n\n{table(root)}"
