"""Ops by the names that users give: those of custom libraries, and those in list changes.

*Ops of custom libraries* are registered, each in one line that says on which list it belongs. A
registration is a row of the table for every device. It counts for all graphs that are rewritten
afterwards, until the process ends, and the user's settings override it. TensorFlow need not know
the op yet, and has the last word: without a 16-bit kernel on its device, the op stays float32 as
any other does.

*A name that TensorFlow does not know* is an error of the API: the name is misspelt or its library
was forgotten. The hooks warn once, leave the name out, and look again at each graph, because a
program may load its ops after its first graph.

*A removal that changes nothing* is never an error: the lists of GPUs and CPUs differ, and leaving
all lists before joining one moves an op wherever it is (joining alone does that too). It is
reported once, unless another setting concerns the op.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import re
from collections.abc import Iterator
from typing import Any

from amp_tf.config import LIST_NAMES, AmpConfig, ListName, setting_name
from amp_tf.errors import ConfigError, OpListError
from amp_tf.oplists.table import ROWS, TABLES, OpRow
from amp_tf.values import check_choice

_NAME = re.compile(r"[A-Za-z_][\w>./]*")  # TensorFlow's own form, and the _ of its internal ops
_WHERE = "amp_tf.register_op"

# Of the process, as the libraries of ops are. Each access is one of a dict, so there is no lock.
_rows: dict[str, tuple[OpRow, ...]] = {}


def register_op(op: str, *, list: ListName, why: str) -> None:
    """Puts an op of a custom library on a list, for this process; once more with the same list does
    no harm.

    Example::

        amp_tf.register_op("MyAttention", list="allow", why="is a product and sums in float32")

    Args:
        op: its name, as in ``REGISTER_OP``; the library may be loaded later.
        list: ``"allow"`` for products, which 16 bit makes faster; ``"infer"`` for what is safe in
            16 bit beside them; ``"clear"`` for what only moves, selects or compares values;
            ``"deny"`` for what needs float32.
        why: the reason, as words that complete "because it …"; explain and the report show it.

    Raises:
        ConfigError: the name, the list or the reason is not valid.
        OpListError: the op is one of amp_tf's own lists, or was registered for another list.
    """
    if not isinstance(op, str) or not _NAME.fullmatch(op):
        raise ConfigError(
            f"{op!r} is not the name of an op", where=_WHERE, fix="Write it as REGISTER_OP has it"
        )
    name = check_choice(list, LIST_NAMES, where=f"{_WHERE}({op!r}, list)")
    if not isinstance(why, str) or not why.strip():
        fix = 'Write words that complete "because it …", such as "is a product and sums in float32"'
        raise ConfigError(f"{why!r} is no reason", where=f"{_WHERE}({op!r}, why)", fix=fix)
    if own := dict.fromkeys(row.op_list for row in ROWS if row.op == op):
        raise OpListError(
            f"op {op!r} is on the {' and the '.join(own)} list of amp_tf itself",
            where=_WHERE,
            fix=(
                "Its row stays for all; a program moves it for itself by "
                f"{setting_name(f'{name}_add')}"
            ),
        )
    rows = tuple(OpRow(op, table, name, why.strip()) for table in TABLES)
    before = _rows.setdefault(op, rows)[0]
    if before.op_list != name:
        raise OpListError(
            f"op {op!r} is registered for the {before.op_list} list (it {before.why})",
            where=_WHERE,
            fix=f"Register it once; a program moves it for itself by {setting_name(f'{name}_add')}",
        )
    _rows[op] = rows


def registered_rows() -> tuple[OpRow, ...]:
    """The rows of all registered ops, sorted by name."""
    return tuple(row for op in sorted(_rows) for row in _rows[op])


def find_registered(op: str) -> OpRow | None:
    """The row of an op; ``None`` where it is not registered."""
    return next(iter(_rows.get(op, ())), None)


@dataclasses.dataclass(frozen=True)
class UnknownOp:
    """A name in a list change, a field of :class:`AmpConfig`, that no registered op has."""

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
        import tensorflow as tf

        names = {
            name.lower(): name for name in sorted({*dir(tf.raw_ops), *(row.op for row in ROWS)})
        }
        close = [
            names[name] for name in difflib.get_close_matches(self.op.lower(), names, cutoff=0.7)
        ]
        return f"Did you mean {' or '.join(map(repr, close))}? " if close else ""


def find_unknown(config: AmpConfig) -> tuple[UnknownOp, ...]:
    """The names in the list changes that no op has which is registered now, each with its field."""
    from tensorflow.python.framework import op_def_registry

    return tuple(
        UnknownOp(field, op) for field, op in _changes(config) if op_def_registry.get(op) is None
    )


def without(config: AmpConfig, unknown: tuple[UnknownOp, ...]) -> AmpConfig:
    """The configuration without some names; the same object where there are none."""
    fields = {entry.field for entry in unknown}
    kept: dict[str, Any] = {
        field: tuple(op for op in getattr(config, field) if UnknownOp(field, op) not in unknown)
        for field in fields
    }
    return dataclasses.replace(config, **kept) if kept else config


def check(config: AmpConfig) -> None:
    """Refuses names that TensorFlow does not know, and warns once about removals that change
    nothing.

    Raises:
        OpListError: an op is not registered; the message names the setting and the closest ops.
    """
    for unknown in find_unknown(config):
        raise OpListError(
            unknown.what,
            where=unknown.where,
            fix=(
                f"{unknown.guess}An op of a library of your own must be loaded before "
                "(tf.load_op_library)"
            ),
        )
    for field, op in find_idle_removals(config):
        _warn_once(field, op)


def find_idle_removals(config: AmpConfig) -> tuple[tuple[str, str], ...]:
    """Removals (field, op) from a list that the op is not on, on no table, unless other changes
    concern the op too.
    """
    changes = tuple(_changes(config))
    rows = (*ROWS, *registered_rows())
    return tuple(
        (field, op)
        for field, op in changes
        if field.endswith("_remove")
        and not any((row.op, row.op_list) == (op, field.removesuffix("_remove")) for row in rows)
        and not any(other == op and name != field for name, other in changes)
    )


def _changes(config: AmpConfig) -> Iterator[tuple[str, str]]:
    for name in LIST_NAMES:
        for action in ("add", "remove"):
            field = f"{name}_{action}"
            for op in dict.fromkeys(getattr(config, field)):
                yield field, op


@functools.lru_cache(maxsize=256)
def _warn_once(field: str, op: str) -> None:
    from absl import logging  # TensorFlow's; where that is missing, doctor says so

    lists = " and the ".join(sorted({row.op_list for row in ROWS if row.op == op}))
    logging.warning(
        "amp_tf: %s: op %r is not on the %s list, so removing it changes nothing. %s.",
        setting_name(field),
        op,
        field.removesuffix("_remove"),
        f"It is on the {lists} list" if lists else "It is on no list",
    )
