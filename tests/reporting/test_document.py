"""The report as a document: its schema, its figures, and what reads it."""

from __future__ import annotations

import dataclasses
import json
import math
from html import unescape
from importlib import resources
from pathlib import Path

import pytest
import tensorflow as tf

import amp_tf
from amp_tf.errors import GraphError
from amp_tf.oplists.cost_tables import SHIPPED
from amp_tf.reporting import files
from amp_tf.reporting.figures import NO_PRODUCTS, GraphFigures, Products, times_before_and_now
from amp_tf.reporting.reports import RewriteReport
from tests.reporting.rendering import shown
from tests.reporting.reported_graphs import BF16_CPU, reported, traced

jsonschema = pytest.importorskip("jsonschema")
FIRST = Path(__file__).parent / "report_version_1.json"


def schema():
    return json.loads(
        resources.files("amp_tf.reporting")
        .joinpath("report-1.schema.json")
        .read_text(encoding="utf-8")
    )


def dense(x, w):
    return tf.matmul(tf.nn.relu(tf.matmul(x, w)), w)


@pytest.fixture(scope="module")
def report() -> RewriteReport:
    return reported(traced(dense, (64, 64), (64, 64)))


def closed(part):
    """A schema that refuses fields which it does not describe, but where it says that there may be
    more.
    """
    if isinstance(part, list):
        return list(map(closed, part))
    if not isinstance(part, dict):
        return part
    inner = {key: closed(value) for key, value in part.items()}
    return {"additionalProperties": False, **inner} if part.get("type") == "object" else inner


def check(document) -> None:
    jsonschema.Draft202012Validator.check_schema(schema())
    jsonschema.validate(json.loads(json.dumps(document, allow_nan=False)), closed(schema()))


def test_so_are_a_report_without_figures_an_empty_one_and_one_of_unknown_shapes(report):
    bare = RewriteReport(tuple(dataclasses.replace(graph, basis=None) for graph in report.graphs))
    for document in (bare.to_dict(), RewriteReport().to_dict()):
        check(document)
        assert document["figures"] is None
    unknown = reported(traced(dense, (None, None), (None, None))).to_dict()
    check(unknown)
    assert unknown["figures"]["products_unknown"] == 2
    assert unknown["figures"]["products_share_f16"] is None


def test_the_schema_refuses_what_is_no_report(report):
    with pytest.raises(jsonschema.ValidationError):
        check({**report.to_dict(), "schema_version": 2})
    with pytest.raises(jsonschema.ValidationError):
        check({**report.to_dict(), "blockers": [{"kind": "weather"}]})


def test_the_first_file_of_version_1_is_read_for_ever(tmp_path):
    """Never write this file anew: it is what users have."""
    (document,) = files.read(FIRST)
    jsonschema.validate(document, schema())
    assert document["figures"]["products_share_f16"] == pytest.approx(0.5, rel=1e-12)
    assert [row["what"] for row in document["blockers"]] == ["^kept/", "Exp"]
    files.save([document], tmp_path / "page.html")
    assert "50 %" in shown((tmp_path / "page.html").read_text(encoding="utf-8"))


def test_figures_are_those_of_the_shapes(report):
    found = report.to_dict()
    product = 2 * 64**3
    assert found["figures"]["products"] == {"f16": 2 * product, "float32": 0}
    assert found["figures"]["products_share_f16"] == 1
    nodes = {node["name"]: node for node in found["graphs"][0]["nodes"]}
    assert nodes["MatMul"]["operations"] == product
    assert nodes["MatMul"]["bytes"] == 3 * 64 * 64 * 2
    assert nodes["MatMul"]["shapes"] == [[64, 64]]
    assert "operations" not in nodes["x"]


def test_casts_are_told_with_what_they_move(report):
    found = report.to_dict()["graphs"][0]
    assert len(found["inserted_casts"]) == found["casts"]
    cast = next(cast for cast in found["inserted_casts"] if cast["node"] == "w")
    assert (cast["from"], cast["to"], cast["readers"], cast["bytes"]) == (
        "float32",
        "bfloat16",
        2,
        64 * 64 * 6,
    )
    assert cast["estimated_ms"] == pytest.approx(SHIPPED.of_casts(64 * 64)[1] / 1e6, rel=1e-9)


