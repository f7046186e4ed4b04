from __future__ import annotations

import pytest

from amp_tf.config import LEVELS, LIST_NAMES, AmpConfig
from amp_tf.oplists.table import ROWS, TABLES
from amp_tf.oplists.targets import build_lists


@pytest.mark.parametrize("table", TABLES)
def test_without_changes_the_lists_are_the_table(table):
    lists = build_lists(table, AmpConfig())
    assert dict(lists.list_of) == {row.op: row.op_list for row in ROWS if row.table == table}
    assert not lists.force_all


def test_members_are_the_ops_of_one_list_in_order():
    lists = build_lists("cuda", AmpConfig())
    assert lists.members("deny") == sorted(row.op for row in ROWS if (row.table, row.op_list) == ("cuda", "deny"))


@pytest.mark.parametrize("name", LIST_NAMES)
def test_an_op_joins_a_list(name):
    assert build_lists("cpu", AmpConfig(**{f"{name}_add": ("Cumsum",)})).list_of["Cumsum"] == name


@pytest.mark.parametrize(("name", "op"), [("allow", "MatMul"), ("infer", "Add"), ("deny", "Exp"), ("clear", "Relu")])
def test_an_op_leaves_a_list(name, op):
    assert op not in build_lists("cpu", AmpConfig(**{f"{name}_remove": (op,)})).list_of


def test_an_op_that_both_joins_and_leaves_is_off_the_list():
    assert "Cumsum" not in build_lists("cpu", AmpConfig(infer_add=("Cumsum",), infer_remove=("Cumsum",))).list_of


def test_an_op_moves_by_a_remove_and_an_add():
    assert build_lists("cuda", AmpConfig(deny_remove=("Sum",), infer_add=("Sum",))).list_of["Sum"] == "infer"


@pytest.mark.parametrize(("add", "op"), [("infer_add", "MatMul"), ("clear_add", "Exp"), ("clear_add", "Add")])
@pytest.mark.parametrize("table", TABLES)
def test_an_op_that_joins_a_list_leaves_the_one_that_it_is_on(table, add, op):
    assert build_lists(table, AmpConfig(**{add: (op,)})).list_of[op] == add.removesuffix("_add")


def test_an_addition_to_the_infer_list_is_denied_under_treat_infer_as_deny():
    config = AmpConfig(level="TREAT_INFER_AS_DENY", infer_add=("Exp",))
    assert build_lists("cpu", config).list_of["Exp"] == "deny"


@pytest.mark.parametrize("table", TABLES)
def test_treat_infer_as_deny_moves_the_whole_list(table):
    plain, level = build_lists(table, AmpConfig()), build_lists(table, AmpConfig(level="TREAT_INFER_AS_DENY"))
    assert level.members("infer") == []
    assert level.members("deny") == sorted(plain.members("deny") + plain.members("infer"))
    assert (level.members("allow"), level.members("clear")) == (plain.members("allow"), plain.members("clear"))


def test_tensor_cores_only_empties_all_but_the_allow_list_on_the_cuda_table_what_was_added_included():
    config = AmpConfig(level="TENSOR_CORES_ONLY", clear_add=("Cumsum",), allow_add=("MatrixSolve",))
    lists = build_lists("cuda", config)
    assert [lists.members(name) for name in ("infer", "deny", "clear")] == [[], [], []]
    assert {"MatMul", "MatrixSolve"} <= set(lists.members("allow"))


def test_tensor_cores_only_does_nothing_to_the_cpu_table():
    assert build_lists("cpu", AmpConfig(level="TENSOR_CORES_ONLY")).list_of == build_lists("cpu", AmpConfig()).list_of


@pytest.mark.parametrize("level", LEVELS)
def test_only_one_level_forces_all(level):
    assert build_lists("cuda", AmpConfig(level=level)).force_all == (level == "UNSAFE_FORCE_ALL")


def test_building_lists_leaves_the_table_as_it_was():
    before = tuple(ROWS)
    build_lists("cuda", AmpConfig(level="TREAT_INFER_AS_DENY", allow_add=("Cumsum",), clear_remove=("Relu",)))
    assert before == ROWS
    assert build_lists("cuda", AmpConfig()).list_of["Relu"] == "clear"
