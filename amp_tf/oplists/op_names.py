"""Op names that users give: ops of custom libraries, and ops in list changes.

*Ops of custom libraries* are registered, each in one line that says on which list it belongs. A
registration is a row of the table for every device. It counts for all graphs that are rewritten
afterwards, until the process ends, and the user's settings override it. TensorFlow need not know
the op yet. If it has no 16-bit kernel on its device, the op stays float32, as any other does.

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
from collections.abc import Collection, Iterator
from typing import Any

from amp_tf.config import LIST_NAMES, AmpConfig, ListName, setting_name
from amp_tf.errors import ConfigError, OpListError
from amp_tf.oplists.table import ROWS, TABLES, OpRow
from amp_tf.values import check_choice

_NAME = re.compile(r"[A-Za-z_][\w>./]*")  # TensorFlow's own form, and the _ of its internal ops
_WHERE = "amp_tf.register_op"

# The process has one set of op libraries. Each access is one of a dict, so there is no lock.
_rows: dict[str, tuple[OpRow, ...]] = {}


def register_op(op: str, *, list: ListName, why: str) -> None:
    """Puts an op of a custom library on a list, for this process; a repetition does no harm.

    Example::

        amp_tf.register_op("MyAttention", list="allow", why="is a product and sums in float32")

    Args:
        op: its name, as in ``REGISTER_OP``; the library may be loaded later.
        list: ``"allow"`` for products, which are faster in 16 bit; ``"infer"`` for ops that are
            safe in 16 bit beside them; ``"clear"`` for ops that only move, select or compare
            values; ``"deny"`` for ops that need float32.
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
        raise ConfigError(
            f"{why!r} is no reason",
            where=f"{_WHERE}({op!r}, why)",
            fix=(
                'Write words that complete "because it …", such as "is a matrix product and sums '
                'in float32"'
            ),
        )
    move = f"a program moves it for itself by {setting_name(f'{name}_add')}"
    own = _own_lists(op)
    if own:
        raise OpListError(
            f"op {op!r} is on the {' and the '.join(own)} list of amp_tf itself",
            where=_WHERE,
            fix=f"Its row stays for all; {move}",
        )
    rows = tuple(OpRow(op, table, name, why.strip()) for table in TABLES)
    before = _rows.setdefault(op, rows)[0]
    if before.op_list != name:
        raise OpListError(
            f"op {op!r} is registered for the {before.op_list} list (it {before.why})",
            where=_WHERE,
            fix=f"Register it once; {move}",
        )
    _rows[op] = rows


def registered_rows() -> tuple[OpRow, ...]:
    """The rows of all registered ops, sorted by name."""
    rows: tuple[OpRow, ...] = ()
    for op in sorted(_rows):
        rows += _rows[op]
    return rows


def find_registered(op: str) -> OpRow | None:
    """The row of an op; ``None`` where it is not registered."""
    return next(iter(_rows.get(op, ())), None)


def _own_lists(op: str) -> Collection[str]:
    """The lists of amp_tf itself that an op is on, each once, in the order of the table."""
    return dict.fromkeys(row.op_list for row in ROWS if row.op == op)


@dataclasses.dataclass(frozen=True)
class UnknownOp:
    """A name in a list change (a field of :class:`AmpConfig`) that is no registered op's."""

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

        ops = {*dir(tf.raw_ops), *(row.op for row in ROWS)}
        names = {name.lower(): repr(name) for name in sorted(ops)}
        close = difflib.get_close_matches(self.op.lower(), names, cutoff=0.7)
        if not close:
            return ""
        return f"Did you mean {' or '.join(map(names.__getitem__, close))}? "


def find_unknown(config: AmpConfig) -> tuple[UnknownOp, ...]:
    """Finds the names in the list changes that are no registered op's."""
    from tensorflow.python.framework import op_def_registry

    unknown = []
    for field, op in _changes(config):
        if op_def_registry.get(op) is None:
            unknown.append(UnknownOp(field, op))
    return tuple(unknown)


def without(config: AmpConfig, unknown: tuple[UnknownOp, ...]) -> AmpConfig:
    """The configuration without some names; the same object where there are none."""
    kept: dict[str, Any] = {}
    for entry in unknown:
        names = kept.get(entry.field, getattr(config, entry.field))
        kept[entry.field] = tuple(name for name in names if name != entry.op)
    return dataclasses.replace(config, **kept) if kept else config


def check(config: AmpConfig) -> None:
    """Refuses names that TensorFlow does not know; warns once about removals without effect.

    Raises:
        OpListError: an op is not registered; the message names the setting and the closest ops.
    """
    for unknown in find_unknown(config):
        load = "An op of a library of your own must be loaded before (tf.load_op_library)"
        raise OpListError(unknown.what, where=unknown.where, fix=f"{unknown.guess}{load}")
    for field, op in find_idle_removals(config):
        _warn_once(field, op)


def find_idle_removals(config: AmpConfig) -> tuple[tuple[str, str], ...]:
    """Finds removals without effect: the op is not on the list, and no other change concerns it.

    Returns:
        The field and the op of each.
    """
    changes = list(_changes(config))
    changed = [op for _, op in changes]
    listed = {(f"{row.op_list}_remove", row.op) for row in (*ROWS, *registered_rows())}
    idle = []
    for field, op in changes:
        is_removal = field.endswith("_remove")
        if is_removal and (field, op) not in listed and changed.count(op) == 1:
            idle.append((field, op))
    return tuple(idle)


def _changes(config: AmpConfig) -> Iterator[tuple[str, str]]:
    """Yields the field and the op of each list change, once."""
    for name in LIST_NAMES:
        for field in (f"{name}_add", f"{name}_remove"):
            for op in dict.fromkeys(getattr(config, field)):
                yield field, op


@functools.lru_cache(maxsize=256)
def _warn_once(field: str, op: str) -> None:
    from absl import logging  # TensorFlow requires it; doctor reports if it is missing

    lists = sorted(_own_lists(op))
    logging.warning(
        "amp_tf: %s: op %r is not on the %s list, so removing it changes nothing. "
        "It is on %s list.",
        setting_name(field),
        op,
        field.removesuffix("_remove"),
        f"the {' and the '.join(lists)}" if lists else "no",
    )
