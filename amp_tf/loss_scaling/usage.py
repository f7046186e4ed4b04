"""How a training loop uses its wrapper: whether it scaled the loss, and who unscales the gradients.

A wrapper cannot see the loop, only the calls that reach it while the step is traced or run. From their order follows
what ``apply_gradients`` gets: scaled gradients, gradients that the loop unscaled itself, or gradients of a loss that
was never scaled, which must not be divided.

A loop may also multiply its loss by ``loss_scale``. To read the scale says nothing, because loops log it; the graph
says whether the gradients were computed from it. Where it cannot tell (eager steps, gradients that another function
left in variables) they count as never scaled: a step that is too large shows at once and comes with a warning, while
gradients divided by a scale that never multiplied them stop the training in silence.
"""

from __future__ import annotations

import contextlib
import enum
import threading
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from absl import logging

from amp_tf.loss_scaling import finite, lineage
from amp_tf.loss_scaling.diagnosis import TWO_LINES


class Gradients(enum.Enum):
    """What ``apply_gradients`` is given."""

    SCALED = "scaled"
    UNSCALED_BY_LOOP = "unscaled by the loop"
    NEVER_SCALED = "never scaled"


class Usage:
    """Watches one wrapper's calls. Cheap, thread-safe enough: replicas of one process trace one after the other."""

    def __init__(self) -> None:
        self._kind = Gradients.NEVER_SCALED
        self._loop_unscales = False
        self._has_warned = False
        self._losses = threading.local()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_losses"}  # a tensor of this process

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._losses = threading.local()

    def note_scaled_loss(self, loss: Any) -> None:
        """The loop scaled this (unscaled, nest of) loss."""
        if self._kind is Gradients.NEVER_SCALED:
            self._kind = Gradients.SCALED
        flag = finite.is_nonfinite(loss)
        earlier = self._take_flag()
        self._losses.note = (_current_graph(), flag if earlier is None else tf.logical_or(flag, earlier))

    def note_unscaled_gradients(self) -> None:
        """The loop unscales its gradients itself, as loops written for tf_keras do."""
        self._kind = Gradients.UNSCALED_BY_LOOP

    def note_automatic_unscaling(self) -> None:
        """The loop leaves unscaling to ``apply_gradients``, as Keras 3 does."""
        self._kind = Gradients.SCALED

    def judge(self, gradients: Any, scale: Any, by_hand: Gradients, where: str) -> Gradients:
        """What the gradients are that arrive now; warns once if no loss was ever scaled.

        Args:
            gradients: a list of them.
            scale: the variable that holds the loss scale.
            by_hand: what gradients of a loss that the loop multiplied by the variable are.
            where: names the optimizer in the warning.
        """
        if self._kind is not Gradients.NEVER_SCALED:
            return self._kind
        if lineage.depends_on(gradients, scale):
            return by_hand
        if not self._has_warned:
            self._has_warned = True
            logging.warning(
                "amp_tf: %s: apply_gradients was called but the loss was never scaled, so small gradients are lost in "
                "float16; the gradients are applied as they are. Add two lines to the training step:\n    %s",
                where,
                TWO_LINES,
            )
        return Gradients.NEVER_SCALED

    def take_nonfinite_loss(self) -> Any:
        """Whether a loss scaled since the last call, in the same graph, was nonfinite; false where it is not known."""
        flag = self._take_flag()
        return tf.constant(False) if flag is None else flag

    def _take_flag(self) -> Any:
        graph, flag = getattr(self._losses, "note", (None, None))
        self._losses.note = (None, None)
        return flag if graph is _current_graph() else None


_inner_calls = threading.local()


@contextlib.contextmanager
def inner_call() -> Iterator[None]:
    """Marks a call from a wrapper to its own inner optimizer, so that an automatic wrapping lets it through."""
    before = is_inner_call()
    _inner_calls.active = True
    try:
        yield
    finally:
        _inner_calls.active = before


def is_inner_call() -> bool:
    """Whether this thread is inside :func:`inner_call`."""
    return getattr(_inner_calls, "active", False)


_scaled_steps = 0
_scaled_steps_lock = threading.Lock()


@contextlib.contextmanager
def scaled_step() -> Iterator[None]:
    """Marks the step of an optimizer that scales its loss, whatever optimizers it calls, on whatever threads.

    The mark is the process', because a strategy calls inner optimizers on threads of its own.
    """
    global _scaled_steps
    with _scaled_steps_lock:
        _scaled_steps += 1
    try:
        yield
    finally:
        with _scaled_steps_lock:
            _scaled_steps -= 1


def is_scaled_step() -> bool:
    """Whether any thread is inside :func:`scaled_step`."""
    return _scaled_steps > 0


def _current_graph() -> Any:
    return "eager" if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
