"""The lists of one table after the user's changes and the level are applied."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping

from amp_tf.config import LIST_NAMES, AmpConfig
from amp_tf.oplists.table import ALLOW, CUDA, DENY, INFER, ROWS, OpRow


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

    def joined(self, joins: Mapping[str, str], level: str) -> OpLists:
        """The same lists once the user had ops join others, op to list, under a level."""
        others = self.without(frozenset(joins)).list_of
        if level == "TREAT_INFER_AS_DENY":
            joins = {op: DENY if name == INFER else name for op, name in joins.items()}
        if level == "TENSOR_CORES_ONLY" and self.table == CUDA:
            joins = {op: name for op, name in joins.items() if name == ALLOW}
        return dataclasses.replace(self, list_of={**others, **joins})

    def members(self, op_list: str) -> list[str]:
        """The ops of one list, sorted."""
        return sorted(op for op, name in self.list_of.items() if name == op_list)


@functools.lru_cache(maxsize=64)
def build_lists(table: str, config: AmpConfig, more: tuple[OpRow, ...] = ()) -> OpLists:
    """The lists of a table under a configuration. An op that the user adds to one list leaves the one that it is on.

    The level is applied as TensorFlow's pass does: ``TREAT_INFER_AS_DENY`` moves the infer list to the deny list;
    ``TENSOR_CORES_ONLY`` empties all lists but the allow list on the ``cuda`` table, what the user added included.

    Args:
        table: ``cuda`` or ``cpu``.
        config: the configuration.
        more: rows beside the table's: what libraries registered.
    """
    joins = {
        op: name
        for name in LIST_NAMES
        for op in {*getattr(config, f"{name}_add")}.difference(getattr(config, f"{name}_remove"))
    }
    members: dict[str, set[str]] = {name: set() for name in LIST_NAMES}
    for row in (*ROWS, *more):
        if row.table == table and row.op not in joins and row.op not in getattr(config, f"{row.op_list}_remove"):
            members[row.op_list].add(row.op)
    for op, name in joins.items():  # each joins one list only: AmpConfig sees to it
        members[name].add(op)
    if config.level == "TENSOR_CORES_ONLY" and table == CUDA:
        members = {name: ops if name == ALLOW else set() for name, ops in members.items()}
    if config.level == "TREAT_INFER_AS_DENY":
        members[DENY] |= members[INFER]
        members[INFER] = set()
    list_of = {op: name for name in LIST_NAMES for op in sorted(members[name])}
    return OpLists(table, list_of, force_all=config.level == "UNSAFE_FORCE_ALL")
