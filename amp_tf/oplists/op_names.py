"""Op names in the user's list changes that do nothing: TensorFlow knows no such op, or it is not on the list.

A name that TensorFlow does not know is an error of the API: what a rewrite is asked to convert must be loaded before
it, so the name is misspelt or its library was forgotten. In the hooks it is no failure, because a program may load its
ops after its first graph: they say so once, leave the name out, and look again at each graph.

A removal that changes nothing is never an error: the lists of GPUs and CPUs differ, and to leave all lists before
joining one is the way to move an op wherever it is. It is reported once, where no other setting concerns the op.

To join is enough: the op leaves the list that it was on. On two lists at once TensorFlow's pass stops, so nothing that
works there means something else.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
from collections.abc import Iterator
from typing import Any

from absl import logging

from amp_tf.config import LIST_NAMES, AmpConfig, setting_name
from amp_tf.errors import OpListError
from amp_tf.oplists import registered
from amp_tf.oplists.table import ROWS

_CLOSE = 0.7
_NAMED = 3


@dataclasses.dataclass(frozen=True)
class UnknownOp:
    """A name in a list change that no registered op has.

    Attributes:
        field: the field of :class:`AmpConfig` that holds it.
        op: the name.
    """

    field: str
    op: str

    @property
    def where(self) -> str:
        """The setting, under its name in Python and in the environment."""
        return setting_name(self.field)

    @property
    def what(self) -> str:
        return f"TensorFlow knows no op {self.op!r}"

    @property
    def guess(self) -> str:
        """The ops whose names are the closest, as a question; empty if none is close."""
        names = _known_names()
        close = [names[name] for name in difflib.get_close_matches(self.op.lower(), names, n=_NAMED, cutoff=_CLOSE)]
        return f"Did you mean {' or '.join(map(repr, close))}? " if close else ""


def find_unknown(config: AmpConfig) -> tuple[UnknownOp, ...]:
    """The names in the list changes that no op has which is registered now, each with its field."""
    return tuple(UnknownOp(field, op) for field, op in _changes(config) if not _is_registered(op))


def without(config: AmpConfig, unknown: tuple[UnknownOp, ...]) -> AmpConfig:
    """The configuration without some names; the same object where there are none."""
    if not unknown:
        return config
    left_out = {(entry.field, entry.op) for entry in unknown}
    kept: dict[str, Any] = {
        field: tuple(op for op in getattr(config, field) if (field, op) not in left_out)
        for field in {entry.field for entry in unknown}
    }
    return dataclasses.replace(config, **kept)


def check(config: AmpConfig) -> None:
    """Refuses names that TensorFlow does not know, and tells once of removals that change nothing.

    Raises:
        OpListError: an op is not registered; the message names the setting and the closest ops.
    """
    for unknown in find_unknown(config):
        raise OpListError(
            unknown.what,
            where=unknown.where,
            fix=f"{unknown.guess}An op of a library of your own must be loaded before (tf.load_op_library)",
        )
    for field, op in find_idle_removals(config):
        _tell_once(field, op)


def find_idle_removals(config: AmpConfig) -> tuple[tuple[str, str], ...]:
    """Removals (field, op) from a list that the op is not on, on no table, unless other changes concern the op too."""
    changes = tuple(_changes(config))
    return tuple(
        (field, op)
        for field, op in changes
        if field.endswith("_remove")
        and field.removesuffix("_remove") not in _lists_with(op)
        and not any(other == op and name != field for name, other in changes)
    )


def _changes(config: AmpConfig) -> Iterator[tuple[str, str]]:
    for name in LIST_NAMES:
        for action in ("add", "remove"):
            field = f"{name}_{action}"
            for op in dict.fromkeys(getattr(config, field)):
                yield field, op


def _is_registered(op: str) -> bool:
    from tensorflow.python.framework import op_def_registry

    return op_def_registry.get(op) is not None


def _lists_with(op: str) -> set[str]:
    """The lists that an op is on, registered ones included."""
    row = registered.find(op)
    return _lists_of().get(op, set()) | ({row.op_list} if row else set())


@functools.cache
def _lists_of() -> dict[str, set[str]]:
    """The lists that each op is on, of all tables."""
    lists: dict[str, set[str]] = {}
    for row in ROWS:
        lists.setdefault(row.op, set()).add(row.op_list)
    return lists


def _known_names() -> dict[str, str]:
    """The ops that a user may mean, by their names in small letters."""
    import tensorflow as tf

    return {name.lower(): name for name in sorted({*dir(tf.raw_ops), *_lists_of()})}


@functools.lru_cache(maxsize=256)
def _tell_once(field: str, op: str) -> None:
    lists = " and the ".join(sorted(_lists_of().get(op, ())))
    logging.warning(
        "amp_tf: %s: op %r is not on the %s list, so removing it changes nothing. %s.",
        setting_name(field),
        op,
        field.removesuffix("_remove"),
        f"It is on the {lists} list" if lists else "It is on no list",
    )
