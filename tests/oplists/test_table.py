"""The tables are TensorFlow's, and what ops are is said there alone."""

import ast
import inspect
from pathlib import Path

import pytest
import tensorflow as tf
from tensorflow.core.framework import op_def_pb2
from tensorflow.python.client import pywrap_tf_session
from tensorflow.python.framework import kernels, op_def_registry

import amp_tf
from amp_tf.config import LIST_NAMES
from amp_tf.oplists import cost_tables, fusions, table
from amp_tf.oplists.table import CPU, CUDA, ROWS, SUCCESSORS, TABLES
from tests.parity.op_pool import OWN, lists_of_header

VERSION = tuple(map(int, tf.__version__.split(".")[:2]))


def ours(name, op_list):
    found = set()
    for row in ROWS:
        if row.table == name and row.op_list == op_list:
            found.add(row.op)
    return found - OWN


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


@pytest.mark.skipif(
    VERSION >= (2, 21), reason="the tables are compared in full from TensorFlow 2.21 on"
)
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


def test_readers_and_writers_are_on_the_clear_list_and_no_op_is_both():
    clear = ours(CUDA, "clear")
    assert clear >= table.TENSOR_LIST_READERS | table.TENSOR_LIST_WRITERS
    assert not table.TENSOR_LIST_READERS & table.TENSOR_LIST_WRITERS


@pytest.mark.parametrize("op", SUCCESSORS)
def test_a_successor_differs_from_its_op_by_one_type_attribute(op):
    successor, added = SUCCESSORS[op]
    old = op_def_registry.get(op)
    new = op_def_registry.get(successor)
    attributes = {attr.name for attr in old.attr}
    assert {attr.name for attr in new.attr} - attributes == {added}
    for was, now in zip(old.input_arg, new.input_arg, strict=True):
        assert was.name == now.name
    assert len(old.output_arg) == len(new.output_arg)


def test_no_trait_is_defined_twice():
    """The second definition would count for both."""
    targets = []
    for statement in ast.parse(inspect.getsource(table)).body:
        if isinstance(statement, ast.Assign):
            targets += [ast.unparse(target) for target in statement.targets]
    assert len(targets) > 50
    assert len(set(targets)) == len(targets)


def test_our_own_rows_are_ops_that_this_tensorflow_has():
    assert {row.op for row in ROWS} >= OWN
    for op in OWN:
        assert op_def_registry.get(op) is not None, op
        assert kernels.get_registered_kernels_for_op(op).kernel, op


PACKAGE = Path(amp_tf.__file__).parent

# Each compares with the one op whose meaning it is about, or makes nodes of it. The list may only
# get shorter.
STANDING = {
    "rewriting/folding.py": {"BiasAdd", "Const", "Mul", "Reshape"},
    "rewriting/hoisting.py": {"Enter", "Identity", "Merge", "Switch"},
    "graph/attributes.py": {"Const", "_Arg"},
    "graph/edits.py": {"Cast"},
    "graph/reader.py": {"_Retval"},
    "hooks/gradients.py": {"IsFinite"},
    "painting/kernels.py": {"Exp"},
    "painting/origins.py": {"Const"},
    "painting/passes.py": {"Identity"},
    "painting/ranges.py": {"Const", "Mul"},
    "painting/value_graph.py": {"Mul"},
    "painting/ties.py": {"Enter", "Merge", "NextIteration"},
    "painting/work.py": {"Einsum"},
    "tools/comparing/flattening.py": {"Const", "InfeedDequeue"},
    "tools/comparing/nodes.py": {
        "Cast",
        "Enter",
        "Exit",
        "LoopCond",
        "Merge",
        "NextIteration",
        "Switch",
    },
    "tools/comparing/pipeline.py": {"Enter"},
}


@pytest.fixture(scope="module")
def ops():
    """The names of all ops that TensorFlow has."""
    buffer = pywrap_tf_session.TF_GetAllOpList()
    serialized = pywrap_tf_session.TF_GetBuffer(buffer)
    registered = op_def_pb2.OpList.FromString(serialized)
    return {op.name for op in registered.op if len(op.name) > 1}  # single letters are ops of tests


def sources():
    left_out = {"oplists", "calibrating"}  # the second names the ops whose figures it measures
    for path in sorted(PACKAGE.rglob("*.py")):
        if left_out.isdisjoint(path.parts):
            name = path.relative_to(PACKAGE).as_posix()
            yield name, ast.parse(path.read_text(encoding="utf-8"))


def names_in(tree, ops):
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
    return found & ops


def test_single_op_names_stand_outside_oplists_only_where_listed(ops):
    standing = {}
    for name, tree in sources():
        found = names_in(tree, ops)
        if found:
            standing[name] = found
    assert standing == STANDING


def test_no_set_of_op_names_stands_outside_oplists(ops):
    found = []
    for name, tree in sources():
        for node in ast.walk(tree):
            if isinstance(node, (ast.Set, ast.Tuple, ast.List, ast.Dict)):
                values = []
                for child in ast.iter_child_nodes(node):
                    if isinstance(child, ast.Constant):
                        values.append(child.value)
                if len(ops.intersection(values)) > 1:
                    found.append((name, ast.unparse(node)))
    assert found == []


def test_the_names_in_traits_are_those_of_ops(ops):
    count = 0
    for module in (table, cost_tables, fusions):
        for name, value in vars(module).items():
            if isinstance(value, table.Trait):
                assert value <= ops, name
                count += 1
    assert count > 40
