"""What the hooks of ``amp-tf compare`` do where a comparison fails."""

from __future__ import annotations

import pytest

from amp_tf.config import AmpConfig
from amp_tf.hooks import notices
from amp_tf.tools.comparing.training import CompareRequest, Training


@pytest.fixture(autouse=True)
def forgotten():
    notices.said.clear()
    yield
    notices.said.clear()


def _fail(folder):
    training = Training(CompareRequest(folder, AmpConfig(), 8))
    with training.surviving():
        raise ValueError("no data")
    return training


def test_a_program_goes_on_where_the_command_has_ended(tmp_path):
    training = _fail(tmp_path / "gone")
    assert not training.is_awaited


def test_the_answer_says_why_there_is_none(tmp_path):
    assert _fail(tmp_path).request.read_answer() == {"error": "ValueError: no data"}


def test_what_another_process_found_stays(tmp_path):
    request = CompareRequest(tmp_path, AmpConfig(), 8)
    request.answer({"comparison": {}, "text": "healthy"})
    _fail(tmp_path)
    assert request.read_answer() == {"comparison": {}, "text": "healthy"}
