"""Checks the order in which a loop calls its scaler: scale, unscale, step. Any other order is an error.

Calls are counted where they are made: eagerly or in the graph that is being traced, for each replica separately.
Another function may continue where one ended, with gradients passed to it, so a call is refused only if the earlier
call that it needs is pending nowhere.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

from amp_tf.errors import CallOrderError
from amp_tf.loss_scaling.recognizing.usage import places

THREE_LINES = (
    "scaled_loss = scaler.scale(loss)                          # inside the GradientTape\n"
    "    gradients = scaler.unscale(tape.gradient(scaled_loss, variables))\n"
    "    scaler.step(apply, gradients)                             # apply(gradients) writes the variables"
)
_FIX = f"Write three lines in this order:\n    {THREE_LINES}\n"
_WHERE = "LossScaler"


class _Open:
    """The calls of one replica in one graph since its last step.

    Attributes:
        is_scaled: a loss.
        unscaled: how often it unscaled gradients that no step was made with.
    """

    def __init__(self) -> None:
        self.is_scaled = False
        self.unscaled = 0


class CallOrder:
    """Checks the order of calls of one scaler in this process; a copy starts over."""

    def __init__(self) -> None:
        self._by_place: weakref.WeakKeyDictionary[Any, dict[int, _Open]] = weakref.WeakKeyDictionary()
        # Tensors that unscale was given and returned, by id, as long as they live.
        self._given: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._returned: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]

    def note_scale(self) -> None:
        """Records that a loss was scaled."""
        self._here().is_scaled = True

    def note_unscale(self, gradients: Iterable[Any], results: Iterable[Any]) -> None:
        """Records that gradients are unscaled.

        Args:
            gradients: the arguments.
            results: the unscaled gradients.

        Raises:
            CallOrderError: no loss was scaled since the last step, or some of the gradients are unscaled already.
        """
        gradients = list(gradients)
        if any(self._returned.get(id(value)) is value for value in _tensors(gradients)):
            raise _error("unscale() got gradients that it unscaled already: they would be divided twice")
        if not any(opened.is_scaled for opened in self._all()):
            raise _error(
                "unscale() was called, but no loss was scaled since the last step: the gradients would be divided by a "
                "scale that never multiplied them"
            )
        self._here().unscaled += 1
        self._given.update((id(value), value) for value in _tensors(gradients))
        self._returned.update((id(value), value) for value in _tensors(results))

    def note_step(self, gradients: Iterable[Any]) -> None:
        """Records a step; the next one needs a newly scaled loss, because the scale may move.

        Raises:
            CallOrderError: no gradients were unscaled since the last step, or these still are scaled.
        """
        if not any(opened.unscaled for opened in self._all()):
            raise _error("step() was called, but no gradients were unscaled since the last step")
        if any(self._given.get(id(value)) is value for value in _tensors(gradients)):
            raise _error("step() got gradients as unscale() was given them, still multiplied by the loss scale")
        here = self._here()
        here.unscaled = max(here.unscaled - 1, 0)
        here.is_scaled = False

    def _here(self) -> _Open:
        return self._by_place.setdefault(places()[0], {}).setdefault(_replica(), _Open())

    def _all(self) -> Iterator[_Open]:
        """The calls since the last step in any graph; only this replica's, in graphs in which it made any."""
        surrounding = places()
        for place, by_replica in list(self._by_place.items()):
            if place in surrounding and _replica() in by_replica:
                yield by_replica[_replica()]
            else:
                yield from by_replica.values()


def _error(what: str) -> CallOrderError:
    return CallOrderError(what, where=_WHERE, fix=_FIX.rstrip())


def _tensors(gradients: Iterable[Any]) -> Iterator[Any]:
    for gradient in gradients:
        value = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
        if tf.is_tensor(value):
            yield value


def _replica() -> int:
    """The number of this replica; -1 outside of replicas, or where a strategy knows it only at run time."""
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return -1
    number = tf.get_static_value(context.replica_id_in_sync_group)
    return -1 if number is None else int(number)
