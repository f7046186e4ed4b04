"""The lists of one table after the user's changes and the level are applied."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping

from amp_tf.config import LIST_NAMES, AmpConfig
from amp_tf.errors import OpListError
from amp_tf.oplists.table import ALLOW, CUDA, DENY, INFER, ROWS


@dataclasses.dataclass(frozen=True)
class OpLists:
    """Which list each op is on.

    Attributes:
        table: ``cuda`` or ``cpu``.
        list_of: op name to ``allow``, ``infer``, ``deny`` or ``clear``; ops on no list are absent.
        force_all: paint every op that can be 16 bit, whatever its list (level ``UNSAFE_FORCE_ALL``).
    """

    table: str
    list_of: Mapping[str, str]
    force_all: bool = False

    def without(self, ops: frozenset[str]) -> OpLists:
        """The same lists without some ops."""
        return dataclasses.replace(self, list_of={op: name for op, name in self.list_of.items() if op not in ops})

    def members(self, op_list: str) -> list[str]:
        """The ops of one list, sorted."""
        return sorted(op for op, name in self.list_of.items() if name == op_list)


@functools.lru_cache(maxsize=64)
def build_lists(table: str, config: AmpConfig) -> OpLists:
    """The lists of a table under a configuration.

    The level is applied as TensorFlow's pass does: ``TREAT_INFER_AS_DENY`` moves the infer list to the deny list;
    ``TENSOR_CORES_ONLY`` empties all lists but the allow list on the ``cuda`` table, what the user added included.

    Raises:
        OpListError: an op is on two lists; the message names the op and both lists.
    """
    members = {
        name: _change(
            {row.op for row in ROWS if row.table == table and row.op_list == name},
            getattr(config, f"{name}_add"),
            getattr(config, f"{name}_remove"),
        )
        for name in LIST_NAMES
    }
    if config.level == "TENSOR_CORES_ONLY" and table == CUDA:
        members = {name: ops if name == ALLOW else set() for name, ops in members.items()}
    if config.level == "TREAT_INFER_AS_DENY":
        members[DENY] |= members[INFER]
        members[INFER] = set()
    list_of: dict[str, str] = {}
    for name in LIST_NAMES:
        for op in sorted(members[name]):
            if op in list_of:
                raise OpListError(
                    f"op {op!r} is on the {list_of[op]} list and on the {name} list",
                    where=f"op lists ({table} table)",
                    fix=f"Take it off one of them, e.g. {list_of[op]}_remove=({op!r},) or {name}_remove=({op!r},)",
                )
            list_of[op] = name
    return OpLists(table, list_of, force_all=config.level == "UNSAFE_FORCE_ALL")


def _change(ops: set[str], add: tuple[str, ...], remove: tuple[str, ...]) -> set[str]:
    return (ops | set(add)) - set(remove)