def test_times_are_told_on_cpus_alone():
    from amp_tf.oplists.hardware import Hardware

    graph = traced(dense, (64, 64), (64, 64))
    gpu = reported(
        graph, hardware=Hardware(gpu_capabilities=((8, 0),)), precision="float16"
    ).to_dict()
    assert gpu["figures"]["estimated_ms"] is None
    assert {cast["estimated_ms"] for cast in gpu["graphs"][0]["inserted_casts"]} == {None}


def test_the_peak_is_told_of_the_graph_that_takes_the_most():
    """Both sides of a node at a time, in 16 bit with the weight's cast; what is fed and fetched
    counts nothing.
    """
    found = reported(traced(dense, (64, 64), (64, 64)), precision="bfloat16").to_dict()["figures"][
        "estimated_peak"
    ]
    assert found == {"float32": 2 * 64 * 64 * 4, "now": 3 * 64 * 64 * 2}


def test_the_page_says_why_the_peak_is_above_that_of_float32():
    """One product of two small tensors, whose casts lie beside them."""
    found = reported(traced(lambda x, w: tf.matmul(x + 1, w * 2), (64, 64), (64, 64))).to_dict()
    peak = found["figures"]["estimated_peak"]
    words = "16-bit copies of weights and other float32 tensors lie beside these"
    for now, is_said in ((peak["float32"] + 1, True), (peak["float32"], False)):
        peak["now"] = now
        assert (words in shown(files.page([found]))) is is_said


@pytest.mark.parametrize(
    ("goes_on", "turns"), [(lambda i, y: i < 5, 5), (lambda i, y: tf.reduce_sum(y) < 5, 10)]
)
def test_loops_count_as_many_turns_as_they_say_or_as_ten(goes_on, turns):
    def loop(x, w):
        return tf.while_loop(goes_on, lambda i, y: (i + 1, tf.matmul(y, w)), (0, x))[1]

    with tf.Graph().as_default() as graph:
        tf.compat.v1.disable_control_flow_v2()
        try:
            loop(
                tf.compat.v1.placeholder(tf.float32, (64, 64)),
                tf.compat.v1.placeholder(tf.float32, (64, 64)),
            )
        finally:
            tf.compat.v1.enable_control_flow_v2()
        found = reported(graph.as_graph_def(add_shapes=True)).to_dict()
    (product,) = (node for node in found["graphs"][0]["nodes"] if node["op"] == "MatMul")
    assert (product["operations"], product["runs"]) == (2 * 64**3, turns)
    assert sum(found["figures"]["products"].values()) == turns * 2 * 64**3


def test_the_page_says_whose_16_bit_it_is_under_a_policy_of_keras():
    """The product has bfloat16 in the program, as a layer under the policy; amp_tf finds nothing to
    convert.
    """
    narrow = traced(
        lambda x: tf.cast(tf.matmul(*(tf.cast(x, tf.bfloat16),) * 2), tf.float32), (64, 64)
    )
    found = dataclasses.replace(
        reported(narrow), facts={"hooks": {"policy": "mixed_bfloat16"}}
    ).to_dict()
    check(found)
    assert found["converted"] == 0
    assert (found["figures"]["products_share_f16"], found["figures"]["products_own"]) == (
        1,
        2 * 64**3,
    )
    text = shown(files.page([found]))
    assert (
        "The program itself has 100 % in 16 bit (Keras policy mixed_bfloat16); amp_tf converted 0 "
        "%." in text
    )


def test_facts_of_a_process_are_told(report):
    points = [(1, 16.0, 0), (3, 8.0, 1)]
    curve = {"label": "model", "scale": 8.0, "steps": 3, "skipped": 1, "points": points}
    facts = {"process": {"program": "train.py", "pid": 3}, "loss_scales": (curve,)}
    found = dataclasses.replace(report, facts=facts).to_dict()
    check(found)
    assert found["process"] == {"program": "train.py", "pid": 3}
    assert found["loss_scales"][0]["points"] == [(1, 16.0, 0), (3, 8.0, 1)]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "is not JSON"),
        ("{}", "holds no report of amp_tf"),
        ("[]", "holds no report of amp_tf"),
        (
            '{"schema": "amp_tf.report", "schema_version": 2}',
            "is of version 2, and this amp_tf reads 1",
        ),
    ],
)
def test_what_is_no_report_is_told(content, words, tmp_path):
    file = tmp_path / "report.json"
    file.write_text(content)
    with pytest.raises(GraphError, match=words):
        files.read(file)


