"""Valid values of settings, given in Python (``check_…``) or in a variable's text (``read_…``).

A :class:`Kind` is both, with the words for people. Each function raises a :class:`ConfigError` that
names the setting or the variable, the value and the valid ones.
"""

from __future__ import annotations

import dataclasses
import functools
import numbers
import os
import re
from collections.abc import Callable, Iterable, Set
from typing import Any

import _amp_tf_start
from amp_tf.errors import ConfigError
from amp_tf.files import read_regular
from amp_tf.precision import Precision

SHORT_NAMES = {"fp16": "float16", "bf16": "bfloat16"}  #: other frameworks' names of the two types
ANY_BATCH = (1, 64)  #: a single example, and a batch beyond which times grow in proportion
LAYER = "layer:"  #: begins a pattern that is for a layer, by its path in Keras
NODE = "node:"  #: begins a pattern that is for one node, by its name
FILE = "@"  #: begins the name of a file of patterns
_MOST_BYTES = 1 << 20  # of such a file
_COMMENT = "#"
_NOT_ALONE = re.compile(r"\s#|,\s|,(layer:|node:|@)")  # no name has these

_QUOTED = re.compile(r"\\(.)")
_SPECIAL = re.compile(r"[\\,(){}\[\]]")  # characters that the next expression treats specially
# Escaped characters and whole character classes, in which brackets and commas mean nothing, then
# the brackets and commas that count.
_PATTERN_TOKENS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[(){},]", re.DOTALL)


def invalid(value: object, where: str, valid: str) -> ConfigError:
    """The error for a value that is not among the valid ones."""
    return ConfigError(f"{value!r} is not a valid value", where=where, fix=f"Valid values: {valid}")


def dtype_name(value: object) -> object:
    """The name of a dtype; any other value as it is.

    A dtype is, for instance, ``tf.bfloat16``, ``np.float16``, ``Precision.FLOAT16`` or ``"bf16"``.
    """
    if isinstance(value, str):
        return SHORT_NAMES.get(value, value)
    if isinstance(value, Precision):
        return value.value
    if isinstance(value, type):  # NumPy's scalar types
        return value.__name__
    name = getattr(value, "name", None)
    if isinstance(name, str):
        return name
    return value


def check_path(value: object, *, where: str) -> str | None:
    """Checks a path; returns it as a string, or ``None``.

    The string is absolute, because the program may change its folder.
    """
    if value is None:
        return None
    if isinstance(value, (str, os.PathLike)):
        text = os.fspath(value)
        if isinstance(text, str):
            return _absolute(text)
    raise ConfigError(f"{value!r} is not a path", where=where, fix="Valid values: a path, None")


def _absolute(path: str) -> str:
    if not path:
        return path
    try:
        return os.path.abspath(path)
    except OSError:  # the process' folder was deleted
        return path


@functools.cache
def _absolute_from_start(path: str) -> str:
    """Returns the same path whenever a variable is read, wherever the program is by then."""
    # An older checkout's _amp_tf_start may be installed, which does not know where that was.
    began_in = getattr(_amp_tf_start, "folder", "")
    return _absolute(os.path.join(began_in, path))


def check_bool(value: object, *, where: str) -> bool:
    """Checks that a value is ``True`` or ``False``."""
    if not isinstance(value, bool):
        raise invalid(value, where, "True, False")
    return value


def check_choice(value: object, valid: tuple[str, ...], *, where: str) -> str:
    """Checks that a value is one of some words."""
    if value not in valid:
        raise invalid(value, where, ", ".join(valid))
    return str(value)


