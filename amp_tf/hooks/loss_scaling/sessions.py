"""What loss scaling did in TF1 sessions, for the line at exit: each session is asked when it closes.

Keras' models are watched by a callback. A session has none, and once it is closed its variables are gone. One that the
garbage collector closes is not asked: that takes a run.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from amp_tf.hooks import collecting
from amp_tf.loss_scaling.diagnosis import Status

_ATTRIBUTE = "_amp_tf_loss_scales"  # of a graph: its wrappers, numbered
_numbers = itertools.count()
_last_looks: dict[int, tuple[str, Status]] = {}


def watch(graph: Any, wrapper: Any) -> None:
    """Notes that a ``tf.Graph`` holds the variables of a wrapper."""
    collecting.watch()
    setattr(graph, _ATTRIBUTE, (*getattr(graph, _ATTRIBUTE, ()), (next(_numbers), wrapper)))


def statuses() -> list[tuple[str, Status]]:
    """The name of each wrapper's optimizer, and what its session said that made the most steps."""
    return list(_last_looks.values())


def look_and_close(close: Callable[[Any], None], session: Any) -> None:
    """In place of a session's ``close``."""
    # A remote server may be gone by now, and nobody would want to wait for it.
    if not session.sess_str and not collecting.is_running():
        _look(session)
    close(session)


def _look(session: Any) -> None:
    for number, wrapper in getattr(session.graph, _ATTRIBUTE, ()):
        try:
            status, name = wrapper.status(session), wrapper.inner_optimizer.get_name()
        except Exception:  # closed, broken or never initialized: there is nothing to tell
            continue
        if status.steps and (number not in _last_looks or status.steps >= _last_looks[number][1].steps):
            _last_looks[number] = name, status
