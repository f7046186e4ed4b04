"""What may stay in float32, and in which order it is tried."""

from __future__ import annotations

import pytest

from amp_tf.lock import Decision, Layer
from amp_tf.tools.search import decisions_of, find_items, holds, rank
from tests.tuning.programs import findings, layer, node, report


def test_a_layer_is_an_item_with_its_nodes_as_parts_the_costly_ones_first():
    (item,) = find_items(report("m/dense"))
    assert item.name == "m/dense"
    assert item.decisions == (Decision(Layer("m/dense", "MatMul Tanh", ("8x8",))),)
    assert item.operations == 2e6 + 1e3
    assert [part.name for part in item.parts] == [
        "m/dense/MatMul",
        "gradient_tape/m/dense/MatMul/MatMul",
        "m/dense/Tanh",
    ]


@pytest.mark.parametrize(
    "paths",
    [("m/block_0/query", "m/block_1/query"), ("m/dense", "m/dense_1", "m/dense_1_2"), ("m/blk0_1", "m/blk1_1")],
)
def test_layers_that_are_made_alike_are_one_item(paths):
    (item,) = find_items(report(*paths))
    assert item.name == f"{paths[0]} and {len(paths) - 1} like it"
    assert [part.name for part in item.parts] == list(paths)
    assert len(item.decisions) == len(paths)


def test_layers_of_other_names_or_structures_are_items_of_their_own():
    assert len(find_items(report("m/query_0", "m/key_0"))) == 2
    other = report("m/block_0", "m/block_1")
    other["graphs"][0]["layers"][1] = layer("m/block_1", "Conv2D")
    assert len(find_items(other)) == 2


def test_nodes_of_a_scope_with_layers_in_it_do_not_take_the_layers_with_them():
    found = report("m/dense")
    found["graphs"][0]["layers"].append(layer("m", "sum"))
    found["graphs"][0]["nodes"].append(node("m/add"))
    item = find_items(found)[1]
    assert item.decisions == (Decision(Layer("m", "sum", ("8x8",)), "m/add"),)
    assert not holds(item, "m/dense/MatMul")


def test_names_are_those_before_inlining_and_splitting():
    found = report("m/dense")
    found["graphs"][0]["nodes"] = [
        node("StatefulPartitionedCall/m/dense/Relu-MatMul-0-AmpTfSplit"),
        node("StatefulPartitionedCall/m/dense/Relu-BiasAdd-0-AmpTfSplit", 1e3),
        node("StatefulPartitionedCall/gradient_tape/m/dense/MatMul/MatMul"),
    ]
    (item,) = find_items(found)
    assert [part.name for part in item.parts] == ["m/dense/Relu", "gradient_tape/m/dense/MatMul/MatMul"]


def test_what_is_float32_is_no_item():
    found = report("m/a", "m/b")
    for row in found["graphs"][0]["nodes"][:3]:
        row["precision"] = "float32"
    assert [item.name for item in find_items(found)] == ["m/b"]


def test_what_the_comparison_finds_comes_first_in_its_order():
    items = find_items(report("m/a", "m/b", "m/c"))
    found = rank(items, findings("m/c/Tanh", "m/b/MatMul"))
    assert [item.name for item in found] == ["m/c", "m/b", "m/a"]


def test_then_comes_most_local_error_for_each_operation():
    small, large = report("m/a", "m/b"), report("m/c")
    for row in large["graphs"][0]["nodes"]:
        row["operations"] = 1e9
    items = find_items({"graphs": [*small["graphs"], *large["graphs"]]})
    errors = {"m/a/Tanh": 0.01, "m/b/Tanh": 0.02, "m/c/Tanh": 0.1, "m/b/MatMul": "inf"}
    nodes = [{"name": name, "local": error, "has_truth": True} for name, error in errors.items()]
    assert [item.name for item in rank(items, {"nodes": nodes})] == ["m/b", "m/a", "m/c"]
    del nodes[3]
    assert [item.name for item in rank(items, {"nodes": nodes})] == ["m/b", "m/a", "m/c"]


def test_decisions_of_items_are_each_once_by_name():
    items = find_items(report("m/b", "m/a"))
    assert [one.name for one in decisions_of([*items, *items])] == ["m/a", "m/b"]
