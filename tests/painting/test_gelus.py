"""Gelus are found where TensorFlow computes them with their product."""

from __future__ import annotations

import re

import pytest

from amp_tf.graph.reader import read_graph
from amp_tf.graph.templates import Templates
from amp_tf.painting.kernels import find_gelus
from tests.small_graphs import graph

PRODUCT = """
    x = Placeholder() shape=[64, 32]
    w = Placeholder() shape=[32, 16]
    b = Placeholder() shape=[16]
    half = Const() value=float32[]*0.5
"""
EXACT = """
    product = MatMul(x, w)
    biased = BiasAdd(product, b)
    root = Const() value=float32[]*0.70710678
    minus = Neg(biased)
    scaled = Mul(root, minus)
    core = Erfc(scaled)
    halved = Mul(core, half)
    out = Mul(halved, biased)
"""
APPROXIMATE = """
    biased = _FusedMatMul(x, w, b) num_args=1 fused_ops=['BiasAdd']
    third = Const() value=float32[]*0.044715
    root = Const() value=float32[]*0.79788456
    one = Const() value=float32[]*1
    square = Square(biased)
    cube = Mul(square, biased)
    part = Mul(third, cube)
    sum = AddV2(part, biased)
    scaled = Mul(sum, root)
    core = Tanh(scaled)
    above = AddV2(core, one)
    halved = Mul(above, half)
    out = Mul(halved, biased)
"""
READER = "\n    fetch = Softmax(out)\n"
KINDS = pytest.mark.parametrize("text", [EXACT, APPROXIMATE], ids=["exact", "approximate"])


def found(text):
    view = read_graph(graph(PRODUCT + text + READER), Templates())
    return [(view.names[gelu.biased], [view.names[node] for node in gelu.nodes]) for gelu in find_gelus(view)]


def parts(text):
    names = [line.split()[0] for line in text.splitlines() if line.strip() and "Const()" not in line]
    return set(names) - {"product", "biased"}


@KINDS
def test_a_gelu_is_found_with_all_of_its_nodes(text):
    [(biased, nodes)] = found(text)
    assert biased == "biased"
    assert set(nodes) == parts(text)
    assert nodes[-1] == "out"


@KINDS
def test_the_order_of_the_terms_of_sums_and_products_does_not_matter(text):
    turned = re.sub(r"(Mul|AddV2)\((\w+), (\w+)\)", r"\1(\3, \2)", text)
    assert turned != text
    assert len(found(turned)) == 1


@KINDS
@pytest.mark.parametrize("read", ["biased", "scaled", "core", "halved"])
def test_what_something_else_reads_makes_no_gelu(text, read):
    assert found(f"{text}    other = Softmax({read})") == []
    assert found(f"{text}    other = Mul({read}, {read})") == []


@KINDS
def test_what_reads_the_gelu_itself_does_not_matter(text):
    assert len(found(f"{text}    other = Mul(out, out)")) == 1


@KINDS
@pytest.mark.parametrize("change", [(r"\*0\.7", "*0.6"), (r"core = \w+", "core = Sin")], ids=["constant", "op"])
def test_other_constants_and_ops_make_no_gelu(text, change):
    assert found(re.sub(*change, text)) == []


def test_what_is_not_biased_makes_no_gelu():
    assert found(EXACT.replace("BiasAdd(product, b)", "AddV2(product, b)")) == []


def test_a_long_chain_of_arithmetic_ends_the_search():
    before = "    a0 = Neg(x)\n" + "".join(f"    a{i + 1} = Mul(a{i}, x)\n" for i in range(2000))
    behind = "    b0 = Tanh(a2000)\n" + "".join(f"    b{i + 1} = Mul(b{i}, x)\n" for i in range(2000))
    assert len(found(EXACT + before + behind)) == 1
