"""Ops of custom libraries: each says in one line on which list it belongs.

A registration is a row of the table for every device. It counts for all graphs that are rewritten afterwards, in
whatever way, until the process ends; what the user's settings say of the op wins. TensorFlow need not know the op yet,
and has the last word: without a 16-bit kernel on its device, the op stays float32 as any other does.
"""

from __future__ import annotations

import re
import threading

from amp_tf.config import LIST_NAMES, ListName, setting_name
from amp_tf.errors import ConfigError, OpListError
from amp_tf.oplists.table import ROWS, TABLES, OpRow
from amp_tf.values import check_choice

REGISTERED = "registered"  #: the origin of the rows
_NAME = re.compile(r"[A-Za-z_][\w>./]*")  # TensorFlow's own form, and the _ of its internal ops
_WHERE = "amp_tf.register_op"

_lock = threading.Lock()
_rows: dict[str, tuple[OpRow, ...]] = {}


def register_op(op: str, *, list: ListName, why: str) -> None:
    """Puts an op of a custom library on a list, for this process; once more with the same list does no harm.

    Example::

        amp_tf.register_op("MyAttention", list="allow", why="is a matrix product and sums in float32")

    Args:
        op: its name, as in ``REGISTER_OP``; the library may be loaded later.
        list: ``"allow"`` for products, which 16 bit makes faster; ``"infer"`` for what is safe in 16 bit beside them;
            ``"clear"`` for what only moves, selects or compares values; ``"deny"`` for what needs float32.
        why: the reason, as words that complete "because it …"; explain and the report show it.

    Raises:
        ConfigError: the name, the list or the reason is not valid.
        OpListError: the op is one of amp_tf's own lists, or was registered for another list.
    """
    if not isinstance(op, str) or not _NAME.fullmatch(op):
        raise ConfigError(f"{op!r} is not the name of an op", where=_WHERE, fix="Write it as REGISTER_OP has it")
    name = check_choice(list, LIST_NAMES, where=f"{_WHERE}({op!r}, list)")
    if not isinstance(why, str) or not why.strip():
        fix = 'Write words that complete "because it …", such as "is a matrix product and sums in float32"'
        raise ConfigError(f"{why!r} is no reason", where=f"{_WHERE}({op!r}, why)", fix=fix)
    if own := dict.fromkeys(row.op_list for row in ROWS if row.op == op):
        raise OpListError(
            f"op {op!r} is on the {' and the '.join(own)} list of amp_tf itself",
            where=_WHERE,
            fix=f"Its row stays for all; a program moves it for itself by {setting_name(f'{name}_add')}",
        )
    with _lock:
        before = _rows.get(op, ())
        if before and before[0].op_list != name:
            raise OpListError(
                f"op {op!r} is registered for the {before[0].op_list} list (it {before[0].why})",
                where=_WHERE,
                fix=f"Register it once; a program moves it for itself by {setting_name(f'{name}_add')}",
            )
        _rows[op] = tuple(OpRow(op, table, name, why.strip(), REGISTERED) for table in TABLES)


def rows() -> tuple[OpRow, ...]:
    """The rows of all registered ops, sorted by name."""
    with _lock:
        return tuple(row for op in sorted(_rows) for row in _rows[op])


def find(op: str) -> OpRow | None:
    """The row of an op; ``None`` where it is not registered."""
    found = _rows.get(op)
    return found[0] if found else None


def forget() -> None:
    """Takes all registrations back, for tests."""
    with _lock:
        _rows.clear()
