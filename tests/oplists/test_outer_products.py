"""Einsums that sum nothing."""

from __future__ import annotations

import pytest
from tensorflow.core.framework import node_def_pb2

from amp_tf.oplists.outer_products import sums_nothing


def einsum(equation: str) -> node_def_pb2.NodeDef:
    node = node_def_pb2.NodeDef(name="einsum", op="Einsum")
    node.attr["equation"].s = equation.encode()
    return node


@pytest.mark.parametrize("equation", ["bi,j->bij", " i , j -> i j ", "bsd,d->bsd", "...n,d->...nd", "ab->ba", ",->"])
def test_an_equation_whose_labels_are_all_in_the_result_sums_nothing(equation):
    assert sums_nothing(einsum(equation))


@pytest.mark.parametrize("equation", ["ij,jk->ik", "aecd,abcd->acbe", "bij,j->bi", "i,i->", "...i,i->...", "...i,i->i"])
def test_an_equation_with_a_label_that_the_result_lacks_sums(equation):
    assert not sums_nothing(einsum(equation))


def test_a_node_without_an_equation_sums_and_is_not_changed():
    node = node_def_pb2.NodeDef(name="einsum", op="Einsum")
    assert not sums_nothing(node)
    assert "equation" not in node.attr
