from __future__ import annotations

import gc
import threading

import pytest

from amp_tf.rewriting.garbage import pause_garbage_collector


@pytest.fixture(autouse=True)
def collector_is_on():
    gc.enable()
    yield
    gc.enable()


def test_the_collector_pauses_and_goes_on():
    with pause_garbage_collector():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_the_collector_goes_on_after_an_error():
    with pytest.raises(KeyError), pause_garbage_collector():
        raise KeyError
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off():
    gc.disable()
    with pause_garbage_collector():
        pass
    assert not gc.isenabled()


def test_the_last_of_several_rewrites_at_once_turns_it_on_again():
    first_is_in, second_is_done = threading.Event(), threading.Event()

    def first():
        with pause_garbage_collector():
            first_is_in.set()
            second_is_done.wait(30)

    thread = threading.Thread(target=first)
    thread.start()
    assert first_is_in.wait(30)
    with pause_garbage_collector():
        pass
    assert not gc.isenabled(), "the first rewrite still runs"
    second_is_done.set()
    thread.join(30)
    assert gc.isenabled()
