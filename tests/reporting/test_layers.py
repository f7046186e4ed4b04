"""The lists and tables of ``report().by_layer()``."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import tensorflow as tf

import amp_tf
from amp_tf.errors import ConfigError
from amp_tf.graph.layers import KerasLayer, recorded
from amp_tf.painting.reasons import Rule
from amp_tf.reporting import files
from amp_tf.reporting.reports import RewriteReport
from amp_tf.reporting.text import LayerReason, LayerReport, Layers
from tests.reporting.reported_graphs import reported, traced
from tests.small_graphs import graph

pytestmark = pytest.mark.usefixtures("local_rules")

TEXT = """
    x = Placeholder()
    w = Const() value=float32[4, 4]*1
    net_1/block_12_1/MatMul = MatMul(x, w)
    net_1/block_2_1/MatMul = MatMul(net_1/block_12_1/MatMul, w)
    net_1/block_2_1/Exp = Exp(net_1/block_2_1/MatMul)
    net_1/block_2_1/Tanh = Tanh(net_1/block_2_1/Exp)
    gradient_tape/net_1/block_2_1/MatMul/MatMul = MatMul(net_1/block_2_1/Tanh, w)
    loss/Exp = Exp(net_1/block_12_1/MatMul)
"""
SHOWN = """\
layer       16 bit  float32  why float32
block_2          2        2  1: its op is on the deny list
                             1: it uses values of the deny-list node 'net_1/block_2_1/Exp'
block_12         1        0
loss             0        1  1: its op is on the deny list
(no layer)       0        1  1: its op is on no list"""


@pytest.fixture(autouse=True)
def layers_of_keras() -> Iterator[None]:
    recorded.forget()
    for number in (2, 12):
        recorded.record(
            f"net_1/block_{number}_1", KerasLayer(f"block_{number}", ("net", f"block_{number}"))
        )
    yield
    recorded.forget()


def report(text: str = TEXT) -> RewriteReport:
    config = amp_tf.AmpConfig(precision="bfloat16", target="cpu")
    return amp_tf.rewrite(graph(text), config).report


def test_layers_are_listed_by_their_paths_with_what_is_16_bit_and_why_the_rest_is_not() -> None:
    text = TEXT.replace("x = Placeholder()", "y = Placeholder()\n    x = Sinh(y)")
    found = report(text).by_layer()
    cause = "it uses values of the deny-list node 'net_1/block_2_1/Exp'"
    reasons = (
        LayerReason(Rule.DENY_LIST, 1, "its op is on the deny list"),
        LayerReason(Rule.AFTER_DENY, 1, cause),
    )
    assert found[0] == LayerReport("block_2", 2, 2, None, None, reasons)
    assert [(layer.layer, layer.f16, layer.float32) for layer in found] == [
        ("block_2", 2, 2),
        ("block_12", 1, 0),
        ("loss", 0, 1),
        ("", 0, 1),
    ]
    assert str(found) == repr(found) == SHOWN


def test_operations_are_known_where_a_report_was_asked_for() -> None:
    def function(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
        with tf.name_scope("net_1/block_2_1"):
            x = tf.matmul(x, w)
        with tf.name_scope("net_1/block_12_1"):
            return tf.exp(tf.matmul(x, w))

    found = reported(traced(function, (16, 8), (8, 8)), keep_float32=("layer:block_12",)).by_layer()
    assert {layer.layer: layer.share_f16 for layer in found if layer.layer} == {
        "block_2": 1.0,
        "block_12": 0.0,
    }
    assert found[0].operations_f16 == 2 * 16 * 8 * 8
    first, second, *_ = str(found).splitlines()
    assert " ".join(first.split()) == "layer 16 bit float32 work in 16 bit why float32"
    assert " ".join(second.split()).startswith("block_2 1 0 100 %")


def test_only_all_of_the_work_is_100_percent() -> None:
    layers = [
        LayerReport("all", 2, 0, 1000.0, 0.0, ()),
        LayerReport("nearly", 2, 1, 996.0, 4.0, ()),
        LayerReport("hardly", 1, 2, 0.1, 999.9, ()),
    ]
    shares = [re.findall(r"\S+ %", line) for line in str(Layers(layers)).splitlines()[1:]]
    assert shares == [["100 %"], ["99.6 %"], ["<0.1 %"]]


def test_nodes_are_chosen_by_layer() -> None:
    nodes = report().nodes
    assert [node.op for node in nodes.where(layer="block_2")] == ["MatMul", "Exp", "Tanh", "MatMul"]
    assert [node.layer for node in nodes.where(layer=r"net/block_\d+", op="MatMul")] == [
        "block_12",
        "block_2",
        "block_2",
    ]
    with pytest.raises(
        ConfigError, match=r"^Nodes.where\(layer\): there is no layer 'block_'.*'block_2'"
    ):
        nodes.where(layer="block_")
    assert nodes.where(op="Exp").where(layer="block_12") == []  # a layer, but not of these
    with pytest.raises(ConfigError, match=r"^Nodes.where\(layer\): 'layer:a//b' names no layer"):
        nodes.where(layer="a//b")


def test_the_document_keeps_the_paths_for_a_page_that_another_process_makes() -> None:
    document = report().to_dict()
    rows = {row["name"]: row for row in document["graphs"][0]["nodes"]}
    assert rows["net_1/block_2_1/Exp"]["layer"] == "block_2"
    assert "layer" not in rows["loss/Exp"]
    recorded.forget()
    for name, layer in (("net_1/block_2_1/Exp", "block_2"), ("loss/Exp", "loss")):
        assert files._short(rows[name])[-1] == layer
