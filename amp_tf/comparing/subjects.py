"""Turns whatever is compared, a model, a function or runs of a session, into a step."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

from amp_tf.comparing.flattening import FlatStep, flatten
from amp_tf.comparing.sessions import SessionRuns
from amp_tf.comparing.steps import Step, trace


def flat_step(subject: Any, batches: Iterable[Any], limit: int) -> tuple[Step, FlatStep]:
    """The step of a subject, and its flat graph.

    Args:
        subject: a Keras model, a function, or a :class:`SessionRuns`.
        batches: what to feed.
        limit: how many batches are used.

    Raises:
        ConfigError, GraphError: as :func:`trace` and :func:`flatten`.
    """
    if isinstance(subject, SessionRuns):
        return subject.flat_step(itertools.islice(batches, limit))
    step, function = trace(subject, batches, limit)
    return step, flatten(step, function)
