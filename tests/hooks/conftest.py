from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from amp_tf.hooks import xla
from amp_tf.hooks.process import notices
from amp_tf.reporting import process


@pytest.fixture
def log(log: Callable[[str], list[str]]) -> Callable[[str], list[str]]:
    """The messages so far that contain a text; what is told once is told anew."""
    notices.forget()
    return log


@pytest.fixture
def xla_hook_off_afterwards() -> Iterator[None]:
    yield
    xla.uninstall()
    notices.forget()
    process.reset()
