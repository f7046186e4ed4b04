"""Golden files of texts."""

import pytest

from tests.golden import check_golden


@pytest.mark.parametrize("is_there", [True, False])
def test_another_text_than_the_golden_one_fails_with_the_difference_and_is_written_beside(
    tmp_path, is_there
):
    if is_there:
        (tmp_path / "g.txt").write_text("a\nb\n")
    with pytest.raises(AssertionError, match=r"-b\n\+c" if is_there else r"\+c"):
        check_golden("g", "a\nc\n", tmp_path)
    assert (tmp_path / "g.actual").read_text() == "a\nc\n"
    assert not is_there or (tmp_path / "g.txt").read_text() == "a\nb\n"
