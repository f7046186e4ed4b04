"""The page of a comparison, and its view for notebooks."""

from __future__ import annotations

import dataclasses
from html import unescape

import numpy as np
import pytest
import tensorflow as tf

import amp_tf
from amp_tf.reporting import files
from tests.reporting import browser
from tests.reporting.rendering import shown


def page(found):
    return files.page([{**found.to_dict(), "text": str(found)}])


@pytest.fixture(scope="module")
def found():
    def product(x):
        w = tf.constant(np.ones((6, 6), np.float32))
        with tf.name_scope("a_layer_of_a_very_long_name" * 4):
            return tf.matmul(x, w, name="beyond_the_range")

    x = np.full((4, 6), 5e4, np.float32)
    return amp_tf.compare(product, [x], amp_tf.AmpConfig(precision="float16", target="cpu"))


def test_the_page_has_the_verdicts_the_first_divergence_and_what_the_line_is_worth(found):
    plain = unescape(shown(page(found)).replace("<wbr>", ""))
    assert found.line
    assert f"<p>It {found.worth}.</p><pre>{found.line}</pre>" in plain
    assert "16 bit gains nothing" in found.worth
    assert f"First divergence</h2><p>{found.first_divergence.name} (MatMul), error inf in the run</p>" in plain
    assert "float16 ends at 65504" in plain
    assert "alone, it fixes all outputs of the batches that were judged</td>" in plain
    assert '<td data-head="output">result</td>' in plain


def test_where_nothing_mends_it_the_page_says_so(found):
    without = dataclasses.replace(found, patterns=(), mends=False)
    text = shown(page(without))
    assert "<h2>What to write</h2><p>No line fixes it: " in text
    assert "<pre>" not in text


def test_an_output_of_which_float32_has_no_digits_is_shown_as_such_and_not_as_the_furthest(found):
    clear = dataclasses.replace(found.outputs[0], error=0.07, ideal=0.06, noise=1e-6, ratio=1.2, is_good=True)
    blind = dataclasses.replace(clear, kind="gradient", name="key/bias", error=6.5456, noise=5.1, ratio=0.0)
    healthy = dataclasses.replace(found, outputs=(blind, clear), findings=(), patterns=(), first_divergence=None)
    cells = '<td data-head="ratio">–</td><td data-head="good">float32 itself has no two digits of it</td>'
    assert cells in shown(page(healthy))
    assert "The output nearest to its limit is the result: off by 7.00%; up to 24.00% is healthy." in str(healthy)
    assert "Of 1 outputs float32 itself has less than two digits: these only have to be finite." in str(healthy)


def test_a_notebook_shows_the_page_in_a_frame(found):
    view = found._repr_html_()
    assert view.startswith("<iframe srcdoc=")
    text = unescape(unescape(shown(unescape(view))).replace("<wbr>", ""))
    assert found.worth in text
    assert f"amp_tf.enable(keep_float32={list(found.patterns)})" in text
    assert "AMP_TF_KEEP_FLOAT32" not in text


@pytest.mark.skipif(bool(browser.MISSING), reason=browser.MISSING)
def test_no_column_is_cut_on_a_narrow_screen(found, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(page(found))
    with browser.browser() as window:
        window.open(path)
        window.wait("document.querySelector('article')?.textContent")
        for width in (400, 1000):
            window.look(width)
            right = "Math.max(...[...document.querySelectorAll('td, pre')].map(e => e.getBoundingClientRect().right))"
            assert window.run(f"return {right}") <= width


def test_without_javascript_the_page_shows_what_the_terminal_does(found):
    assert f"<pre>{files.html.escape(str(found))}</pre></noscript>" in page(found)
