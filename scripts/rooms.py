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
        name = ".".join(parts).removesuffix(".__init__")
        found[name] = ast.parse(path.read_text(encoding="utf-8"))
    return found


def imports(tree: ast.Module, known: dict[str, ast.Module]) -> set[str]:
    """The modules of the package that a module imports, inside functions too."""
    found: set[str] = set()
    for node in _run(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                found.add(name if name in known else node.module)
    return found & known.keys()


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
    rooms: dict[str, set[str]] = {}
    for name, tree in known.items():
        if name == PACKAGE:
            continue
        room = room_of(name)
        used = {room_of(other) for other in imports(tree, known) if other != PACKAGE}
        rooms.setdefault(room, set()).update(used - {room})
    sorter: graphlib.TopologicalSorter[str] = graphlib.TopologicalSorter()
    for room, used in sorted(rooms.items()):
        sorter.add(room, *sorted(used))
    return {room: rooms[room] for room in sorter.static_order()}


def picture(rooms: dict[str, set[str]]) -> str:
    """The rooms in Mermaid, lower ones below; imports that follow from others are left out."""
    below: dict[str, set[str]] = {}
    for room, used in rooms.items():
        below[room] = used.union(*(below[other] for other in used))
    lines = ["```mermaid", "flowchart TD"]
    for room, used in reversed(rooms.items()):
        implied = set().union(*(below[between] for between in used))
        line = f"    {_node(room)}"
        if used:
            line += f" --> {' & '.join(map(_node, sorted(used - implied)))}"
        lines.append(line)
    return "\n".join([*lines, "```"])


def _node(room: str) -> str:
    if room.startswith("_"):
        return f"{room.strip('_')}[{room}]"
    return room


def table(root: pathlib.Path) -> str:
    """Lists the rooms from high to low, each with the first paragraph of its docstring."""
    known = modules(root)
    rows = ["| room | what it holds |", "| --- | --- |"]
    for room in reversed(find_rooms(root)):
        docstring = ast.get_docstring(known[f"{PACKAGE}.{room}"]) or ""
        first, _, _ = docstring.partition("\n\n")
        said = first.replace("\n", " ").replace("``", "`")
        slash = "/" if (root / PACKAGE / room).is_dir() else ""
        rows.append(f"| `{room}{slash}` | {said} |")
    return "\n".join(rows)


def contents(root: pathlib.Path) -> str:
    """The picture, and the table under it."""
    return f"{picture(find_rooms(root))}\n\n{table(root)}"
