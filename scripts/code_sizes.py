#!/usr/bin/env python3
"""Measures how much there is to understand in a folder's rooms, and how dense their pages are.

    scripts/code_sizes.py                   the rooms of amp_tf, its tests, benchmarks and scripts
    scripts/code_sizes.py amp_tf/painting   the modules of a room
    scripts/code_sizes.py --sentences       the sentences that must be decoded

Size is counted in AST nodes, which neither packing nor the width of lines changes; in C files, in
tokens. ``dense`` is nodes a statement. The next three columns count, per 1,000 statements,
assignments of several values at once, conditional expressions and comprehensions. ``wide`` is the
share of lines above 100 characters, in %. ``decode`` is the share of sentences, in %, whose shape
readers stumbled over: a relative clause as subject, a leading "Of …", fragments strung together by
semicolons.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import io
import pathlib
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator

ROOT = pathlib.Path(__file__).resolve().parent.parent
WIDE = 100  #: characters
_DECODED = re.compile(
    r"^(What|Whether|Those|Who|Whom|Whose|That which|How far|Where)\b|^Of \w|^[^.:`]*;[^.]*;", re.S
)
_EXAMPLE = re.compile(r"(?ms)^\s*Example.*?::\n.*?(?=^\S|\Z)")
_C_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)
_C_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|\w+|[^\w\s]')
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclasses.dataclass(frozen=True)
class Size:
    """Counts of one file, or of several."""

    files: int = 0
    nodes: int = 0
    statements: int = 0
    tuples: int = 0
    conditionals: int = 0
    comprehensions: int = 0
    lines: int = 0
    wide_lines: int = 0
    sentences: int = 0
    decoded: int = 0

    def __add__(self, other: Size) -> Size:
        mine = dataclasses.astuple(self)
        return Size(
            *(count + more for count, more in zip(mine, dataclasses.astuple(other), strict=True))
        )

    @property
    def density(self) -> dict[str, float]:
        """The figures that do not grow with the room, by their names in the table."""
        statements = max(self.statements, 1)
        return {
            "dense": self.nodes / statements,
            "tuples": 1000 * self.tuples / statements,
            "conditional": 1000 * self.conditionals / statements,
            "comprehensions": 1000 * self.comprehensions / statements,
            "wide": 100 * self.wide_lines / max(self.lines, 1),
            "decode": 100 * self.decoded / max(self.sentences, 1),
        }


def measure(paths: Iterable[pathlib.Path]) -> Size:
    """Measures Python and C files together."""
    total = Size()
    for path in paths:
        text = path.read_text(encoding="utf-8")
        total += _of_c(text) if path.suffix == ".c" else _of_python(text)
    return total


def rooms(root: pathlib.Path = ROOT) -> dict[str, Size]:
    """Measures each room of the package, then the package, its C files, tests, benchmarks and
    scripts.
    """
    package = root / "amp_tf"
    found = {"*.py": measure(package.glob("*.py"))}
    for folder in sorted(package.iterdir()):
        if any(folder.rglob("*.py")):
            found[f"{folder.name}/"] = measure(folder.rglob("*.py"))
    found["package"] = measure(package.rglob("*.py"))
    found["C"] = measure(package.rglob("*.c"))
    for name in ("tests", "benchmarks"):
        found[name] = measure((root / name).rglob("*.py"))
    found["scripts"] = measure(_scripts(root / "scripts"))
    return found


def decoded_sentences(text: str) -> Iterator[tuple[int, str]]:
    """Yields the sentences of a module that must be decoded, each with its line."""
    for line, sentence in _sentences(text, ast.walk(ast.parse(text))):
        if _DECODED.search(sentence):
            yield line, sentence


def _scripts(folder: pathlib.Path) -> list[pathlib.Path]:
    """The Python programs of a folder, also those without a suffix."""
    found = []
    for path in sorted(folder.iterdir()):
        if path.suffix == ".py" or (
            path.is_file() and path.read_bytes().startswith(b"#!/usr/bin/env python3")
        ):
            found.append(path)
    return found


def _of_python(text: str) -> Size:
    nodes = list(ast.walk(ast.parse(text)))
    lines = text.splitlines()
    sentences = [sentence for _, sentence in _sentences(text, nodes)]
    return Size(
        files=1,
        nodes=len(nodes),
        statements=sum(isinstance(node, ast.stmt) and not _is_docstring(node) for node in nodes),
        tuples=sum(map(_assigns_a_tuple, nodes)),
        conditionals=sum(isinstance(node, ast.IfExp) for node in nodes),
        comprehensions=sum(isinstance(node, _COMPREHENSIONS) for node in nodes),
        lines=len(lines),
        wide_lines=sum(len(line) > WIDE for line in lines),
        sentences=len(sentences),
        decoded=len(list(filter(_DECODED.search, sentences))),
    )


def _of_c(text: str) -> Size:
    lines = text.splitlines()
    tokens = len(_C_TOKEN.findall(_C_COMMENT.sub("", text)))
    return Size(
        files=1, nodes=tokens, lines=len(lines), wide_lines=sum(len(line) > WIDE for line in lines)
    )


def _is_docstring(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _assigns_a_tuple(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Tuple)
        and isinstance(node.value, ast.Tuple)
    )


def _sentences(text: str, nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yields the sentences of docstrings, without their examples, and the comments, each with its
    line.
    """
    for node in nodes:
        if not isinstance(node, _DOCUMENTED):
            continue
        docstring = ast.get_docstring(node)
        if not docstring:
            continue
        for paragraph in re.split(r"\n\s*\n", _EXAMPLE.sub("", docstring)):
            for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z`])", " ".join(paragraph.split())):
                yield node.body[0].lineno, sentence
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("#: ")


def table(sizes: dict[str, Size]) -> str:
    """Renders a line for each room: nodes, files, and the figures of :attr:`Size.density`."""
    lines = [f"{'':18}{'nodes':>8}{'files':>6}" + "".join(f"{name:>16}" for name in Size().density)]
    for name, size in sizes.items():
        figures = "".join(f"{figure:16.1f}" for figure in size.density.values())
        lines.append(f"{name:18}{size.nodes:8,}{size.files:6}{figures}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "folder",
        nargs="?",
        type=pathlib.Path,
        help="the modules of this one, in place of all rooms",
    )
    parser.add_argument(
        "--sentences", action="store_true", help="list the sentences that must be decoded"
    )
    asked = parser.parse_args()
    paths = sorted((asked.folder or ROOT / "amp_tf").rglob("*.py"))
    if asked.sentences:
        for path in paths:
            for line, sentence in decoded_sentences(path.read_text(encoding="utf-8")):
                print(f"{path}:{line}: {sentence[:160]}")
    elif asked.folder:
        print(table({path.name: measure([path]) for path in paths}))
    else:
        print(table(rooms()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
