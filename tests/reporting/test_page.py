"""The page: what is in the file, and what a reader has of it in a real browser."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path

import pytest

from amp_tf.reporting import files
from amp_tf.reporting.figures import percent
from amp_tf.reporting.reports import RewriteReport
from tests.reporting import browser
from tests.reporting.rendering import evaluated, shown
from tests.reporting.reported_graphs import reported
from tests.reporting.test_blockers import found_in
from tests.small_graphs import graph

FIRST = Path(__file__).parent / "report_version_1.json"
needs_browser = pytest.mark.skipif(bool(browser.MISSING), reason=browser.MISSING)


@pytest.fixture(scope="module")
def document():
    found = found_in().to_dict() | {"loss_scales": files.read(FIRST)[0]["loss_scales"]}
    long = "a_model/a_layer/" + "of_a_very_long_name" * 20
    found["graphs"][0]["nodes"].append(
        {**found["graphs"][0]["nodes"][0], "name": long, "reason": long}
    )
    return found


@pytest.fixture(scope="module")
def file(document, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    files.save(document, path)
    return path


@pytest.fixture(scope="module")
def page():
    with browser.browser() as page:
        yield page


def test_the_page_is_one_file_that_asks_for_nothing(file):
    text = file.read_text(encoding="utf-8")
    assert not re.search(r"""(src|href)=["'](?!#)|@import|url\(|https?://""", text)


def test_names_cannot_break_the_page(document):
    evil = "</script><script>alert(1)</script>'\"&"
    graph = document["graphs"][0]
    nodes = [{**graph["nodes"][0], "name": evil, "device": evil, "reason": evil}]
    text = files.page(
        [{**document, "summary": evil, "graphs": [{**graph, "function": evil, "nodes": nodes}]}]
    )
    assert "<script>alert" not in text
    assert "<script>alert" not in shown(text)
    assert "alert(1)" in shown(text)  # the name is there, harmless
    assert "<title>amp_tf: &lt;script&gt;</title>" in files.page(
        [{**document, "process": {"program": "<script>"}}]
    )
    step = {"way": "tf.function", "what": "<lambda>", "steps": 3, "seconds": 1.0}
    steps = [{**step, "first_ms": 5.0, "median_ms": 1.0, "fastest_ms": 1.0}]
    text = shown(files.page([{**document, "steps": steps}] * 2))
    assert "<lambda>" not in text
    assert "measured, a step of <lambda>" in unescape(text)


def test_several_runs_stand_side_by_side(document):
    text = shown(files.page([document, files.read(FIRST)[0]]))
    assert "2 runs side by side" in text
    assert text.count("<article") == 2
    ids = re.findall(r' id="(.*?)"', text)
    assert len(ids) == len(set(ids))
    assert "largest blocker" in text


def test_estimated_times_say_whose_measurements_they_are(document):
    figures = {
        **document["figures"],
        "estimated_ms": {"float32": 312.0, "now": 237.0, "casts": 13.0},
    }
    for source in ("measured on this machine", "shipped for AMD Zen 4"):
        devices = [{"type": "CPU", "costs": source}]
        text = shown(files.page([{**document, "figures": figures, "devices": devices}]))
        assert f"312 ms in float32, by costs {source}" in text


def test_without_figures_the_page_says_why(document):
    assert "There are no figures" in shown(files.page([{**document, "figures": None}]))
    empty = {**RewriteReport(summary="0 graphs: TensorFlow ran no graph").to_dict()}
    text = shown(files.page([empty]))
    assert "No graph came to amp_tf" in text
    assert "0 graphs: TensorFlow ran no graph" in text


LAYER = """
    {0}/query/MatMul = MatMul({1}, {1})
    {0}/BiasAdd = BiasAdd({0}/query/MatMul, x)
    {0}/softmax/Exp = Exp({0}/BiasAdd)
    {0}/gelu/Tanh = Tanh({0}/softmax/Exp)
    {0}/residual/AddV2 = AddV2({0}/gelu/Tanh, {1})
"""


def test_a_graph_of_10_000_nodes_makes_less_than_400_kilobytes():
    """Layers of a transformer's size of name, in a chain."""
    lines = ["x = Placeholder()"]
    source = "x"
    for layer in range(2_000):
        scope = f"transformer_model/encoder_block_{layer // 40}/attention_{layer % 40}"
        lines.append(LAYER.format(scope, source))
        source = f"{scope}/residual/AddV2"
    document = reported(graph("".join(lines))).to_dict(seconds=0)
    assert document["total"] == 10_001
    assert len(files.page([document])) < 400_000


