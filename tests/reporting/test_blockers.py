from __future__ import annotations

import time

import pytest
import tensorflow as tf

import amp_tf
from amp_tf.oplists.hardware import Hardware
from amp_tf.reporting.blockers import root_of
from tests.left_out import without
from tests.reporting.reported_graphs import reported, traced
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


def blocker(report, **fields):
    """The only blocker of a report with some fields."""
    (row,) = [row for row in report.to_dict()["blockers"] if fields.items() <= row.items()]
    return row


def test_planted_blockers_are_ranked_by_what_they_gain_to_the_flop_and_name_what_takes_them_away():
    base = found_in()
    document = base.to_dict()
    assert document == base.to_dict(), "to try a change changes the report"
    ranked = document["blockers"][:3]
    kinds = [("name rule", KEEP), ("no kernel", "AvgPool3D"), ("deny list", "Exp")]
    assert [(row["kind"], row["what"]) for row in ranked] == kinds
    assert ranked[0]["gain"] > ranked[1]["gain"] > ranked[2]["gain"] > 0
    with_kernel = planted(tf.tanh)
    kept = {"precision": "float16", "keep_float32": (KEEP,)}
    mended = {
        KEEP: found_in(keep_float32=()),
        "AvgPool3D": reported(with_kernel, **kept),
        "Exp": found_in(infer_add=("Exp",)),
    }
    for row in ranked:
        assert row["gain"] == in_f16(mended[row["what"]]) - in_f16(base)
    # A convolution is 2 × 2·8·8·8·64 × 3·3·3·64 operations; with the rule, nothing else becomes 16
    # bit.
    assert ranked[0]["gain"] == 2 * (2 * 8 * 8 * 8 * 64) * (3 * 3 * 3 * 64)
    together = document["together"]
    assert {root["what"] for root in together["roots"]} == mended.keys()
    all_of_them = reported(with_kernel, precision="float16", infer_add=("Exp",))
    assert together["gain"] == in_f16(all_of_them) - in_f16(base)
    rule, kernel, deny = (row["remedy"] for row in ranked)
    assert rule == "drop '^kept/' from AMP_TF_KEEP_FLOAT32"
    assert "no 16-bit kernel of AvgPool3D" in kernel
    assert deny.startswith("TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_INFERLIST_ADD=Exp, but it ")


@pytest.mark.parametrize("settings", [{"precision": "auto"}, {"level": "TREAT_INFER_AS_DENY"}])
def test_the_gain_counts_what_the_cost_model_or_the_level_then_leaves(settings):
    base = found_in(**settings)
    gain = blocker(base, what=KEEP)["gain"]
    assert gain == in_f16(found_in(**settings, keep_float32=())) - in_f16(base) > 0
    if "level" in settings:
        assert blocker(base, what="Exp")["gain"] == 0
        assert in_f16(found_in(**settings, infer_add=("Exp",))) == in_f16(base)


def test_patterns_that_keep_one_node_are_taken_away_together():
    patterns = (KEEP, "Conv3D_?$")
    row = blocker(found_in(keep_float32=patterns), example="kept/Conv3D")
    assert row["what"] == ", ".join(patterns)
    assert row["remedy"] == f"drop 'Conv3D_?$' and {KEEP!r} from AMP_TF_KEEP_FLOAT32"
    assert row["gain"] > 0


PRODUCT = 2 * 64**3  #: operations


def test_a_device_and_a_fetch_are_blockers():
    def model(x, w):
        with tf.device("/cpu:0"):
            y = tf.matmul(x, w, name="on_cpu")
        return tf.matmul(tf.matmul(y, w), w, name="fetched")

    found = reported(
        traced(model, (64, 64), (64, 64)),
        hardware=Hardware(gpu_capabilities=((8, 0),)),
        precision="float16",
        preserve=("fetched",),
    )
    for kind in ("device", "fed or fetched"):
        assert blocker(found, kind=kind)["gain"] == PRODUCT


