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
from amp_tf.reporting.figures import NO_PRODUCTS, Products, times_before_and_now
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
    inner = {}
    if part.get("type") == "object":
        inner["additionalProperties"] = False
    for key, value in part.items():
        inner[key] = closed(value)
    return inner


def check(document) -> None:
    jsonschema.Draft202012Validator.check_schema(schema())
    jsonschema.validate(json.loads(json.dumps(document, allow_nan=False)), closed(schema()))


def test_reports_with_figures_and_without_an_empty_one_and_one_of_unknown_shapes_have_the_schema(
    report,
):
    check(report.to_dict())
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
    files.save(document, tmp_path / "page.html")
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
    (graph,) = report.to_dict()["graphs"]
    assert len(graph["inserted_casts"]) == graph["casts"]
    (cast,) = [cast for cast in graph["inserted_casts"] if cast["node"] == "w"]
    estimated_ms = cast.pop("estimated_ms")
    assert estimated_ms == pytest.approx(SHIPPED.of_casts(64 * 64)[1] / 1e6, rel=1e-9)
    told = {"node": "w", "from": "float32", "to": "bfloat16", "readers": 2, "bytes": 64 * 64 * 6}
    assert cast.items() >= told.items()


def test_the_peak_is_told_of_the_graph_that_takes_the_most():
    """Both sides of a node at a time, in 16 bit with the weight's cast; what is fed and fetched
    counts nothing.
    """
    found = reported(traced(dense, (64, 64), (64, 64)), precision="bfloat16").to_dict()["figures"][
        "estimated_peak"
    ]
    assert found == {"float32": 2 * 64 * 64 * 4, "now": 3 * 64 * 64 * 2}


@pytest.fixture
def lowered_loops():
    """Graphs hold loops as TensorFlow lowers them."""
    tf.compat.v1.disable_control_flow_v2()
    yield
    tf.compat.v1.enable_control_flow_v2()


@pytest.mark.usefixtures("lowered_loops")
@pytest.mark.parametrize(
    ("goes_on", "turns"), [(lambda i, y: i < 5, 5), (lambda i, y: tf.reduce_sum(y) < 5, 10)]
)
def test_loops_count_as_many_turns_as_they_say_or_as_ten(goes_on, turns):
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, (64, 64))
        tf.while_loop(goes_on, lambda i, y: (i + 1, tf.matmul(y, x)), (0, x))
    found = reported(graph.as_graph_def(add_shapes=True)).to_dict()
    (product,) = [node for node in found["graphs"][0]["nodes"] if node["op"] == "MatMul"]
    assert (product["operations"], product["runs"]) == (2 * 64**3, turns)
    assert sum(found["figures"]["products"].values()) == turns * 2 * 64**3


def test_the_page_says_whose_16_bit_it_is_under_a_policy_of_keras():
    """The product has bfloat16 in the program, as a layer under the policy; amp_tf finds nothing to
    convert.
    """

    def narrow(x):
        y = tf.cast(x, tf.bfloat16)
        return tf.cast(tf.matmul(y, y), tf.float32)

    report = reported(traced(narrow, (64, 64)))
    facts = {"hooks": {"policy": "mixed_bfloat16"}}
    found = dataclasses.replace(report, facts=facts).to_dict()
    check(found)
    assert found["converted"] == 0
    assert found["figures"]["products_share_f16"] == 1
    assert found["figures"]["products_own"] == 2 * 64**3
    assert (
        "The program itself has 100 % in 16 bit (Keras policy mixed_bfloat16); amp_tf converted 0 "
        "%." in shown(files.page([found]))
    )


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


def estimated(report):
    """The times of each node before and now, and the cost table."""
    (found,) = report.graphs
    before, now = times_before_and_now(found.known_basis, found.figures, found.is_f16)
    times = {}
    for node, name in enumerate(found.view.names):
        times[name] = (before[node], now[node])
    return times, found.basis.resolution.costs


def _normalized(x, w, scale, shift):
    """A convolution, normalized as Keras does it in inference."""
    return tf.nn.relu(tf.nn.conv2d(x, w, 1, "SAME") * scale + shift)


ON_CPU = {"precision": "auto", "target": "cpu"}


def test_folded_normalization_took_time_over_the_result_and_takes_it_over_the_filter():
    result = (8, 64, 64, 64)
    kernel = (3, 3, 64, 64)
    graph = traced(_normalized, result, kernel, (64,), (64,))
    report = reported(graph, preserve=("Identity",), **ON_CPU)
    assert report.folded == 1
    times, costs = estimated(report)
    assert times["mul"] == (
        costs.of_op("Mul", math.prod(result))[0],
        costs.of_op("Mul", math.prod(kernel))[0],
    )
    assert times["Relu"] == (costs.of_op("Relu", math.prod(result))[0], 0)
    assert times["add"][1] == 0
    before, now = times["Conv2D"]
    assert 0 < now < before


def test_what_is_computed_with_a_product_takes_no_time_but_for_a_matrix_product_s_bias():
    def dense(x, w, b):
        return tf.nn.relu(tf.matmul(x, w) + 1.0), tf.nn.relu(tf.nn.bias_add(tf.matmul(x, w), b))

    times, costs = estimated(reported(traced(dense, (512, 512), (512, 512), (512,)), **ON_CPU))
    assert times["Relu_1"] == (0, 0)
    assert times["BiasAdd"] == costs.of_op("BiasAdd", 512 * 512)
    assert min(*times["add"], *times["Relu"]) > 0


def _two(x, w):
    """A product of each type of the program's own: the second has four times the operations of the
    first.
    """
    own = tf.cast(tf.concat([x, x], 0), tf.bfloat16)
    return tf.matmul(x, w), tf.matmul(own, own, transpose_b=True)


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