def check_count(value: object, *, where: str) -> None:
    """Checks that a value is a whole number above zero."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
        raise invalid(value, where, "integers from 1")


def check_names(value: object, *, where: str) -> tuple[str, ...]:
    """Checks a list of strings; returns it as a tuple."""
    if isinstance(value, str):
        raise ConfigError(
            f"{value!r} is one string, not several", where=where, fix=f"Write ({value!r},)"
        )
    names: list[Any] = [value]
    if isinstance(value, Iterable):
        names = list(value)
    if not all(isinstance(name, str) for name in names):
        raise ConfigError(
            f"{value!r} is not a list of strings", where=where, fix="Write ('A', 'B')"
        )
    if isinstance(value, Set):  # it has no order, and equal settings must compare equal
        names.sort()
    return tuple(names)


def check_pattern(pattern: str, *, where: str) -> str:
    """Checks a pattern: a regular expression, ``layer:`` and a path, or ``node:`` and a name."""
    if pattern.startswith(FILE):
        raise ConfigError(
            f"{pattern!r} names a file of patterns, which is not read here",
            where=where,
            fix="Files are read in a variable, an option of a command, and in amp_tf.enable(…)",
        )
    if pattern.startswith(NODE):
        if not node_name(pattern):
            fix = f"Write {NODE} and the name of a node, as amp_tf.report().nodes has it"
            raise ConfigError(f"{pattern!r} names no node", where=where, fix=fix)
        return pattern
    components: tuple[str, ...] = (pattern,)
    if is_layer_pattern(pattern):
        components = layer_components(pattern)
        if "" in components:
            path = f"a layer's path as Keras has it (layer.path), such as {LAYER}encoder/block_3"
            fix = f"Write {LAYER} and {path}"
            raise ConfigError(f"{pattern!r} names no layer", where=where, fix=fix)
    for component in components:
        try:
            re.compile(component)
        except (re.error, RecursionError) as error:
            raise ConfigError(
                f"{component!r} is not a regular expression ({error})",
                where=where,
                fix="Valid values: regular expressions of Python's re module",
            ) from None
    return pattern


def check_patterns(value: object, *, where: str) -> tuple[str, ...]:
    """Checks a list of patterns; returns it as a tuple."""
    return tuple(check_pattern(pattern, where=where) for pattern in check_names(value, where=where))


def is_layer_pattern(pattern: str) -> bool:
    """Returns True if a pattern is for a layer."""
    return pattern.startswith(LAYER)


def node_name(pattern: str) -> str:
    """The name of the node that a pattern is for."""
    return pattern.removeprefix(NODE).strip()


def layer_components(pattern: str) -> tuple[str, ...]:
    """The regular expressions of a layer's pattern, one for each name of its path."""
    return tuple(pattern.removeprefix(LAYER).strip().split("/"))


@dataclasses.dataclass(frozen=True)
class Kind:
    """The valid values of settings of a kind.

    Attributes:
        values: the valid values, for people.
        read: turns the text of a variable into a value; called with the text and the variable's
            name.
        check: returns the value for an argument from Python; called with that, and ``where``.
    """

    values: str
    read: Callable[[str, str], Any]
    check: Callable[..., Any]


def read_bool(text: str, name: str) -> bool:
    """Reads yes or no."""
    lowered = text.strip().lower()
    if lowered not in ("1", "true", "0", "false", ""):
        raise invalid(text, name, "1, true, 0, false")
    return lowered in ("1", "true")


def choice(valid: tuple[str, ...], normalize: Callable[[str], str] = str) -> Kind:
    """One of some words; ``normalize`` turns the text of a variable into one."""

    def read(text: str, name: str) -> str:
        normalized = normalize(text.strip())
        if normalized in valid:
            return normalized
        return check_choice(text, valid, where=name)

    return Kind(", ".join(valid), read, functools.partial(check_choice, valid=valid))


def dtype(valid: tuple[str, ...]) -> Kind:
    """The name of a type, in its long or short form; from Python also the type itself."""
    words = choice(valid, lambda text: SHORT_NAMES.get(text.lower(), text.lower()))
    values = words.values
    for short, name in SHORT_NAMES.items():
        values = re.sub(rf"\b{name}\b", f"{name} ({short})", values)

    def check(value: object, *, where: str) -> str:
        return check_choice(dtype_name(value), valid, where=where)

    return Kind(values, words.read, check)


def read_names(text: str, name: str) -> tuple[str, ...]:
    """Reads words separated by commas."""
    return tuple(filter(None, map(str.strip, text.split(","))))


def read_patterns(text: str, name: str) -> tuple[str, ...]:
    """Reads patterns separated by commas.

    Commas in brackets do not separate, so that ``conv_[0-9]{1,2}`` is one pattern. ``@keep.txt``
    stands for the patterns of a file; a backslash in its name quotes a comma.
    """
    items = []
    depth = 0
    start = 0
    for token in _PATTERN_TOKENS.finditer(text):
        if token[0] in "({":
            depth += 1
        elif token[0] in ")}":
            depth = max(depth - 1, 0)
        elif token[0] == "," and not depth:
            items.append(text[start : token.start()])
            start = token.end()
    items.append(text[start:])
    patterns: list[str] = []
    for item in map(str.strip, items):
        if item.startswith(FILE):
            path = _QUOTED.sub(r"\1", item.removeprefix(FILE))
            if path:
                path = _absolute_from_start(path)
            patterns += read_pattern_file(path, where=name)
        elif item:
            patterns.append(check_pattern(item, where=name))
    return tuple(patterns)


