"""Healthy models are called healthy, and counted."""

import re
import sys

import pytest

from benchmarks import false_alarms


@pytest.mark.slow
def test_two_models_are_counted_and_called_right(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["benchmarks.false_alarms", "--models", "2"])
    assert false_alarms.main() == 0
    said = capsys.readouterr().out
    assert re.search(r"2 models, \d+ outputs; by one batch \d models are called wrong,\nin the end 0 outputs", said)
