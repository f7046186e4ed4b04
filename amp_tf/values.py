"""The values that settings may have, from Python (``check_…``) and as the text of a variable (``read_…``).

A :class:`Kind` is both, with the words for people. Each function raises a :class:`ConfigError` that names the setting
or the variable, the value and the valid ones.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import numbers
import os
import re
import sys
from collections.abc import Callable, Iterable, Set
from typing import Any

from amp_tf.errors import ConfigError
from amp_tf.precision import Precision

SHORT_NAMES = {"fp16": "float16", "bf16": "bfloat16"}  #: other frameworks' names of the two types
_IS_IN_RE = sys.version_info >= (3, 11)
_PARSER: Any = importlib.import_module("re._parser" if _IS_IN_RE else "sre_parse")
_COMPILER: Any = importlib.import_module("re._compiler" if _IS_IN_RE else "sre_compile")
_REPEATS = (_PARSER.MAX_REPEAT, _PARSER.MIN_REPEAT)
_ONE_LETTER = (_PARSER.LITERAL, _PARSER.NOT_LITERAL, _PARSER.IN, _PARSER.ANY)
_FEW = 4  # repetitions
ANY_BATCH = (1, 64)  #: a single example, and a batch beyond which times grow in proportion
LAYER = "layer:"  #: begins a pattern that is for a layer, by its path in Keras

# Escaped characters and whole character classes, whose brackets and commas mean nothing; then those that do.
_PATTERN_TOKENS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[(){},]", re.DOTALL)


def invalid(value: object, where: str, valid: str) -> ConfigError:
    """The error for a value that is not among the valid ones."""
    return ConfigError(f"{value!r} is not a valid value", where=where, fix=f"Valid values: {valid}")


def dtype_name(value: object) -> object:
    """The name of a dtype (``tf.bfloat16``, ``np.float16``, ``Precision.FLOAT16``, ``"bf16"``); else the value."""
    if isinstance(value, str):
        return SHORT_NAMES.get(value, value)
    if isinstance(value, Precision):
        return value.value
    if isinstance(value, type):  # NumPy's scalar types
        return value.__name__
    name = getattr(value, "name", None)
    return name if isinstance(name, str) else value


def check_path(value: object, *, where: str) -> str | None:
    """Checks a path; returns it as a string, or ``None``."""
    if value is None or (isinstance(value, (str, os.PathLike)) and isinstance(os.fspath(value), str)):
        return None if value is None else str(os.fspath(value))
    raise ConfigError(f"{value!r} is not a path", where=where, fix="Valid values: a path, None")


def check_bool(value: object, *, where: str) -> bool:
    """Checks that a value is one of the two."""
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
        raise ConfigError(f"{value!r} is one string, not several", where=where, fix=f"Write ({value!r},)")
    names: list[Any] = list(value) if isinstance(value, Iterable) else [value]
    if not all(isinstance(name, str) for name in names):
        raise ConfigError(f"{value!r} is not a list of strings", where=where, fix="Write ('A', 'B')")
    # A set has no order, and equal settings must compare equal.
    return tuple(sorted(names)) if isinstance(value, Set) else tuple(names)


def check_pattern(pattern: str, *, where: str) -> str:
    """Checks that a pattern is a regular expression, or ``layer:`` and a path whose names are some."""
    components = layer_components(pattern) if is_layer_pattern(pattern) else (pattern,)
    if is_layer_pattern(pattern) and "" in components:
        fix = f"Write {LAYER} and a layer's path as Keras has it (layer.path), such as {LAYER}encoder/block_3"
        raise ConfigError(f"{pattern!r} names no layer", where=where, fix=fix)
    for component in components:
        try:
            re.compile(component)
            may_hang = _may_hang(_PARSER.parse(component))
        except (re.error, RecursionError) as error:
            raise ConfigError(
                f"{component!r} is not a regular expression ({error})",
                where=where,
                fix="Valid values: regular expressions of Python's re module",
            ) from None
        if may_hang:
            what = f"{component!r} repeats what repeats or chooses, so one name could take hours"
            raise ConfigError(what, where=where, fix="Write a+ for (a+)+, or several patterns for (a|b)+")
    return pattern


def check_patterns(value: object, *, where: str) -> tuple[str, ...]:
    """Checks a list of patterns; returns it as a tuple."""
    return tuple(check_pattern(pattern, where=where) for pattern in check_names(value, where=where))


def _may_hang(items: Iterable[tuple[Any, Any]]) -> bool:
    """Whether a parsed pattern repeats what can match the same letters in several ways: each doubles the time.

    There is one way where each repetition begins with a letter that nothing else in it can match: ``(_[0-9]+)*``.
    """
    for op, argument in items:
        inner = _inner(argument)
        if op in _REPEATS and argument[1] > _FEW and any(map(_varies, inner)) and not _is_delimited(inner[0]):
            return True
        if any(map(_may_hang, inner)):
            return True
    return False


def _varies(items: Iterable[tuple[Any, Any]]) -> bool:
    return any(
        op is _PARSER.BRANCH or (op in _REPEATS and argument[0] != argument[1]) or any(map(_varies, _inner(argument)))
        for op, argument in items
    )


def _is_delimited(body: Any) -> bool:
    """Whether a repetition is a letter, and then what cannot match that letter, of which one part varies in length."""
    while len(body) == 1 and body[0][0] is _PARSER.SUBPATTERN:
        body = body[0][1][-1]
    if not len(body) or body[0][0] is not _PARSER.LITERAL:
        return False
    letter, rest = chr(body[0][1]), list(body)[1:]
    repeats = [argument for op, argument in rest if op in _REPEATS]
    single = [
        argument[2] if op in _REPEATS else _PARSER.SubPattern(body.state, [(op, argument)]) for op, argument in rest
    ]
    is_simple = all(len(one) == 1 and one[0][0] in _ONE_LETTER for one in single)
    return (
        is_simple
        and sum(low != high for low, high, _ in repeats) <= 1
        and not any(_COMPILER.compile(one).match(letter) for one in single)
    )


def _inner(argument: Any) -> list[Any]:
    if isinstance(argument, _PARSER.SubPattern):
        return [argument]
    return [found for each in argument for found in _inner(each)] if isinstance(argument, (tuple, list)) else []


def is_layer_pattern(pattern: str) -> bool:
    """Whether a pattern is for a layer, not for names of nodes."""
    return pattern.startswith(LAYER)


def layer_components(pattern: str) -> tuple[str, ...]:
    """The regular expressions of a layer's pattern, one for each name of its path."""
    return tuple(pattern.removeprefix(LAYER).strip().split("/"))


