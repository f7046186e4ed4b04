from __future__ import annotations

import ast
import inspect

import pytest
import tensorflow as tf
from tensorflow.python.framework import kernels, op_def_registry

from amp_tf.config import LIST_NAMES
from amp_tf.oplists import table
from amp_tf.oplists.table import AMP_TF, CPU, CUDA, ROWS, SUCCESSORS, TABLES, TENSORFLOW
from tests.parity.op_pool import lists_of_header

VERSION = tuple(map(int, tf.__version__.split(".")[:2]))


def ours(name, op_list, origin=TENSORFLOW):
    return {row.op for row in ROWS if (row.table, row.op_list, row.origin) == (name, op_list, origin)}


def test_the_header_is_read_in_full():
    assert set(lists_of_header(CUDA)) == set(lists_of_header(CPU)) == set(LIST_NAMES)
    assert {"MatMul", "BlockLSTM", "BatchMatMulV2", "Conv3D"} <= lists_of_header(CUDA)["allow"]
    assert "Rsqrt" not in lists_of_header(CUDA)["infer"]
    assert {"TensorListStack", "Relu"} <= lists_of_header(CUDA)["clear"]
    assert {"Exp", "SaveV2"} <= lists_of_header(CPU)["deny"]


@pytest.mark.skipif(VERSION < (2, 21), reason="the lists of TensorFlow before 2.21 are smaller")
@pytest.mark.parametrize("table_name", TABLES)
@pytest.mark.parametrize("op_list", LIST_NAMES)
def test_the_tables_are_the_headers(table_name, op_list):
    assert ours(table_name, op_list) == lists_of_header(table_name)[op_list]


@pytest.mark.skipif(VERSION >= (2, 21), reason="the tables are compared in full from TensorFlow 2.21 on")
@pytest.mark.parametrize("table_name", TABLES)
@pytest.mark.parametrize("op_list", LIST_NAMES)
def test_the_tables_hold_all_that_an_older_header_lists(table_name, op_list):
    assert lists_of_header(table_name)[op_list] <= ours(table_name, op_list)


def test_an_op_is_on_one_list_of_a_table_at_most():
    keys = [(row.table, row.op) for row in ROWS]
    assert len(set(keys)) == len(keys)


def test_every_row_says_why_in_words_that_complete_a_sentence():
    for row in ROWS:
        assert row.why[0].islower(), row
        assert not row.why.endswith("."), row
        assert row.table in TABLES
        assert row.op_list in LIST_NAMES
        assert row.origin in (TENSORFLOW, AMP_TF)


@pytest.mark.parametrize(
    "names", [table.TENSOR_LIST_READERS, table.TENSOR_LIST_WRITERS, table.TENSOR_LIST_BOUNDARIES - {"_Arg", "_Retval"}]
)
def test_the_ops_with_a_part_to_play_are_registered(names):
    assert [op for op in names if op_def_registry.get(op) is None] == []


def test_readers_and_writers_are_on_the_clear_list_and_no_op_is_both():
    clear = ours(CUDA, "clear")
    assert clear >= table.TENSOR_LIST_READERS | table.TENSOR_LIST_WRITERS
    assert not table.TENSOR_LIST_READERS & table.TENSOR_LIST_WRITERS


@pytest.mark.parametrize("op", SUCCESSORS)
def test_a_successor_differs_from_its_op_by_one_type_attribute(op):
    successor, added = SUCCESSORS[op]
    old, new = op_def_registry.get(op), op_def_registry.get(successor)
    assert {attr.name for attr in new.attr} - {attr.name for attr in old.attr} == {added}
    assert [arg.name for arg in old.input_arg] == [arg.name for arg in new.input_arg]
    assert len(old.output_arg) == len(new.output_arg)


def test_no_trait_is_defined_twice():
    """The second definition would count for both."""
    targets = [
        target.id
        for statement in ast.parse(inspect.getsource(table)).body
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        if isinstance(target, ast.Name)
    ]
    assert len(targets) > 50
    assert len(set(targets)) == len(targets)


def test_our_own_rows_are_ops_that_this_tensorflow_has():
    own = {row.op for row in ROWS if row.origin == AMP_TF}
    assert own
    for op in own:
        assert op_def_registry.get(op) is not None, op
        assert kernels.get_registered_kernels_for_op(op).kernel, op
