"""What the hooks of ``amp-tf compare`` do where a comparison fails."""

from __future__ import annotations

import pytest

from amp_tf.config import AmpConfig
from amp_tf.hooks import notices
from amp_tf.hooks.comparison.errand import Errand
from amp_tf.hooks.comparison.training import Training


@pytest.fixture(autouse=True)
def forgotten():
    notices.forget()
    yield
    notices.forget()


def _fail(folder):
    training = Training(Errand(folder, AmpConfig(), 8))
    with training.surviving():
        raise ValueError("no data")
    return training


def test_a_program_goes_on_where_the_command_has_ended(tmp_path):
    training = _fail(tmp_path / "gone")
    assert not training.is_awaited


def test_the_answer_says_why_there_is_none(tmp_path):
    assert _fail(tmp_path).errand.read_answer() == {"error": "ValueError: no data"}


def test_what_another_process_found_stays(tmp_path):
    errand = Errand(tmp_path, AmpConfig(), 8)
    errand.answer({"comparison": {}, "text": "healthy"})
    _fail(tmp_path)
    assert errand.read_answer() == {"comparison": {}, "text": "healthy"}
