"""What amp_tf logs, as a user sees it by default. pytest's caplog sees absl's logger only while that propagates."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest
from absl import logging


@contextlib.contextmanager
def listening(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[str], list[str]]]:
    """Gives a function that returns the messages so far that contain a text."""
    logger = logging.get_absl_logger()
    propagate, verbosity = logger.propagate, logging.get_verbosity()
    logger.propagate = True
    logging.set_verbosity(logging.WARNING)  # absl's default
    try:
        yield lambda text: [r.getMessage() for r in caplog.records if text in r.getMessage()]
    finally:
        logging.set_verbosity(verbosity)
        logger.propagate = propagate