def test_what_is_drawn_is_told_in_words(document):
    text = shown(files.page([document]))
    drawings = re.findall(r"<svg[^>]*>", text)
    assert drawings
    for drawing in drawings:
        assert 'role="img"' in drawing
        assert re.search('aria-label="[^"]+"', drawing)
    assert "<th></th>" not in text
    levels = re.findall(r"<(h\d)", text)
    assert set(levels) <= {"h1", "h2"}
    assert text.count("<input") == len(re.findall("<label>[^<]+<input", text)) > 0


@pytest.mark.parametrize(
    ("call", "values", "shown"),
    [
        (  # never rounded to all or nothing
            "share",
            [0.99996, 0.9993, 1, 0, 1e-5, 0.53, None],
            [">99.9 %", "99.9 %", "100 %", "0 %", "<0.1 %", "53 %", "unknown"],
        ),
        (
            "operations",
            [999.4e6, 999.6e6, 1e18, 0.0],
            ["999 MFLOP", "1 GFLOP", "1e+03 PFLOP", "0 FLOP"],
        ),
        ("milliseconds", [0.0123, 12.34, 999.7], ["0.0123 ms", "12.3 ms", "1,000 ms"]),
    ],
)
def test_how_figures_are_rounded(call, values, shown, document):
    assert (
        evaluated(files.page([document]), f"{json.dumps(values)}.map(value => {call}(value))")
        == shown
    )
    assert call != "share" or list(map(percent, values)) == shown


def open_page(page, file):
    """Opens a page, and waits until its scripts have shown what it holds."""
    page.open(file)
    page.wait("document.querySelector('article')?.textContent")


@needs_browser
def test_a_search_gives_the_path_of_the_decision_by_keyboard_alone(page, file):
    open_page(page, file)
    page.look(1200)
    page.run("document.querySelector('input[type=search]').focus()")
    page.press("denied/mul")
    assert page.wait("document.querySelector('.found p')?.textContent") == "2 nodes"
    page.press(browser.TAB + browser.TAB + browser.ENTER)
    steps = page.wait("[...document.querySelectorAll('.path li')].map(item => item.textContent)")
    assert steps == [
        "denied/mul (Mul), float32: it uses values of the deny-list node 'denied/Exp'",
        "denied/Exp (Exp), float32: its op is on the deny list",
    ]
    assert page.run("return document.activeElement.className") == "path", (
        "a screen reader goes on from there"
    )


@needs_browser
def test_a_blocker_leads_to_its_node_and_a_layer_opens(page, file):
    open_page(page, file)
    page.run("document.querySelector('button.node').click()")
    assert "kept/Conv3D (Conv3D), float32: its name matches a keep_float32 rule" in page.wait(
        "document.querySelector('.path')?.textContent"
    )
    page.run("document.querySelector('details[data-layer=kernel]').open = true")
    page.wait("document.querySelectorAll('details[data-layer=kernel] li').length == 5")


@needs_browser
@pytest.mark.parametrize("width", [390, 768, 1200])
def test_nothing_hangs_over_the_edge(page, file, width):
    open_page(page, file)
    page.look(width)
    page.run("document.querySelector('button.node').click()")
    page.run("document.querySelectorAll('details').forEach(part => { part.open = true })")
    page.wait("document.querySelector('.path') && document.querySelector('.layers li')")
    assert page.run("return document.documentElement.scrollWidth") <= width


@needs_browser
def test_in_a_notebook_the_figures_stand_in_a_frame_of_their_own(page, document, tmp_path):
    (tmp_path / "notebook.html").write_text(
        f"<h1>Cell</h1>{files.fragment(document)}", encoding="utf-8"
    )
    page.open(tmp_path / "notebook.html")
    shown = page.wait(
        "document.querySelector('iframe').contentDocument.querySelector('.big')?.textContent"
    )
    assert shown == percent(document["figures"]["products_share_f16"])
    assert page.run("return getComputedStyle(document.querySelector('h1')).marginTop") != "0px"


@pytest.mark.parametrize(
    ("gains", "said"),
    [
        ((None, None), None),
        ((0.0, 0.0), "Nothing becomes 16 bit if one of them alone is taken away."),
        (
            (0.0, None),
            "Nothing becomes 16 bit if one of those that were tried alone is taken away.",
        ),
    ],
)
def test_that_a_blocker_alone_gains_nothing_is_said_of_those_that_were_tried(document, gains, said):
    first = document["blockers"][0]
    document = {**document, "blockers": [{**first, "gain": gain} for gain in gains]}
    text = shown(files.page([document]))
    assert (said in text) if said else ("Nothing becomes" not in text)
