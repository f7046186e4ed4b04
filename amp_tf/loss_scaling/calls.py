"""Records the calls of a loop to its scaler, which tell who divides the gradients by the scale.

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
Calls in another graph count, too, as long as no step was made there, because gradients may come
from another function, by arguments or in variables. The calls of a trace that failed do not count.
A loop may also multiply or divide by hand, which nothing here changes. A step that is too large
shows at once. Gradients divided by a scale that never multiplied them would stop training silently.

*Two scalers*, as where a loop has a ``LossScaler`` and its optimizer was wrapped automatically: the
outer one decides whether to step, and the one that is called inside its step applies what it gets.
If both multiply the loss, that is an error.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping
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


#: marks losses that are scaled already, and graphs in which any scaler scaled a loss
_MARK = "_amp_tf_is_scaled"


class Made:
    """The calls that one replica made of one scaler in one graph, or eagerly."""

    def __init__(self) -> None:
        self.has_scaled = False
        self.is_open = False  #: a loss was scaled, and no step made since
        self.divides_in_step = False  #: by scale_loss
        self.unscaled = 0  #: lists of gradients; a LossScaler's step takes one off

    def add(self, other: Made) -> None:
        """Adds the calls that were made elsewhere."""
        self.has_scaled |= other.has_scaled
        self.is_open |= other.is_open
        self.divides_in_step |= other.divides_in_step
        self.unscaled += other.unscaled


class Calls:
    """Records the calls of one scaler in this process."""

    def __init__(self) -> None:
        self.is_used = False  #: whether any loss was scaled
        self._made: weakref.WeakKeyDictionary[Any, dict[int, Made]] = weakref.WeakKeyDictionary()
        # Gradients before and after :meth:`note_unscale`, by id, as long as they live.
        self._scaled: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._unscaled: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()

    def note_scale(self, divides_in_step: bool) -> None:
        """Records that a loss was scaled, and whether the step is to divide."""
        self.is_used = True
        here = self._here()
        here.has_scaled = True
        here.is_open = True
        here.divides_in_step |= divides_in_step

    def note_unscale(self, gradients: Iterable[Any], results: Iterable[Any]) -> None:
        """Records that the loop unscales gradients, with the results."""
        self._here().unscaled += 1
        for value in _tensors(gradients):
            self._scaled[id(value)] = value
        for value in _tensors(results):
            self._unscaled[id(value)] = value

    def note_step(self) -> None:
        """Records a step of a LossScaler; the next one needs a newly scaled loss."""
        here = self._here()
        here.unscaled = max(here.unscaled - 1, 0)
        here.is_open = False

    def judge(self, gradients: Iterable[Any]) -> tuple[bool, str]:
        """Decides whether ``apply_gradients`` divides the gradients that it is given now.

        After that, losses that were scaled here no longer count for other graphs.

        Returns the decision and, where they are not divided, what is wrong, or an empty string.
        """
        here = self._made_here()
        known = _total(here)
        if not known.has_scaled:
            known = self.known()
        for made in here:
            made.is_open = False
        if not known.has_scaled:
            return False, NEVER_SCALED
        if self.are_scaled(gradients):
            return True, ""
        if known.unscaled:
            return False, ""
        if known.divides_in_step:
            return True, ""
        return False, LEFT_TO_LOOP

    def are_scaled(self, gradients: Iterable[Any]) -> bool:
        """Tells whether some of these gradients are still scaled.

        They are if the loop had them unscaled, but passes them instead of the results.
        """
        return _has_any(self._scaled, gradients)

    def are_unscaled(self, gradients: Iterable[Any]) -> bool:
        """Tells whether some of these gradients are what unscaling returned."""
        return _has_any(self._unscaled, gradients)

    def check_alone(self, where: str) -> None:
        """Refuses, by a CallOrderError, a step inside another scaler's if both scaled the loss."""
        if _total(self._made_here()).is_open:
            what = (
                "the loss is scaled twice, by this optimizer and by the LossScaler whose step "
                "calls it"
            )
            raise CallOrderError(what, where=where, fix=_ONE_OF_THEM)

    def known(self) -> Made:
        """Adds up the calls in this graph, in those around it, and in others that may feed it."""
        around = places()
        total = Made()
        for place in list(self._made):
            for made in self._in(place):
                if place in around or (made.is_open and _ended(place)):
                    total.add(made)
        return total

    def _here(self) -> Made:
        return self._made.setdefault(places()[0], {}).setdefault(_replica(), Made())

    def _made_here(self) -> list[Made]:
        """The calls of this replica in the graph that is being traced and those around it."""
        found: list[Made] = []
        for place in places():
            found += self._in(place)
        return found

    def _in(self, place: Any) -> list[Made]:
        """Returns the calls of this replica in a graph.

        If it made none there, these are the calls of all replicas.
        """
        by_replica = self._made.get(place, {})
        replica = _replica()
        if replica in by_replica:
            return [by_replica[replica]]
        return [*by_replica.values()]


