"""Errors that say what is wrong, where it is, and what to do about it.

Every error that amp_tf raises on purpose is an :class:`AmpError`. The API and the command line
raise them; the hooks that run inside somebody else's training script turn them into one warning and
go on with the original graph.
"""

from __future__ import annotations

import functools
import re
from typing import Any


def printable(text: str) -> str:
    """Writes out the control characters of text from others, which a terminal would obey."""
    characters = []
    for character in text:
        is_harmless = character.isprintable() or character == "\n"
        characters.append(character if is_harmless else repr(character)[1:-1])
    return "".join(characters)


# Keras and TensorFlow wrap the text of an error in colors, the arguments of a call, and lines that
# say where it was raised.
_COLOR = re.compile(r"\x1b\[\d*m")
_ARGUMENTS = re.compile(r"\n\s*Arguments received by ")
_TITLES = ("Graph execution error:", "Exception encountered when calling ")
_TRACE = "in user code:"  # begins the text of an error in a function that TensorFlow traces


def first_line(error: BaseException) -> str:
    """Returns the first line of what an error says; the name of its class if it says nothing.

    TensorFlow and Keras put frames around it.
    """
    text = _ARGUMENTS.split(_COLOR.sub("", str(error)))[0]
    _, node, said = text.rpartition("\nNode:")
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    if node:  # its name comes first
        lines = lines[1:]
    if lines[:1] == [_TRACE]:  # the places in the program come first
        lines = lines[-1:]
    for line in lines:
        if not line.startswith(_TITLES):
            return line
    return type(error).__name__


class AmpError(Exception):
    """Base of all amp_tf errors.

    Args:
        what: what is wrong, as a sentence without its full stop, with what was expected and what
            was found.
        where: the place, such as ``function 'f', node 'dense/MatMul', input 1`` or an environment
            variable's name.
        fix: what the user can do about it, as a sentence without its full stop.
    """

    def __init__(self, what: str, *, where: str = "", fix: str = "") -> None:
        self.what = what
        self.where = where
        self.fix = fix
        super().__init__(what, where, fix)

    def __reduce__(self) -> tuple[Any, ...]:
        """Passes ``where`` and ``fix`` by name when pickle carries an error to another process."""
        return functools.partial(type(self), where=self.where, fix=self.fix), (self.what,)

    def __str__(self) -> str:
        text = f"{self.what}."
        if self.where:
            text = f"{self.where}: {text}"
        if self.fix:
            text = f"{text} {self.fix}."
        return printable(text)


class ConfigError(AmpError, ValueError):
    """A setting, from Python or from the environment, has an invalid value."""


class OpListError(ConfigError):
    """Changes of the op lists contradict each other, or name an op that does not exist."""


class GraphError(AmpError, ValueError):
    """A graph was broken on arrival: it names a node, port, type or function that does not fit."""


class FileError(GraphError):
    """A file or folder cannot be read or written, is damaged, or holds something else."""


class RewriteError(AmpError, RuntimeError):
    """amp_tf made a graph that its own verification refuses; the original graph is untouched."""


class CallOrderError(AmpError, RuntimeError):
    """Methods were called in an order that would give wrong numbers."""
