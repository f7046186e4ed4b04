"""What ops are is said in oplists alone: elsewhere stands no set of op names, and single names only where listed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from tensorflow.core.framework import op_def_pb2
from tensorflow.python.client import pywrap_tf_session

import amp_tf
from amp_tf.oplists import cost_tables, fusions, table

PACKAGE = Path(amp_tf.__file__).parent

# Each compares with the one op whose meaning it is about, or makes nodes of it. The list may only get shorter.
STANDING = {
    "cpu/economy.py": {"Enter"},
    "cpu/folding.py": {"BiasAdd", "Mul"},
    "cpu/hoisting.py": {"Enter", "Identity", "Merge", "Switch"},
    "hooks/summary.py": {"Placeholder"},
    "graph/attributes.py": {"Const", "_Arg"},
    "graph/edits.py": {"Cast", "Const", "Reshape"},
    "graph/reader.py": {"_Retval"},
    "offline/explain.py": {"BiasAdd"},
    "painting/kernels.py": {"Const", "Exp", "Neg"},
    "painting/lists.py": {"Identity"},
    "painting/origins.py": {"BiasAdd", "Const", "NextIteration"},
    "painting/range.py": {"Const", "Mul"},
    "painting/ties.py": {"Enter", "Merge", "NextIteration"},
    "painting/work.py": {"Einsum", "Enter"},
    "tools/comparing/flattening.py": {"Const", "InfeedDequeue"},
    "tools/comparing/joining.py": {"Const", "VarHandleOp"},
    "tools/comparing/nodes.py": {"Cast", "Enter", "Exit", "Merge", "NextIteration", "Switch"},
    "tools/comparing/pipeline.py": {"Enter"},
    "tools/comparing/ranges.py": {"Const"},
    "tools/comparing/sessions.py": {"Placeholder"},
}


@pytest.fixture(scope="module")
def ops() -> set[str]:
    """The names of all ops that TensorFlow has."""
    registered = op_def_pb2.OpList.FromString(pywrap_tf_session.TF_GetBuffer(pywrap_tf_session.TF_GetAllOpList()))
    return {op.name for op in registered.op if len(op.name) > 1}  # single letters are ops of tests


def sources() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        if {"oplists", "calibrating"}.isdisjoint(path.parts):  # the second names the ops whose figures it measures
            yield path.relative_to(PACKAGE).as_posix(), ast.parse(path.read_text(encoding="utf-8"))


def names_in(tree: ast.AST, ops: set[str]) -> set[str]:
    constants = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return {value for value in constants if isinstance(value, str) and value in ops}


def test_single_op_names_stand_outside_oplists_only_where_listed(ops):
    assert {name: found for name, tree in sources() if (found := names_in(tree, ops))} == STANDING


def test_no_set_of_op_names_stands_outside_oplists(ops):
    kinds = (ast.Set, ast.Tuple, ast.List, ast.Dict)
    found = [
        (name, ast.unparse(node))
        for name, tree in sources()
        for node in ast.walk(tree)
        if isinstance(node, kinds)
        and len([n for n in ast.iter_child_nodes(node) if isinstance(n, ast.Constant) and n.value in ops]) > 1
    ]
    assert found == []


def test_the_names_in_traits_are_those_of_ops(ops):
    named = {name: value for module in (table, cost_tables, fusions) for name, value in vars(module).items()}
    traits = {name: value for name, value in named.items() if isinstance(value, table.Trait)}
    assert len(traits) > 40
    assert {name: trait - ops for name, trait in traits.items() if trait - ops} == {}