def _total(records: Iterable[Made]) -> Made:
    total = Made()
    for made in records:
        total.add(made)
    return total


def _has_any(known: Mapping[int, Any], gradients: Iterable[Any]) -> bool:
    """Tells whether any of the gradients is a tensor that was recorded."""
    return any(known.get(id(value)) is value for value in _tensors(gradients))


def note_scaled(losses: Iterable[Any], scaled: Iterable[Any]) -> None:
    """Records that some scaler multiplied losses.

    Raises a CallOrderError if they were scaled before.
    """
    for loss in losses:
        if hasattr(loss, _MARK):
            raise CallOrderError("the loss is scaled twice", where="scale_loss", fix=_ONE_OF_THEM)
    for loss in scaled:
        setattr(loss, _MARK, True)


class _EAGER:
    """Stands for the graph where there is none."""


# Changes with each call: of each thread, whether it is inside an inner call.
_inner_calls = threading.local()
# Changes with each step: those that run now, on any thread. A strategy calls inner optimizers on
# threads of its own, so no thread may own the mark. Adding and discarding need no lock.
_scaled_steps = set[object]()


def places() -> list[Any]:
    """The graph that is being traced and those around it; in eager code one that stands for it."""
    if tf.executing_eagerly():
        return [_EAGER]
    graphs = [tf.compat.v1.get_default_graph()]
    while True:
        outer = getattr(graphs[-1], "outer_graph", None)
        if not hasattr(outer, "as_default"):
            return graphs
        graphs.append(outer)


def note_place() -> None:
    """Records that a loss is scaled in the graph that is being traced, or need not be."""
    here, *around = places()
    setattr(here, _MARK, True)
    for place in around:
        # Not the graph around all functions of a program that runs eagerly.
        if hasattr(place, "structured_outputs"):
            setattr(place, _MARK, True)


def is_scaled_place() -> bool:
    """Tells whether a loss was scaled in the graph that is being traced, by whatever scaler."""
    return any(hasattr(place, _MARK) for place in places())


@contextlib.contextmanager
def inner_call() -> Iterator[None]:
    """Marks a call from a scaler's step: an optimizer that also scales the loss lets it pass."""
    before = is_inner_call()
    _inner_calls.active = True
    try:
        yield
    finally:
        _inner_calls.active = before


def is_inner_call() -> bool:
    """Tells whether this thread is inside :func:`inner_call`."""
    return getattr(_inner_calls, "active", False)


@contextlib.contextmanager
def scaled_step() -> Iterator[None]:
    """Marks the step of an optimizer that scales its loss, with all optimizers that it calls."""
    note_place()
    step = object()
    _scaled_steps.add(step)
    try:
        yield
    finally:
        _scaled_steps.discard(step)


def is_scaled_step() -> bool:
    """Tells whether any thread is inside :func:`scaled_step`."""
    return bool(_scaled_steps)


def _ended(place: Any) -> bool:
    """Tells whether the trace of a function has ended; eager code and TF1 graphs go on.

    Its results and effects are set at its end.
    """
    return not hasattr(place, "structured_outputs") or bool(place.outputs or place.control_outputs)


def _replica() -> int:
    """Returns the number of this replica, or -1.

    It is -1 outside of replicas, and if a strategy knows the number only at run time.
    """
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return -1
    number = tf.get_static_value(context.replica_id_in_sync_group)
    if number is None:
        return -1
    return int(number)


def _tensors(gradients: Iterable[Any]) -> Iterator[Any]:
    """Yields the tensors of gradients, of ``tf.IndexedSlices`` their values."""
    yield from filter(tf.is_tensor, map(finite.values_of, gradients))