def test_a_report_saves_itself(report, tmp_path):
    report.save(tmp_path / "report.json")
    assert files.read(tmp_path / "report.json") == [json.loads(report.to_json())]
    report.save(tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "report.json"], (
        "nothing half-written"
    )


def test_a_notebook_shows_the_one_number(report):
    view = report._repr_html_()
    assert view.startswith("<iframe srcdoc=")
    assert "100 %" in shown(unescape(view))


def _normalized(x, w, scale, shift):
    """A convolution, normalized as Keras does it in inference."""
    return tf.nn.relu(tf.nn.conv2d(x, w, 1, "SAME") * scale + shift)


def test_folded_normalization_took_time_over_the_result_and_takes_it_over_the_filter():
    shapes = (8, 64, 64, 64), (3, 3, 64, 64), (64,), (64,)
    report = reported(
        traced(_normalized, *shapes), precision="auto", target="cpu", preserve=("Identity",)
    )
    (graph,) = report.graphs
    assert graph.folded == 1
    found = GraphFigures(graph)
    before, now = times_before_and_now(found.basis, found.figures, found.is_f16)
    node_of = {op: node for node, op in enumerate(found.view.ops)}
    table = found.basis.resolution.costs
    result = math.prod(shapes[0])
    kernel = math.prod(shapes[1])
    assert before[node_of["Mul"]] == table.of_op("Mul", result)[0]
    assert now[node_of["Mul"]] == table.of_op("Mul", kernel)[0]
    assert [now[node_of[op]] for op in ("BiasAdd", "Relu")] == [0, 0]
    assert before[node_of["Relu"]] == table.of_op("Relu", result)[0]
    assert 0 < now[node_of["Conv2D"]] < before[node_of["Conv2D"]]


def test_what_is_computed_with_a_product_takes_no_time_but_for_a_matrix_product_s_bias():
    def dense(x, w, b):
        return tf.nn.relu(tf.matmul(x, w) + 1.0), tf.nn.relu(tf.nn.bias_add(tf.matmul(x, w), b))

    (graph,) = reported(
        traced(dense, (512, 512), (512, 512), (512,)), precision="auto", target="cpu"
    ).graphs
    found = GraphFigures(graph)
    before, now = times_before_and_now(found.basis, found.figures, found.is_f16)
    times = {name: (before[node], now[node]) for node, name in enumerate(found.view.names)}
    assert times["Relu_1"] == (0, 0)
    table = found.basis.resolution.costs
    assert times["BiasAdd"] == table.of_op("BiasAdd", 512 * 512)
    assert all(time > 0 for name in ("add", "Relu") for time in times[name])


def _two(x, w):
    """A product of each type of the program's own: the second has four times the operations of the
    first.
    """
    return tf.matmul(x, w), tf.matmul(
        *(tf.cast(tf.concat([x, x], 0), tf.bfloat16),) * 2, transpose_b=True
    )


@pytest.mark.parametrize(
    ("settings", "shapes", "text"),
    [
        (
            {},
            ((64, 64), (64, 64)),
            "(20 % of matmul and convolution work; 80 % in 16 bit by the program itself)",
        ),
        (
            {"keep_float32": (".",)},
            ((64, 64), (64, 64)),
            "(0 % of matmul and convolution work; 80 % in 16 bit by",
        ),
        (
            {},
            ((None, None), (None, None)),
            "(matmuls and convolutions: 1 of 2; 1 in 16 bit by the program itself)",
        ),
    ],
)
def test_the_headline_has_the_share_of_the_work_and_whose_it_is(settings, shapes, text):
    config = amp_tf.AmpConfig(**{"precision": "bfloat16", **settings})
    report = amp_tf.rewrite(traced(_two, *shapes), config, hardware=BF16_CPU).report
    assert text in str(report).splitlines()[0]
    assert report.graphs[0].basis is None


def test_shares_of_graphs_add_up_and_one_unknown_size_makes_all_unknown():
    assert str(Products((0.0, 0.0, 8.0), (0, 0, 1))) == str(NO_PRODUCTS) == ""  # nothing is 16 bit
    known = Products((1e9, 0.0, 4e9), (1, 0, 3))
    assert known.plus(known).share == 0.25
    assert (
        str(known.plus(Products((math.nan,) * 3, (1, 0, 1)))) == "matmuls and convolutions: 2 of 4"
    )
