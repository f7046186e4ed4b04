"""What loss scaling did in TF1 sessions, for the line at exit: each session is asked when it closes.

Keras' models are watched by a callback. A session has none, and once it is closed its variables are gone.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

from amp_tf.loss_scaling.diagnosis import Status

_ATTRIBUTE = "_amp_tf_loss_scales"  # of a graph: its wrappers, numbered
_numbers = itertools.count()
_last_looks: dict[int, Status] = {}


def watch(graph: Any, wrapper: Any) -> None:
    """Notes that a graph holds the variables of a wrapper.

    Args:
        graph: a ``tf.Graph``.
        wrapper: an ``amp_tf.LossScaleOptimizer`` for TF1.
    """
    setattr(graph, _ATTRIBUTE, (*getattr(graph, _ATTRIBUTE, ()), (next(_numbers), wrapper)))


def last_statuses() -> list[Status]:
    """What each wrapper's session said that made the most steps."""
    return list(_last_looks.values())


def close(original: Callable[[Any], None]) -> Callable[[Any], None]:
    """The replacement of a session's ``close``."""

    @functools.wraps(original)
    def method(self: Any) -> None:
        if not self.sess_str:  # a remote server may be gone by now, and nobody would want to wait for it
            _look(self)
        original(self)

    return method


def _look(session: Any) -> None:
    for number, wrapper in getattr(session.graph, _ATTRIBUTE, ()):
        try:
            status = wrapper.status(session)
        except Exception:  # closed, broken or never initialized: there is nothing to tell
            continue
        if status.steps and (number not in _last_looks or status.steps >= _last_looks[number].steps):
            _last_looks[number] = status