def file_of_patterns(path: str | os.PathLike[str]) -> str:
    """The text of a variable that names a file of patterns."""
    return FILE + _SPECIAL.sub(r"\\\g<0>", os.fspath(path))


def read_files(value: object, *, where: str) -> object:
    """Replaces each ``"@keep.txt"`` in a setting given in Python by the patterns of that file."""
    if isinstance(value, str):
        if not value.startswith(FILE):
            return value
        value = (value,)
    if not isinstance(value, Iterable):
        return value
    if isinstance(value, Set):
        value = sorted(value, key=str)
    patterns: list[object] = []
    for pattern in value:
        if isinstance(pattern, str) and pattern.startswith(FILE):
            patterns += read_pattern_file(pattern.removeprefix(FILE), where=where)
        else:
            patterns.append(pattern)
    return patterns


def read_pattern_file(path: str, *, where: str) -> tuple[str, ...]:
    """Reads a file of patterns, one a line; blank lines and comments (``#``) are skipped.

    Raises:
        ConfigError: it is not a regular file of at most 1 MiB of text, or a line is not a pattern.
    """
    fix = "Name a text file with one pattern a line, such as amp-tf tune writes"
    if not path:
        raise ConfigError(f"{FILE} names no file", where=where, fix=fix)
    place = f"{where}: {path}"
    try:
        text = read_regular(path, _MOST_BYTES).decode("utf-8-sig")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        if isinstance(error, UnicodeDecodeError):
            why = "it is not text in UTF-8"
        raise ConfigError(f"it cannot be read ({why})", where=place, fix=fix) from None
    patterns = []
    for number, line in enumerate(text.split("\n"), 1):
        pattern = line.strip()
        if pattern and not pattern.startswith(_COMMENT):
            patterns.append(_pattern_of_line(pattern, where=f"{place}, line {number}"))
    return tuple(patterns)


def _pattern_of_line(pattern: str, *, where: str) -> str:
    if not pattern.isprintable():
        raise ConfigError(
            f"{pattern!r} holds a character that no name has",
            where=where,
            fix="Write a pattern, which names of nodes match, or delete the line",
        )
    if _NOT_ALONE.search(pattern):
        raise ConfigError(
            f"{pattern!r} holds more than one pattern, or a comment",
            where=where,
            fix="Write one pattern a line, and a comment on a line of its own",
        )
    return check_pattern(pattern, where=where)


def path(what: str) -> Kind:
    """The path of something, such as ``"a folder"``."""
    return Kind(what, lambda text, _: _absolute_from_start(text), check_path)


def check_batch(batch: object, *, where: str) -> tuple[int, ...]:
    """Checks a batch size, or the smallest and the largest of a range.

    Returns:
        The sizes to weigh, the largest first; for ``None`` those of :data:`ANY_BATCH`.
    """
    if batch is None:
        batch = ANY_BATCH
    sizes: tuple[Any, ...] = (batch,)
    if isinstance(batch, tuple):
        sizes = batch
    # The type itself, because a bool is an int, too.
    are_sizes = all(type(size) is int and size > 0 for size in sizes)
    if len(sizes) not in (1, 2) or not are_sizes or list(sizes) != sorted(sizes):
        raise invalid(
            batch, where, "a batch size from 1 on, or a pair of them, the smaller one first"
        )
    return tuple(sorted(set(sizes), reverse=True))


def read_batch(text: str, name: str) -> tuple[int, ...]:
    """Reads a batch size, ``8``, or the smallest and the largest of a range, ``1-32``."""
    parts = [part.strip() for part in text.split("-")]
    if len(parts) > 2 or not all(part.isascii() and part.isdigit() for part in parts):
        raise invalid(text, name, "a batch size such as 8, or a range such as 1-32")
    sizes = tuple(map(int, parts))
    if not 0 < sizes[0] <= sizes[-1]:
        raise invalid(
            text, name, "a batch size from 1 on, or a range such as 1-32, the smaller one first"
        )
    return sizes


YES_OR_NO = Kind("1, 0", read_bool, check_bool)
NAMES = Kind("op names, comma-separated", read_names, check_names)
PATTERNS = Kind(
    "layer: and a layer's path, node: and a node's name, regular expressions for names of nodes, "
    "or @ and a file of these, one a line; comma-separated",
    read_patterns,
    check_patterns,
)
