"""The picture of the suite's figures, on made-up ones."""

from __future__ import annotations

import pytest

from benchmarks.step_time.modes import modes
from benchmarks.step_time.suite import Row

pytest.importorskip("matplotlib")
from benchmarks.step_time.plots import plot

MODES = [mode for mode in modes("bfloat16").values() if mode.name in ("float32", "policy", "amp_tf")]


def rows(*batches: int) -> list[Row]:
    return [
        Row("bert", way, mode, batch, ms)
        for way in ("fit", "predict")
        for batch in batches
        for mode, ms in (("float32", (10.0, 12.0)), ("policy", (13.0, 12.0)), ("amp_tf", (5.0, 6.0)))
    ]


def test_picture_has_a_panel_for_each_way_a_title_for_each_model_and_the_speed_ups(tmp_path):
    plot(rows(16), MODES, tmp_path / "one.svg")
    text = (tmp_path / "one.svg").read_text()
    for words in ("fit", "predict", "BERT encoder", "Keras mixed_bfloat16", "amp_tf", "2.00"):
        assert f"<!-- {words} -->" in text
    plot(rows(16), MODES, tmp_path / "again.svg")
    assert (tmp_path / "again.svg").read_text() == text


def test_batches_of_one_model_are_told_apart(tmp_path):
    plot(rows(8, 16), MODES, tmp_path / "two.svg")
    text = (tmp_path / "two.svg").read_text()
    assert "<!-- BERT encoder, batch 8 -->" in text
    assert "<!-- BERT encoder, batch 16 -->" in text


def test_nothing_to_draw_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="nothing to draw"):
        plot([Row("bert", "fit", "amp_tf", error="it broke")], MODES, tmp_path / "none.svg")
