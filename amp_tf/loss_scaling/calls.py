"""What a loop asked of its scaler: whether the loss was scaled, and who divides the gradients.

=========================================== =========================
calls in the trace of a step                ``apply_gradients``
=========================================== =========================
scale_loss                                  divides
scale_loss, get_unscaled_gradients          takes them as they are
get_scaled_loss, get_unscaled_gradients     takes them as they are
get_scaled_loss                             takes them as they are, and warns
none                                        takes them as they are, and warns
=========================================== =========================

Only calls count: those in the graph in which a step is made, in one around it, or eager ones.
Gradients may also come from another function, by arguments or in variables, so calls in another
graph count as long as no step was made there; those of a trace that failed do not. What a loop
multiplies or divides by hand is left to it. A step that is too large shows at once, while gradients
divided by a scale that never multiplied them stop training silently.

*Two scalers*, as where a loop has a ``LossScaler`` and its optimizer was wrapped automatically: the
outer one decides whether to step, and the one that is called inside its step applies what it gets.
If both multiply the loss, that is an error.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

from amp_tf.errors import CallOrderError
from amp_tf.loss_scaling import finite

_ONE_OF_THEM = "Leave out one of them: either the LossScaler or the optimizer's scale_loss"

#: why gradients are taken as they are, and warned about
NEVER_SCALED = (
    "apply_gradients was called but the loss was never scaled, so small gradients are lost in "
    "float16"
)
LEFT_TO_LOOP = "get_scaled_loss was called without get_unscaled_gradients"


class _Made:
    """The calls that one replica made of one scaler in one graph, or eagerly."""

    def __init__(self) -> None:
        self.has_scaled = False
        self.is_open = False  # a loss was scaled, and no step made since
        self.divides_in_step = False  # by scale_loss
        self.unscaled = 0  # lists of gradients; of a LossScaler, those with which no step was made


class Calls:
    """Records the calls of one scaler in this process."""

    def __init__(self) -> None:
        self.is_used = False  #: whether any loss was scaled
        self._made: weakref.WeakKeyDictionary[Any, dict[int, _Made]] = weakref.WeakKeyDictionary()
        # Tensors before and after a loop had them unscaled, by id, as long as they live.
        self._scaled: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._unscaled: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()

    def note_scale(self, divides_in_step: bool) -> None:
        """Records that a loss was scaled, and whether the step is to divide."""
        self.is_used = True
        here = self._here()
        here.has_scaled = here.is_open = True
        here.divides_in_step |= divides_in_step

    def note_unscale(self, gradients: Iterable[Any], results: Iterable[Any]) -> None:
        """Records that the loop unscales gradients, and what it gets for them."""
        self._here().unscaled += 1
        self._scaled.update((id(value), value) for value in _tensors(gradients))
        self._unscaled.update((id(value), value) for value in _tensors(results))

    def note_step(self) -> None:
        """Records a step of a LossScaler; the next one needs a newly scaled loss."""
        here = self._here()
        here.unscaled = max(here.unscaled - 1, 0)
        here.is_open = False

    def judge(self, gradients: Iterable[Any]) -> tuple[bool, str]:
        """Whether ``apply_gradients`` is to divide what it is given now; where not, what is wrong,
        or an empty string.

        Then no other graph gets gradients of losses that were scaled here.
        """
        here = [made for place in places() for made in self._in(place)]
        known = here if any(made.has_scaled for made in here) else self.known()
        for made in here:
            made.is_open = False
        if not any(made.has_scaled for made in known):
            return False, NEVER_SCALED
        if self.are_scaled(gradients):
            return True, ""
        if any(made.unscaled for made in known):
            return False, ""
        return (True, "") if any(made.divides_in_step for made in known) else (False, LEFT_TO_LOOP)

    def are_scaled(self, gradients: Iterable[Any]) -> bool:
        """Whether the loop had some of these gradients unscaled, and these are still the scaled
        ones.
        """
        return any(self._scaled.get(id(value)) is value for value in _tensors(gradients))

    def are_unscaled(self, gradients: Iterable[Any]) -> bool:
        """Whether some of these gradients are what unscaling returned."""
        return any(self._unscaled.get(id(value)) is value for value in _tensors(gradients))

    def check_alone(self, where: str) -> None:
        """Refuses, by a CallOrderError, a step inside another scaler's if both scaled the loss."""
        if any(made.is_open for place in places() for made in self._in(place)):
            what = (
                "the loss is scaled twice, by this optimizer and by the LossScaler whose step "
                "calls it"
            )
            raise CallOrderError(what, where=where, fix=_ONE_OF_THEM)

    def _here(self) -> _Made:
        return self._made.setdefault(places()[0], {}).setdefault(_replica(), _Made())

    def _in(self, place: Any) -> list[_Made]:
        """The calls of this replica in a graph; those of all in one in which it made none."""
        by_replica = self._made.get(place, {})
        return [by_replica[_replica()]] if _replica() in by_replica else [*by_replica.values()]

    def known(self) -> list[_Made]:
        """The calls in this graph, in those around it, and in others whose gradients may be used
        here.
        """
        around = places()
        known = [(place, made) for place in list(self._made) for made in self._in(place)]
        return [
            made for place, made in known if place in around or (made.is_open and _ended(place))
        ]


