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

*A step* begins with the first loss that is scaled after ``apply_gradients``. Within it, each scaled
loss updates each variable once, so that several calls may share one loss, each with variables of
its own. One update more belongs to a step whose loss was never scaled, unless its gradient is
computed from the scaled loss, which a graph shows. For lists of unscaled gradients it is the same.
Each replica, and in eager code each thread, makes steps of its own.

*The divisor* is the factor of the loss. The variable may have moved since, by the step of other
variables or of another worker. It is read only if the loss was scaled in another function.

*Two scalers*, as where a loop has a ``LossScaler`` and its optimizer was wrapped automatically: the
outer one decides whether to step, and the one that is called inside its step applies what it gets.
If both multiply the loss, that is an error.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.ops.control_flow_v2_func_graphs import ControlFlowFuncGraph

from amp_tf.errors import CallOrderError
from amp_tf.loss_scaling import finite
from amp_tf.oplists.table import READ_OPS

# The maker of a step: the number of the replica, or -1, and the thread, or 0.
_Caller = tuple[int, int]

_ONE_OF_THEM = "Leave out one of them: either the LossScaler or the optimizer's scale_loss"

#: why gradients are taken as they are, and warned about
NEVER_SCALED = (
    "apply_gradients was called but the loss was never scaled, so small gradients are lost in "
    "float16"
)
LEFT_TO_LOOP = "get_scaled_loss was called without get_unscaled_gradients"


#: marks losses that are scaled already, and graphs in which any scaler scaled a loss
_MARK = "_amp_tf_is_scaled"


def _unknown() -> None:
    """Stands for a factor that is not known."""


@dataclasses.dataclass
class Tally:
    """Counts the calls of one kind in a step, and the updates of each variable since the first."""

    count: int = 0
    #: by the variable's id
    updates: collections.Counter[int] = dataclasses.field(default_factory=collections.Counter)
    is_over: bool = False  #: ``apply_gradients`` followed, so the next call begins anew


@dataclasses.dataclass(eq=False)
class Made:
    """The calls that one replica or thread made of one scaler, in one graph or eagerly."""

    losses: Tally = dataclasses.field(default_factory=Tally)  #: scaled ones
    #: lists of unscaled gradients; a LossScaler's step takes one off
    lists: Tally = dataclasses.field(default_factory=Tally)
    is_open: bool = False  #: a loss was scaled, and no step made since
    divides_in_step: bool = False  #: by scale_loss
    scale: Callable[[], Any] = _unknown  #: returns the factor of the last loss


