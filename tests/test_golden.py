from __future__ import annotations

import pytest

from tests.golden import check_golden


def test_an_equal_text_passes_and_takes_an_old_actual_file_away(tmp_path):
    (tmp_path / "g.txt").write_text("a\nb\n")
    (tmp_path / "g.actual").write_text("old")
    check_golden("g", "a\nb\n", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["g.txt"]


def test_a_different_text_fails_with_the_difference_and_is_written_beside(tmp_path):
    (tmp_path / "g.txt").write_text("a\nb\n")
    with pytest.raises(AssertionError, match=r"-b\n\+c"):
        check_golden("g", "a\nc\n", tmp_path)
    assert (tmp_path / "g.actual").read_text() == "a\nc\n"
    assert (tmp_path / "g.txt").read_text() == "a\nb\n"


def test_a_text_without_a_golden_file_fails_and_is_written(tmp_path):
    with pytest.raises(AssertionError, match=r"\+a"):
        check_golden("g", "a\n", tmp_path)
    assert (tmp_path / "g.actual").read_text() == "a\n"
