"""Records what loss scaling did in TF1 sessions, for the line at exit: each session is read when it closes.

A callback watches Keras' models. A session has no callback, and once it is closed its variables are gone. A session
closed by the garbage collector is not read, because that takes a run.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

from amp_tf.hooks.process import state
from amp_tf.loss_scaling import ledger
from amp_tf.loss_scaling.diagnosis import Status

_ATTRIBUTE = "_amp_tf_loss_scales"  # of a graph: what is watched


@dataclasses.dataclass
class _Watched:
    """A wrapper whose variables a graph holds.

    Attributes:
        wrapper: of an optimizer.
        number: in the ledger, once a session made a step.
        steps: how many the session made that made the most.
    """

    wrapper: Any
    number: int | None = None
    steps: int = 1


def watch(graph: Any, wrapper: Any) -> None:
    """Records that a ``tf.Graph`` holds the variables of a wrapper."""
    state.watch_collections()
    setattr(graph, _ATTRIBUTE, (*getattr(graph, _ATTRIBUTE, ()), _Watched(wrapper)))


def look_and_close(close: Callable[[Any], None], session: Any) -> None:
    """Replaces a session's ``close``: reads the loss scales first."""
    # A remote server may be gone by now, and nobody would want to wait for it.
    if not session.sess_str and not state.is_collecting():
        for watched in getattr(session.graph, _ATTRIBUTE, ()):
            with contextlib.suppress(Exception):  # closed, broken or never initialized: there is nothing to report
                _look(session, watched)
    close(session)


def _look(session: Any, watched: _Watched) -> None:
    status = watched.wrapper.status(session)
    if status.steps >= watched.steps:
        if watched.number is None:
            watched.number = ledger.enter(watched.wrapper.inner_optimizer.get_name(), _is_closed)
        watched.steps = status.steps
        ledger.note_look(watched.number, status)


def _is_closed() -> Status:
    """Stands for a status that can no longer be read.

    Raises:
        RuntimeError: always; the last look counts.
    """
    raise RuntimeError("the session is closed")