@dataclasses.dataclass(frozen=True)
class Kind:
    """Which values settings of a kind may have."""

    values: str  #: the valid ones, for people
    #: turns the text of a variable into a value; called with the text and the variable's name
    read: Callable[[str, str], Any]
    check: Callable[..., Any]  #: returns the value for what Python gave; called with that, and ``where``


def read_bool(text: str, name: str) -> bool:
    """Reads yes or no."""
    lowered = text.strip().lower()
    if lowered not in ("1", "true", "0", "false", ""):
        raise invalid(text, name, "1, true, 0, false")
    return lowered in ("1", "true")


def choice(valid: tuple[str, ...], normalize: Callable[[str], str] = str) -> Kind:
    """One of some words; of a variable as ``normalize`` turns its text into one."""

    def read(text: str, name: str) -> str:
        normalized = normalize(text.strip())
        return normalized if normalized in valid else check_choice(text, valid, where=name)

    return Kind(", ".join(valid), read, functools.partial(check_choice, valid=valid))


def dtype(valid: tuple[str, ...]) -> Kind:
    """The name of a type, in its long or short form; from Python also the type itself."""
    words = choice(valid, lambda text: SHORT_NAMES.get(text.lower(), text.lower()))
    short = {name: alias for alias, name in SHORT_NAMES.items()}
    values = ", ".join(f"{name} ({short[name]})" if name in short else name for name in valid)
    return Kind(values, words.read, lambda value, where: check_choice(dtype_name(value), valid, where=where))


def read_names(text: str, name: str) -> tuple[str, ...]:
    """Reads words separated by commas."""
    return tuple(item for item in (part.strip() for part in text.split(",")) if item)


def read_patterns(text: str, name: str) -> tuple[str, ...]:
    """Reads patterns separated by commas outside of brackets, so that ``conv_[0-9]{1,2}`` is one pattern."""
    items, depth, start = [], 0, 0
    for token in _PATTERN_TOKENS.finditer(text):
        if token[0] in "({":
            depth += 1
        elif token[0] in ")}":
            depth = max(depth - 1, 0)
        elif token[0] == "," and not depth:
            items.append(text[start : token.start()])
            start = token.end()
    items.append(text[start:])
    return check_patterns([item.strip() for item in items if item.strip()], where=name)


def path(what: str, check: Callable[..., str | None] = check_path) -> Kind:
    """The path of something, such as ``"a folder"``."""
    return Kind(what, lambda text, _: text, check)


def check_batch(batch: object, *, where: str) -> tuple[int, ...]:
    """Returns the batch sizes to weigh, the largest first: one, or the smallest and the largest of a range.

    ``None`` is any size, :data:`ANY_BATCH`.
    """
    if batch is None:
        batch = ANY_BATCH
    sizes = batch if isinstance(batch, tuple) else (batch,)
    are_sizes = all(isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in sizes)
    if len(sizes) not in (1, 2) or not are_sizes or list(sizes) != sorted(sizes):
        raise invalid(batch, where, "a batch size from 1 on, or a pair of them, the smaller one first")
    return tuple(sorted(set(sizes), reverse=True))


def read_batch(text: str, name: str) -> tuple[int, ...]:
    """Reads a batch size, ``8``, or the smallest and the largest of a range, ``1-32``."""
    parts = [part.strip() for part in text.split("-")]
    if len(parts) > 2 or not all(part.isascii() and part.isdigit() for part in parts):
        raise invalid(text, name, "a batch size such as 8, or a range such as 1-32")
    sizes = tuple(map(int, parts))
    check_batch(sizes, where=name)
    return sizes


YES_OR_NO = Kind("1, 0", read_bool, check_bool)
NAMES = Kind("op names, comma-separated", read_names, check_names)
PATTERNS = Kind(
    "layer: and a layer's path, or regular expressions for names of nodes, comma-separated",
    read_patterns,
    check_patterns,
)