def test_scopes_are_blockers_by_layer():
    def model(x, w):
        with tf.name_scope("model/attention"), amp_tf.scope("float32"):
            y = tf.matmul(x, w)
        return tf.matmul(y, w)

    row = blocker(reported(traced(model, (64, 64), (64, 64))), kind="scope")
    assert (row["what"], row["gain"]) == ("model/attention", PRODUCT)
    assert row["remedy"] == 'take model/attention out of amp_tf.scope("float32") in the model'


def test_a_product_that_the_user_took_off_its_list_is_put_back_there():
    row = blocker(found_in(keep_float32=(), allow_remove=("Conv3D",)), what="Conv3D")
    assert row["kind"] == "no list"
    variable = "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_ALLOWLIST_REMOVE"
    assert row["remedy"] == f"drop 'Conv3D' from {variable}"
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
    row = blocker(report, what="_FusedMatMul")
    assert row["kind"] == "no kernel"
    assert row["gain"] == in_f16(report) == PRODUCT
    assert "has no 16-bit kernel on this CPU" in row["remedy"]
    assert "1 of 2 MatMul" in str(report)


def test_what_does_not_pay_gains_what_a_named_precision_converts():
    base = found_in(precision="auto", keep_float32=())
    row = blocker(base, kind="not faster")
    assert row["gain"] == in_f16(found_in(precision="bfloat16", keep_float32=())) - in_f16(base) > 0
    assert row["remedy"].startswith("AMP_TF_PRECISION=bfloat16")


def normalized(x, w):
    """Divides by a deviation that is made of E[x²] - E[x]²."""
    y = tf.matmul(x, w)
    mean = tf.reduce_mean(y, 0, keepdims=True)
    spread = tf.reduce_mean(tf.square(y), 0, keepdims=True) - tf.square(mean)
    return tf.matmul((y - mean) / tf.sqrt(spread + 1e-3), w)


def moved(x, w):
    """A product that is added to what is exact."""
    return tf.matmul(tf.sigmoid(x + tf.matmul(x, w)), w)


@pytest.mark.parametrize(("model", "rule"), [(normalized, "needs"), (moved, "origins")])
def test_what_is_kept_for_accuracy_gains_what_it_is_without_its_rule(model, rule):
    graph = traced(model, (64, 64), (64, 64))
    base = reported(graph)
    row = blocker(base, what=rule)
    assert row["kind"] == "accuracy"
    assert row["remedy"].startswith("AMP_TF_FORCE_F16=<its name>")
    with without([rule]):
        assert row["gain"] == in_f16(reported(graph)) - in_f16(base) > 0


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

    row = blocker(rewritten(None, None, 64), kind="unknown shape")
    assert (row["nodes"], row["operations"], row["gain_nodes"]) == (4, 0, 4)
    assert row["gain"] == 4 * 64 * 64 * 4096
    assert len(rewritten(64, 64, 64).nodes.where(op="Mul", precision="bfloat16")) == 4


def test_what_is_not_tried_has_no_gain():
    document = found_in().to_dict(seconds=-1)
    assert {row["gain"] for row in document["blockers"]} == {None}
    assert document["together"] is None
    assert document["blockers"][0]["what"] == KEEP, "those that hold most operations come first"


def test_roots_of_long_chains_are_found_in_a_time_that_grows_with_their_length():
    count = 6_000
    lines = ["x = Placeholder()", "before = Exp(x)"]
    last = "before"
    for op in ("Mul", "Exp"):  # a chain of causes back to the first Exp; then many causes
        for number in range(count):
            inputs = last if op == "Exp" else f"{last}, {last}"
            last = f"{op}_{number}"
            lines.append(f"{last} = {op}({inputs})")
    lines.append(f"allow = MatMul({last}, x)")
    config = amp_tf.AmpConfig(precision="bfloat16", report_path="-")
    (report,) = amp_tf.rewrite(graph("\n".join(lines)), config).report.graphs
    begin = time.process_time()
    roots = [root_of(report, node) for node in range(report.total - 1)]  # without the product
    assert time.process_time() - begin < 6
    assert {root.what for root in roots if root} == {"Exp", "Placeholder"}
