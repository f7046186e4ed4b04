"""Long work shows its progress: on terminals in one line that changes, elsewhere now and then."""

from __future__ import annotations

import io
import sys
import threading
import time

import pytest

from amp_tf.tools import progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def wait_for(what, seconds=20.0):
    end = time.monotonic() + seconds
    while not what() and time.monotonic() < end:
        time.sleep(0.01)
    assert what()


def tellers():
    return [
        thread for thread in threading.enumerate() if thread.name.endswith("tells what it is doing")
    ]


def stderr(monkeypatch):
    """Returns a function that gives what will be written to stderr.

    What a thread writes while pytest's capsys is read is lost, and pytest takes back what a fixture
    puts in the place of ``sys.stderr``.
    """
    monkeypatch.setattr(sys, "stderr", written := io.StringIO())
    return written.getvalue


def test_a_terminal_has_one_line_that_changes(monkeypatch):
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    told = progress.on_stderr("amp-tf compare")
    told("batch 1 of 8")
    told("")
    assert terminal.getvalue() == "\r\033[Kbatch 1 of 8\r\033[K"
    assert not tellers()


def test_a_log_gets_lines_while_one_step_takes_long(monkeypatch):
    monkeypatch.setattr(progress, "_EVERY_S", 0.01)
    log = stderr(monkeypatch)
    told = progress.on_stderr("amp-tf compare")
    told("batch 1 of 8")
    wait_for(lambda: log().count("batch 1 of 8") >= 2)
    told("batch 2 of 8")
    wait_for(lambda: "batch 2 of 8" in log())
    told("")
    wait_for(lambda: not tellers())
    lines = log().splitlines()
    assert lines[0] == "amp-tf compare: batch 1 of 8 (0 s so far)"
    assert all(line.startswith("amp-tf compare: batch ") for line in lines)


def test_a_log_gets_nothing_of_what_is_done_at_once(monkeypatch):
    log = stderr(monkeypatch)
    with progress.during(progress.on_stderr("amp-tf rewrite"), "rewriting model"):
        assert tellers()
    wait_for(lambda: not tellers())
    assert log() == ""


def test_what_fails_is_not_told_of_any_more(monkeypatch):
    stderr(monkeypatch)
    with (
        pytest.raises(ZeroDivisionError),
        progress.during(progress.on_stderr("amp-tf rewrite"), "rewriting model"),
    ):
        raise ZeroDivisionError
    wait_for(lambda: not tellers())


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 s"),
        (119, "119 s"),
        (150, "2 min"),
        (3_000, "50 min"),
        (3_599, "1 h 0 min"),
        (4_900, "1 h 22 min"),
        (7_195, "2 h 0 min"),
    ],
)
def test_times_are_for_people(seconds, text):
    assert progress.lasting(seconds) == text