class Calls:
    """Records the calls of one scaler in this process."""

    def __init__(self) -> None:
        self.is_used = False  #: whether any loss was scaled
        self._made: weakref.WeakKeyDictionary[Any, dict[_Caller, Made]] = (
            weakref.WeakKeyDictionary()
        )
        # Gradients before and after they were unscaled, by id, as long as they live.
        self._scaled: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._unscaled: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()

    def note_scale(self, divides_in_step: bool, read: Callable[[], Any]) -> Any:
        """Records that a loss is scaled, and whether the step is to divide.

        Returns the factor: that of the last loss, if it surely has not moved since, or else what
        ``read`` returns.
        """
        self.is_used = True
        here = self._here()
        if here.losses.is_over:
            here.losses = Tally()
            here.divides_in_step = False
            here.scale = _unknown
            if here.lists.is_over:
                here.lists = Tally()
        here.losses.count += 1
        here.is_open = True
        here.divides_in_step |= divides_in_step
        scale = here.scale()
        if scale is None or not _is_only_read(scale):
            scale = read()
            here.scale = _remember(scale)
        return scale

    def note_unscale(self, gradients: Iterable[Any], results: Iterable[Any]) -> None:
        """Records that the loop unscales gradients, with the results.

        If all of them were unscaled before, the loop only looks at them once more.
        """
        given = _by_id(gradients)
        if not given or not all(_is_in(self._scaled, value) for value in given.values()):
            here = self._here()
            if here.lists.is_over:
                here.lists = Tally()
            here.lists.count += 1
        self._scaled.update(given)
        self._unscaled.update(_by_id(results))

    def note_step(self) -> None:
        """Records a step of a LossScaler; the next one needs a newly scaled loss."""
        here = self._here()
        here.lists.count = max(here.lists.count - 1, 0)
        here.is_open = False

    def scale(self) -> Any:
        """Returns the factor of this step's losses, or ``None`` if it cannot be read here."""
        for place in places():
            made = self._made_in(place)
            if made is not None and made.losses.count:
                return made.scale()
            # Another graph may call this function, and would lack the tensors around it.
            if not isinstance(place, ControlFlowFuncGraph):
                return None
        return None

    def judge(self, gradients: Sequence[Any], variables: Sequence[Any]) -> tuple[bool, str]:
        """Decides whether ``apply_gradients`` divides the gradients that it is given now.

        Each variable has a gradient or ``None``. After that, losses that were scaled here no longer
        count for other graphs.

        Returns the decision and, where they are not divided, what is wrong, or an empty string.
        """
        trained = list(map(id, finite.with_gradient(variables, gradients)))
        here = self._here()
        own = list(filter(None, map(self._made_in, places())))
        known, is_unscaled = self._find_step(own, gradients, trained)
        # Record this update.
        for made in own:
            made.is_open = False
            made.losses.is_over = True
            made.lists.is_over = True
        here.losses.updates.update(trained)
        here.lists.updates.update(trained)
        if not known:
            return False, NEVER_SCALED
        if self.are_scaled(gradients):
            return True, ""
        if is_unscaled:
            return False, ""
        if not any(made.divides_in_step for made in known):
            return False, LEFT_TO_LOOP
        self._scaled.update(_by_id(gradients))
        return True, ""

    def _find_step(
        self, own: list[Made], gradients: Iterable[Any], trained: list[int]
    ) -> tuple[list[Made], bool]:
        """Finds the calls to which an update belongs, and whether they unscaled its gradients.

        There are none if the loss was never scaled.

        Args:
            own: the caller's, from the inside out.
            gradients: those of the update.
            trained: the ids of its variables.
        """
        # The innermost step, from the inside out to the graph that has losses.
        step = own[:1]
        for made in own[1:]:
            if step[-1].losses.count:
                break
            step.append(made)
        is_unscaled = _cover([made.lists for made in step], trained)
        if _cover([made.losses for made in step], trained):
            return step, is_unscaled
        # A graph shows what gradients are computed from.
        scale = step[-1].scale()
        ends = []
        if scale is not None:
            ends = self._find_ends(gradients, scale)
        if ends:
            return step, is_unscaled or not any(tensor is scale for tensor in ends)
        # Other graphs may feed this one.
        for made in own:
            made.scale = _unknown
        others = [made for made in self.seen() if made.is_open and made not in own]
        return others, is_unscaled or any(made.lists.count for made in others)

    def are_scaled(self, gradients: Iterable[Any]) -> bool:
        """Tells whether some of these gradients are still scaled.

        They are if the loop had them unscaled, but passes them instead of the results.
        """
        return any(_is_in(self._scaled, value) for value in _tensors(gradients))

    def are_unscaled(self, gradients: Iterable[Any]) -> bool:
        """Tells whether some of these gradients are what unscaling returned."""
        return any(_is_in(self._unscaled, value) for value in _tensors(gradients))

    def are_of_losses(self, gradients: Iterable[Any]) -> bool:
        """Tells whether gradients are computed from losses that were scaled in this graph.

        Gradients that variables or accumulators hold are not. In eager execution all are.
        """
        return tf.executing_eagerly() or bool(self._find_ends(gradients, self.scale()))

    def _find_ends(self, gradients: Iterable[Any], scale: Any) -> list[Any]:
        """Finds from which unscaled gradients, or the factor, gradients are computed in a graph."""
        return finite.behind(
            _tensors(gradients), lambda tensor: tensor is scale or _is_in(self._unscaled, tensor)
        )

    def check_alone(self, where: str) -> None:
        """Refuses, by a CallOrderError, a step inside another scaler's if both scaled the loss."""
        if any(made.is_open for place in places() for made in self._in(place)):
            raise CallOrderError(
                "the loss is scaled twice, by this optimizer and by the LossScaler whose step "
                "calls it",
                where=where,
                fix=_ONE_OF_THEM,
            )

    def seen(self) -> Iterator[Made]:
        """Yields the calls in this graph, in those around it, and in others that may feed it."""
        around = places()
        for place in list(self._made):
            for made in self._in(place):
                if place in around or (made.is_open and _ended(place)):
                    yield made

    def _here(self) -> Made:
        return self._made.setdefault(places()[0], {}).setdefault(_caller(), Made())

    def _made_in(self, place: Any) -> Made | None:
        """Returns the calls of this caller in a graph."""
        return self._made.get(place, {}).get(_caller())

    def _in(self, place: Any) -> list[Made]:
        """Returns the calls of this caller in a graph.

        If it scaled no loss there, these are the calls of all callers.
        """
        own = self._made_in(place)
        if own is not None and own.losses.count:
            return [own]
        return [*self._made.get(place, {}).values()]


def _cover(tallies: list[Tally], trained: Iterable[int]) -> bool:
    """Tells whether one more update of these variables belongs to the calls."""
    count = sum(tally.count for tally in tallies)
    for number in trained:
        if sum(tally.updates[number] for tally in tallies) >= count:
            return False
    return count > 0


def _is_in(known: Mapping[int, Any], value: Any) -> bool:
    """Tells whether a tensor was recorded."""
    return known.get(id(value)) is value


def _remember(scale: Any) -> Callable[[], Any]:
    """Returns a function that returns a factor as long as its graph lives."""
    if hasattr(scale, "numpy"):  # an eager tensor
        return lambda: scale
    if scale.op._get_control_flow_context() is not None:  # no tensor may leave those of TF1
        return _unknown
    return weakref.ref(scale)


def _is_only_read(scale: Any) -> bool:
    """Tells whether the graph that is being traced has only read the variable of this factor.

    Another function that it called may have made a step.
    """
    if hasattr(scale, "numpy") or scale.op.type not in READ_OPS:
        return False
    return all(reader.type in READ_OPS for reader in scale.op.inputs[0].consumers())


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


def _caller() -> _Caller:
    """Returns who calls; one thread traces a graph, or the threads of its replicas."""
    number = replica()
    if number < 0 and tf.executing_eagerly():
        return number, threading.get_ident()
    return number, 0


def replica() -> int:
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


def _by_id(gradients: Iterable[Any]) -> dict[int, Any]:
    return {id(value): value for value in _tensors(gradients)}
