from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests import absl_log


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[str], list[str]]]:
    """The messages so far that contain a text."""
    with absl_log.listening(caplog) as messages:
        yield messages
