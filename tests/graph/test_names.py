"""Patterns find nodes whatever these are inlined into, and new names are free."""

from __future__ import annotations

import pytest

from amp_tf.graph.names import FreshNames, closest_layers, describe_unmatched, matcher


def test_a_pattern_for_a_node_is_for_that_one_wherever_it_is_inlined_and_however_it_is_split():
    is_for = matcher("node: net/dense/MatMul ")
    for name in ("", "StatefulPartitionedCall/", "PartitionedCall/StatefulPartitionedCall_1/"):
        assert is_for(f"{name}net/dense/MatMul")
        assert is_for(f"{name}net/dense/MatMul-BiasAdd-0-AmpTfSplit")
    for name in (
        "net/dense/MatMul_1",
        "other/net/dense/MatMul",
        "gradient_tape/net/dense/MatMul",
        "net/dense",
    ):
        assert not is_for(name)
    assert matcher("node:a.b/c")("a.b/c")
    assert not matcher("node:a.b/c")("axb/c")


def test_of_many_patterns_that_match_nothing_a_few_are_told_and_how_many_more():
    told = describe_unmatched([f"node:{number}" for number in range(20_000)], ["MatMul"])
    assert told.startswith("node:0, node:1, ")
    assert told.endswith("node:9, and 19,990 more")


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("heda", ["head"]),
        ("atention", ["attention"]),
        ("model/encoder/heda", ["model/encoder/head"]),
    ],
)
def test_a_misspelt_layer_is_compared_with_the_names_of_paths_and_with_whole_paths(asked, meant):
    paths = ["model/encoder/attention", "model/encoder/head", "model/price"]
    assert closest_layers(asked, paths)[:1] == meant


def test_a_name_is_made_once_and_is_nobodys():
    names = FreshNames(["x-0-Fold", "y"], "Fold")
    assert [names.make("x"), names.make("x"), names.make("y")] == [
        "x-1-Fold",
        "x-2-Fold",
        "y-0-Fold",
    ]
