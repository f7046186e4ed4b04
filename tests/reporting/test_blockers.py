from __future__ import annotations

import pytest
import tensorflow as tf

import amp_tf
from amp_tf.oplists.hardware import Hardware
from tests.left_out import without
from tests.reporting.reported_graphs import BF16_CPU, reported, traced
from tests.small_graphs import graph

KEEP = "^kept/"
SHAPES = ((2, 8, 8, 8, 64), (3, 3, 3, 64, 64))


def pooled(y):
    """Pools one value at a time: the shape stays, and CPUs have no float16 kernel of it."""
    return tf.nn.avg_pool3d(y, 1, 1, "SAME")


def planted(pool=pooled):
    """Three blockers among convolutions: an op without a kernel, a deny op, a layer that is kept by
    its name.
    """

    def model(x, w):
        y = tf.nn.conv3d(x, w, [1] * 5, "SAME")
        with tf.name_scope("kernel"):
            y = tf.tanh(tf.tanh(pool(tf.tanh(y)))) + 1.0
        y = tf.nn.conv3d(y, w, [1] * 5, "SAME")
        with tf.name_scope("denied"):
            y = tf.exp(y) * 2.0
        with tf.name_scope("kept"):
            y = tf.nn.conv3d(y, w, [1] * 5, "SAME")
        return tf.nn.conv3d(y, w, [1] * 5, "SAME")

    return traced(model, *SHAPES)


def found_in(**settings):
    """The report of the planted graph, by default in float16 with the name rule."""
    return reported(planted(), **{"precision": "float16", "keep_float32": (KEEP,), **settings})


def in_f16(report) -> float:
    return report.to_dict()["figures"]["operations"]["f16"]


def test_planted_blockers_are_ranked_by_what_they_gain_to_the_flop_and_name_what_takes_them_away():
    base = found_in()
    document = base.to_dict()
    found = document["blockers"]
    assert [(row["kind"], row["what"]) for row in found[:3]] == [
        ("name rule", KEEP),
        ("no kernel", "AvgPool3D"),
        ("deny list", "Exp"),
    ]
    assert found[0]["gain"] > found[1]["gain"] > found[2]["gain"] > 0
    gain = {row["what"]: row["gain"] for row in found}
    with_kernel = planted(tf.tanh)
    assert in_f16(found_in(keep_float32=())) - in_f16(base) == gain[KEEP]
    kept = {"precision": "float16", "keep_float32": (KEEP,)}
    assert in_f16(reported(with_kernel, **kept)) - in_f16(base) == gain["AvgPool3D"]
    assert in_f16(found_in(infer_add=("Exp",))) - in_f16(base) == gain["Exp"]
    # A convolution is 2 × 2·8·8·8·64 × 3·3·3·64 operations; with the rule, nothing else becomes 16
    # bit.
    assert gain[KEEP] == 2 * (2 * 8 * 8 * 8 * 64) * (3 * 3 * 3 * 64)
    together = document["together"]
    assert {root["what"] for root in together["roots"]} == {KEEP, "AvgPool3D", "Exp"}
    all_of_them = reported(with_kernel, precision="float16", infer_add=("Exp",))
    assert in_f16(all_of_them) - in_f16(base) == together["gain"]
    remedy = {row["what"]: row["remedy"] for row in found}
    assert remedy[KEEP] == "drop '^kept/' from AMP_TF_KEEP_FLOAT32"
    assert remedy["Exp"].startswith(
        "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_INFERLIST_ADD=Exp, but it "
    )
    assert "no 16-bit kernel of AvgPool3D" in remedy["AvgPool3D"]


@pytest.mark.parametrize("settings", [{"precision": "auto"}, {"level": "TREAT_INFER_AS_DENY"}])
def test_the_gain_counts_what_the_cost_model_or_the_level_then_leaves(settings):
    base = found_in(**settings)
    gain = {row["what"]: row["gain"] for row in base.to_dict()["blockers"]}
    assert in_f16(found_in(**settings, keep_float32=())) - in_f16(base) == gain[KEEP] > 0
    if "level" in settings:
        assert in_f16(found_in(**settings, infer_add=("Exp",))) - in_f16(base) == gain["Exp"] == 0


def test_patterns_that_keep_one_node_are_taken_away_together():
    patterns = (KEEP, "Conv3D_?$")
    (row,) = (
        row
        for row in found_in(keep_float32=patterns).to_dict()["blockers"]
        if row["example"] == "kept/Conv3D"
    )
    assert row["what"] == ", ".join(patterns)
    assert row["remedy"] == f"drop 'Conv3D_?$' and {KEEP!r} from AMP_TF_KEEP_FLOAT32"
    assert row["gain"] > 0


def test_a_device_a_fetch_and_a_scope_are_blockers():
    def model(x, w):
        with tf.device("/cpu:0"):
            y = tf.matmul(x, w, name="on_cpu")
        y = tf.matmul(y, w)
        return tf.matmul(y, w, name="fetched")

    graph = traced(model, (64, 64), (64, 64))
    hardware = Hardware(gpu_capabilities=((8, 0),))
    found = reported(
        graph, hardware=hardware, precision="float16", preserve=("fetched",)
    ).to_dict()["blockers"]
    gains = {row["kind"]: row["gain"] for row in found}
    assert gains["device"] == gains["fed or fetched"] == 2 * 64**3