# The losses that are scaled already, by id, as long as they live.
_scaled_losses: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def note_scaled(losses: Iterable[Any], scaled: Iterable[Any]) -> None:
    """Records that some scaler multiplied losses; raises a CallOrderError if they were scaled
    before.
    """
    if any(_scaled_losses.get(id(loss)) is loss for loss in losses):
        raise CallOrderError("the loss is scaled twice", where="scale_loss", fix=_ONE_OF_THEM)
    _scaled_losses.update((id(loss), loss) for loss in scaled)


class _EAGER:
    """Stands for the graph where there is none."""


_inner_calls = threading.local()
_scaled_steps = set[
    object
]()  # those that run now, on any thread; adding and discarding need no lock
# graphs in which any optimizer or scaler scaled a loss
_scaled_places: weakref.WeakSet[Any] = weakref.WeakSet()


def places() -> list[Any]:
    """The graph that is being traced and those around it; in eager execution, an object that stands
    for it.
    """
    if tf.executing_eagerly():
        return [_EAGER]
    graphs = [tf.compat.v1.get_default_graph()]
    while (outer := getattr(graphs[-1], "outer_graph", None)) is not None and hasattr(
        outer, "as_default"
    ):
        graphs.append(outer)
    return graphs


def note_place() -> None:
    """Records that a loss is scaled in the graph that is being traced, or need not be."""
    here, *around = places()
    # not the graph around all functions of a program that runs eagerly
    _scaled_places.update(
        [here, *(place for place in around if hasattr(place, "structured_outputs"))]
    )


def is_scaled_place() -> bool:
    """Whether a loss was scaled in the graph that is being traced, by whatever scaler."""
    return any(place in _scaled_places for place in places())


@contextlib.contextmanager
def inner_call() -> Iterator[None]:
    """Marks a call from a scaler's step: an optimizer that also scales the loss lets it pass."""
    before, _inner_calls.active = is_inner_call(), True
    try:
        yield
    finally:
        _inner_calls.active = before


def is_inner_call() -> bool:
    """Whether this thread is inside :func:`inner_call`."""
    return getattr(_inner_calls, "active", False)


@contextlib.contextmanager
def scaled_step() -> Iterator[None]:
    """Marks the step of an optimizer that scales its loss, with all optimizers that it calls, on
    any thread.

    The mark is the process', because a strategy calls inner optimizers on threads of its own.
    """
    note_place()
    step = object()
    _scaled_steps.add(step)
    try:
        yield
    finally:
        _scaled_steps.discard(step)


def is_scaled_step() -> bool:
    """Whether any thread is inside :func:`scaled_step`."""
    return bool(_scaled_steps)


def _ended(place: Any) -> bool:
    """Whether a function was traced to its end, where results and effects are set; eager code and
    TF1 graphs go on.
    """
    return not hasattr(place, "structured_outputs") or bool(place.outputs or place.control_outputs)


def _replica() -> int:
    """The number of this replica; -1 outside of replicas, or where a strategy knows it only at run
    time.
    """
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return -1
    number = tf.get_static_value(context.replica_id_in_sync_group)
    return -1 if number is None else int(number)


def _tensors(gradients: Iterable[Any]) -> Iterator[Any]:
    yield from filter(tf.is_tensor, map(finite.values_of, gradients))
