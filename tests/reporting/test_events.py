"""What TensorBoard is given of a report: the graph whose devices are precisions, and scalars."""

from __future__ import annotations

import pytest
import tensorflow as tf

from amp_tf.reporting import events
from tests.reporting.reported_graphs import reported
from tests.small_graphs import graph

CALL = "StatefulPartitionedCall"


def coloured(text):
    found = events.coloured_graph(reported(graph(text)))
    return None if found is None else {node.name: node for node in found.node}


def test_the_device_of_a_node_is_its_precision():
    nodes = coloured("x = Placeholder()\na = MatMul(x, x)\nd = Digamma(a)\n")
    assert {name: node.device for name, node in nodes.items()} == {"x": "float32", "a": "bfloat16", "d": "float32"}
    assert {name: list(node.input) for name, node in nodes.items()} == {"x": [], "a": ["x", "x"], "d": ["a"]}
    assert not any(node.attr for node in nodes.values())


def test_an_inlined_call_is_no_box_around_the_model():
    name = f"{CALL}/PartitionedCall_1/model/a"
    nodes = coloured(f"x = Placeholder()\n{name} = MatMul(x, x)\nb = MatMul({name}, x)")
    assert set(nodes) == {"x", "model/a", "b"}
    assert list(nodes["b"].input) == ["model/a", "x"]


def test_names_that_would_be_the_same_stay_as_they_are():
    nodes = coloured(
        f"x = Placeholder()\n{CALL}/a = MatMul(x, x)\n{CALL}_1/a = MatMul({CALL}/a, x)\nb = MatMul({CALL}_1/a, x)"
    )
    assert set(nodes) == {"x", f"{CALL}/a", f"{CALL}_1/a", "b"}
    taken = coloured(f"x = Placeholder()\na = MatMul(x, x)\n{CALL}/a = MatMul(a, x)")
    assert set(taken) == {"x", "a", f"{CALL}/a"}


def test_outputs_and_control_inputs_lead_to_the_same_nodes():
    nodes = coloured(
        f"x = Placeholder()\n{CALL}/n = TopKV2(x, k)\nk = Const() dtype=int32 value=int32[]*1\n"
        f"a = MatMul({CALL}/n:0, x, ^{CALL}/n)"
    )
    assert list(nodes["a"].input) == ["n", "x", "^n"]


def test_nothing_is_drawn_where_nothing_was_converted():
    assert coloured("x = Placeholder()\nd = Digamma(x)") is None


@pytest.mark.parametrize(
    ("labels", "tags"),
    [
        (["model"], {"loss_scale", "skipped_steps"}),
        (["one", "two"], {"loss_scale/one", "skipped_steps/one", "loss_scale/two", "skipped_steps/two"}),
    ],
)
def test_loss_scales_of_several_models_have_names(labels, tags):
    curves = [{"label": label, "steps": 20, "points": [(0, 2.0**15, 0), (10, 2.0**14, 1)]} for label in labels]
    found = list(
        events.scalars(
            {"loss_scales": curves, "totals": {"nodes": 8, "converted": 2}, "figures": {"products_share_f16": 0.5}}
        )
    )
    assert {tag for _, tag, _ in found} == tags | {"nodes_in_16_bit", "products_in_16_bit"}
    assert (10, next(iter(sorted(tags))), 2.0**14) in found
    assert (20, "nodes_in_16_bit", 0.25) in found


def test_a_folder_that_cannot_be_written_is_an_error_of_the_system(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        events.write({"loss_scales": [], "totals": {}, "figures": None}, tmp_path / "file")


def test_the_file_is_tensorboards(tmp_path):
    events.write({"loss_scales": [], "totals": {"nodes": 4, "converted": 1}, "figures": None}, tmp_path / "run")
    (path,) = (tmp_path / "run").iterdir()
    assert events.holds_logs(tmp_path)
    first, second = tf.compat.v1.train.summary_iterator(str(path))
    assert first.file_version == "brain.Event:2"
    assert (second.summary.value[0].tag, second.summary.value[0].simple_value) == ("amp_tf/nodes_in_16_bit", 0.25)