def test_scopes_are_blockers_by_layer():
    def model(x, w):
        with tf.name_scope("model/attention"), amp_tf.scope("float32"):
            y = tf.matmul(x, w)
        return tf.matmul(y, w)

    (row,) = (
        row
        for row in reported(traced(model, (64, 64), (64, 64))).to_dict()["blockers"]
        if row["kind"] == "scope"
    )
    assert (row["what"], row["gain"]) == ("model/attention", 2 * 64**3)
    assert row["remedy"] == 'take model/attention out of amp_tf.scope("float32") in the model'


def test_a_product_that_the_user_took_off_its_list_is_put_back_there():
    base = found_in(keep_float32=(), allow_remove=("Conv3D",))
    (row,) = (row for row in base.to_dict()["blockers"] if row["what"] == "Conv3D")
    assert row["kind"] == "no list"
    assert (
        row["remedy"] == "drop 'Conv3D' from TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_ALLOWLIST_REMOVE"
    )
    assert row["gain"] == in_f16(found_in(keep_float32=()))


def test_a_fused_product_without_a_kernel_is_a_blocker_and_no_other_op_would_help():
    """A step that amp_tf does not know keeps it whole."""
    proto = graph("""
        x = Placeholder() shape=[64, 64]
        b = Placeholder() shape=[64]
        fused = _FusedMatMul(x, x, b) num_args=1 fused_ops=['BiasAdd', 'GeluExact']
        product = MatMul(fused, fused)
    """)
    for node, shape in zip(proto.node, ([64, 64], [64], [64, 64], [64, 64]), strict=True):
        node.attr["_output_shapes"].list.shape.add().CopyFrom(tf.TensorShape(shape).as_proto())
    report = reported(proto, precision="float16", hardware=Hardware())
    (row,) = (row for row in report.to_dict()["blockers"] if row["what"] == "_FusedMatMul")
    assert row["kind"] == "no kernel"
    assert row["gain"] == in_f16(report) == 2 * 64**3
    assert "has no 16-bit kernel on this CPU" in row["remedy"]
    assert "1 of 2 MatMul" in str(report)


def test_what_does_not_pay_gains_what_a_named_precision_converts():
    base = found_in(precision="auto", keep_float32=())
    (row,) = (row for row in base.to_dict()["blockers"] if row["kind"] == "not faster")
    assert row["gain"] == in_f16(found_in(precision="bfloat16", keep_float32=())) - in_f16(base) > 0
    assert row["remedy"].startswith("AMP_TF_PRECISION=bfloat16")


def test_what_is_kept_for_accuracy_gains_what_it_is_without_its_rule():
    def variance(x, w):
        y = tf.matmul(x, w)
        mean = tf.reduce_mean(y, 0, keepdims=True)
        spread = tf.reduce_mean(tf.square(y), 0, keepdims=True) - tf.square(mean)
        return tf.matmul((y - mean) / tf.sqrt(spread + 1e-3), w)

    graph = traced(variance, (64, 64), (64, 64))
    base = reported(graph)
    (row,) = (row for row in base.to_dict()["blockers"] if row["what"] == "needs")
    with without(["needs"]):
        assert in_f16(reported(graph)) - in_f16(base) == row["gain"] > 0
    assert row["kind"] == "accuracy"


def test_what_is_kept_because_it_joins_exact_values_is_kept_for_accuracy():
    def moved(x, w):
        return tf.matmul(tf.sigmoid(x + tf.matmul(x, w)), w)

    (row,) = reported(traced(moved, (64, 64), (64, 64))).to_dict()["blockers"]
    assert (row["kind"], row["what"], row["gain"]) == ("accuracy", "origins", 2 * 64**2)
    assert row["remedy"].startswith("AMP_TF_FORCE_F16=<its name>")


def test_an_unknown_shape_is_a_blocker_and_gains_what_a_known_one_converts():
    """Multiplying many values pays in memory, but not as few as the cost model takes where nobody
    knows.
    """

    def model(x, wide, narrow):
        y = tf.matmul(x, wide)
        for _ in range(4):
            y = y * 2.0
        return tf.matmul(y, narrow)

    def rewritten(*shape):
        return reported(traced(model, shape, (64, 4096), (4096, 64)), precision="auto")

    (row,) = (
        row
        for row in rewritten(None, None, 64).to_dict()["blockers"]
        if row["kind"] == "unknown shape"
    )
    assert (row["nodes"], row["operations"], row["gain_nodes"]) == (4, 0, 4)
    assert row["gain"] == 4 * 64 * 64 * 4096
    assert len(rewritten(64, 64, 64).nodes.where(op="Mul", precision="bfloat16")) == 4


def test_what_is_not_tried_has_no_gain():
    document = found_in().to_dict(seconds=-1)
    assert {row["gain"] for row in document["blockers"]} == {None}
    assert document["together"] is None
    assert document["blockers"][0]["what"] == KEEP, "those that hold most operations come first"


def test_painting_again_does_not_change_the_graph_or_its_report():
    report = found_in()
    assert report.to_dict() == report.to_dict()
    again = amp_tf.rewrite(
        planted(), amp_tf.AmpConfig(precision="float16", keep_float32=(KEEP,)), hardware=BF16_CPU
    )
    assert [node.precision for node in report.nodes] == [
        node.precision for node in again.report.nodes
    ]


@pytest.mark.parametrize("is_wanted", [False, True])
def test_without_being_asked_a_report_has_no_figures_and_keeps_no_graph(is_wanted, tmp_path):
    config = amp_tf.AmpConfig(
        precision="bfloat16", report_path=str(tmp_path) if is_wanted else None
    )
    report = amp_tf.rewrite(planted(), config, hardware=BF16_CPU).report
    assert (report.graphs[0].basis is not None) == is_wanted
    assert (report.to_dict()["figures"] is not None) == is_wanted
