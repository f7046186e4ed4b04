from __future__ import annotations

import subprocess
import sys

import pytest

from tests.hooks import running
from tests.tiers import starts_process


def by_itself():
    subprocess.run([sys.executable, "-c", ""], check=True)


def by_a_helper():
    running.run(["-c", ""], None, {})


def in_a_comprehension():
    return [by_helper_of_helper() for _ in range(2)]


def by_helper_of_helper():
    return by_itself()


def alone():
    return running.SUMMARY.search("amp_tf: 1 graph")


@pytest.mark.parametrize(
    ("function", "expected"),
    [(by_itself, True), (by_a_helper, True), (in_a_comprehension, True), (alone, False)],
)
def test_what_starts_a_process_is_found_through_helpers(function, expected, request):
    item = pytest.Function.from_parent(request.node.parent, name=function.__name__, callobj=function)
    assert starts_process(item) is expected


@pytest.fixture
def started():
    return by_itself()


def asks_for_a_fixture(started):
    pass


def test_a_fixture_that_starts_one_counts_for_the_tests_that_ask_for_it(request):
    item = pytest.Function.from_parent(request.node.parent, name="asks", callobj=asks_for_a_fixture)
    assert starts_process(item)
