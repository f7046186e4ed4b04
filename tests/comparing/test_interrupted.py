"""Ctrl-C gives what is known by then; progress is told."""

import io
import os
import signal

import numpy as np
import pytest

import amp_tf
from amp_tf.tools import on_terminal, silent
from tests.comparing.planted import PLANTED

CONFIG = amp_tf.AmpConfig(precision="float16", target="cpu")


@pytest.fixture(autouse=True)
def with_the_usual_handler():
    """A shell's background jobs, which pytest may be one of, ignore Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def _compare(at=None, batches=4):
    """Compares a program that goes wrong, and interrupts it where what is done begins with a text."""
    told = []

    def progress(text):
        told.append(text)
        if at is not None and text.startswith(at) and [t.startswith(at) for t in told].count(True) == 1:
            os.kill(os.getpid(), signal.SIGINT)

    planted, rng = PLANTED["inputs"], np.random.default_rng(3)
    rows = [planted.batch(rng) for _ in range(batches)]
    return amp_tf.compare(planted.make(), rows, CONFIG, steps=batches, progress=progress), told


def test_progress_is_told():
    found, told = _compare()
    assert not found.is_cut
    batches = [text for text in told if text.startswith("float32 and float16: batch ")]
    assert [text.rpartition(" batch ")[2] for text in batches] == [f"{number} of 4" for number in range(1, 5)]
    assert told[0] == "tracing the step"
    assert told[-1] == ""


def test_interrupted_between_batches_it_judges_those_that_ran():
    found, _ = _compare("float32 and float16: batch 3")
    assert (found.is_cut, found.batches, found.is_healthy, found.nodes) == (True, 2, False, ())
    assert str(found).splitlines()[-2:] == [
        "What would fix it was not found.",
        "Note: it was interrupted: not all batches, nodes or remedies were tried",
    ]


def test_interrupted_while_it_judges_it_has_the_batches_that_were_judged():
    found, told = _compare("float32, disturbed: batch 2", batches=16)
    assert (found.is_cut, found.batches, found.is_healthy, found.nodes) == (True, 16, False, ())
    assert [text for text in told if text.startswith("products alone in 16 bit: batch")] == [
        "products alone in 16 bit: batch 1 of 1"
    ]


def test_interrupted_in_a_trial_it_has_the_nodes():
    found, _ = _compare("a trial with")
    assert (found.is_cut, found.batches, found.patterns) == (True, 4, ())
    assert found.first_divergence.name == "first"


def test_interrupted_before_the_first_batch_it_has_nothing_to_say():
    with pytest.raises(KeyboardInterrupt):
        _compare("tracing the step")


def test_progress_is_shown_on_terminals_only():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    on_terminal(terminal)("batch 1 of 8")
    assert terminal.getvalue() == "\r\033[Kbatch 1 of 8"
    assert on_terminal(io.StringIO()) is silent
