from __future__ import annotations

from collections.abc import Iterator

import pytest

from amp_tf.hooks import notices, xla
from amp_tf.reporting import process


@pytest.fixture(autouse=True)
def told_anew() -> None:
    """What is told once in a process is told anew in each test."""
    notices.said.clear()


@pytest.fixture
def xla_hook_off_afterwards() -> Iterator[None]:
    yield
    xla.uninstall()
    process.reset()
