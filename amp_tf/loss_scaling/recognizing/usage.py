"""Recognizes how a training loop uses its wrapper: whether it scaled the loss, and who unscales the gradients.

A wrapper sees only the calls that reach it while a step is traced or run. From them, and from the traced graph, follows
what ``apply_gradients`` is given. By what a loop differentiates, and what it then applies (Keras 3)::

    optimizer.scale_loss(loss)   gradient                         SCALED
    optimizer.scale_loss(loss)   gradient / optimizer.loss_scale  UNSCALED_BY_LOOP
    loss * optimizer.loss_scale  gradient                         SCALED
    loss * optimizer.loss_scale  gradient / optimizer.loss_scale  UNSCALED_BY_LOOP
    loss                         gradient                         NEVER_SCALED

*A call counts for the graph in which it is made*, because one optimizer may serve several loops, ``fit`` and then one
of the user's own. For another graph it counts only until the gradients of its own graph are applied there: they may
have been passed on by arguments or in variables. A trace that failed passes nothing on.

*Reading the scale proves nothing*, because loops log it. The graph says whether the gradients were computed from it
(``lineage``), and whether it was divided out again (``powers``). A loop that multiplies by the scale itself counts as
SCALED in Keras 3, and as UNSCALED_BY_LOOP in tf_keras and TF1, as in each library's own wrapper.

*Where the graph cannot tell* (eager steps, gradients that another function left in variables) they count as never
scaled: a step that is too large shows at once and comes with a warning, while gradients divided by a scale that never
multiplied them stop the training in silence.

*Two scalers*, as where a loop has a ``LossScaler`` and its optimizer was wrapped automatically: what is made inside the
step of one is decided, and the other one takes it as it comes. Where both multiply the loss, it is refused.

The power of the scale is asked for only where the loop read the scale, or mixed ``scale_loss`` with
``get_unscaled_gradients``; where it is neither 0 nor 1, the calls alone decide. What a While or an If returns counts as
computed from all that it is given.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from amp_tf.errors import CallOrderError
from amp_tf.loss_scaling import finite
from amp_tf.loss_scaling.diagnosis import TWO_LINES
from amp_tf.loss_scaling.recognizing import lineage, powers

_TWO_LINES = (
    f"Add two lines to the training step:\n    {TWO_LINES}\n"
    "Where the loop is a library's, hand it a loss that is optimizer.scale_loss(loss), or set "
    "AMP_TF_PRECISION=bfloat16, which needs no loss scale"
)
_ONE_OF_THEM = "Leave out one of them: either the LossScaler or the optimizer's scale_loss"


class Gradients(enum.Enum):
    """The kinds of gradients that ``apply_gradients`` may be given."""

    SCALED = "scaled"
    UNSCALED_BY_LOOP = "unscaled by the loop"
    NEVER_SCALED = "never scaled"


class _Call(enum.Enum):
    """The calls that a graph, or eager code, made."""

    SCALE = "the loss was scaled"
    SCALE_ALONE = "the loss was scaled, and apply_gradients is to unscale"
    UNSCALE = "gradients were unscaled"
    READ = "the scale was read"
    APPLY = "gradients of a scaled loss were applied"


_NO_NOTE: tuple[Any, Any, list[Any], list[Any]] = (None, None, [], [])  # graph, flag, data and parts of a loss


class _Eager:
    """Stands for the graph where there is none."""


_EAGER = _Eager()


class Usage:
    """Records the calls of one wrapper."""

    def __init__(self) -> None:
        self._kind = Gradients.NEVER_SCALED
        self._has_warned = self._has_warned_of_meeting = False
        self._is_scaled_by_hand = False
        self._forget_graphs(handed_over=False)

    def __getstate__(self) -> dict[str, Any]:
        kept = (
            "_kind",
            "_has_warned",
            "_has_warned_of_meeting",
            "_is_scaled_by_hand",
        )  # not what belongs to this process
        return {name: getattr(self, name) for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._forget_graphs(handed_over=self._kind is not Gradients.NEVER_SCALED)

    def _forget_graphs(self, handed_over: bool) -> None:
        self._losses = threading.local()
        self._calls: weakref.WeakKeyDictionary[Any, set[_Call]] = weakref.WeakKeyDictionary()
        # Graphs whose loss was scaled and whose gradients were not applied there yet. Strong references: when gradients
        # arrive elsewhere, a graph is asked whether its trace ended.
        self._open: list[Any] = []
        self._handed_over = handed_over  # whether a completely traced function passed such gradients on

    @property
    def is_used(self) -> bool:
        """Whether any loss was scaled, by the wrapper or by hand."""
        return self._kind is not Gradients.NEVER_SCALED or self._is_scaled_by_hand

    def note_reading(self) -> None:
        """Records that the loop read the scale, to log it or to scale by hand."""
        self._note(_Call.READ)

    def note_scaled_loss(self, loss: Any, data: Sequence[Any] = ()) -> None:
        """Records that the loop scaled a (nest of) loss, and the data that it is computed from, as far as is known."""
        if self._kind is Gradients.NEVER_SCALED:
            self._kind = Gradients.SCALED
        if not self._calls.get(places()[0], set()) & {_Call.SCALE, _Call.APPLY}:
            self._open.append(places()[0])
        self._note(_Call.SCALE)
        flag = finite.is_nonfinite(loss)
        earlier, known, before = self._take_note()
        flag = flag if earlier is None else tf.logical_or(flag, earlier)
        self._losses.note = (places()[0], flag, [*known, *data], [*before, *tf.nest.flatten(loss)])

    def note_unscaled_gradients(self) -> None:
        """Records that the loop unscales its gradients itself, as loops for tf_keras do."""
        self._kind = Gradients.UNSCALED_BY_LOOP
        self._note(_Call.UNSCALE)

    def note_automatic_unscaling(self) -> None:
        """Records that the loop leaves unscaling to ``apply_gradients``, as with Keras 3."""
        self._kind = Gradients.SCALED
        self._note(_Call.SCALE_ALONE)

    def judge(
        self,
        gradients: Any,
        scale: Any,
        by_hand: Gradients,
        where: str,
        variables: Sequence[Any] = (),
        fix: str = _TWO_LINES,
    ) -> Gradients:
        """The kind of the gradients that arrive now; warns once if no loss was ever scaled.

        Args:
            gradients: a list of them.
            scale: the variable that holds the loss scale.
            by_hand: what gradients of a loss that the loop multiplied by the variable are.
            where: names the optimizer in the warning.
            variables: what the gradients are for.
            fix: what the warning says to do.
        """
        kind = self._find_kind(gradients, scale, by_hand)
        self._note_applied()
        self._is_scaled_by_hand |= kind is not Gradients.NEVER_SCALED
        if kind is Gradients.NEVER_SCALED and not self._has_warned and not _scaled_by_others(gradients, variables):
            self._has_warned = True
            logging.warning(
                "amp_tf: %s: apply_gradients was called but the loss was never scaled, so small gradients are lost in "
                "float16; the gradients are applied as they are. %s",
                where,
                fix,
            )
        return kind

    def warn_of_meeting(self, gradients: Any, scale: Any, where: str) -> None:
        """Warns once if scaled gradients are added to, or compared with, a constant inside the network.

        Args:
            gradients: a list of scaled ones.
            scale, where: as for :meth:`judge`.
        """
        if self._has_warned_of_meeting:
            return
        try:
            name = powers.find_meeting(gradients, scale)
        except Exception:  # looking at the user's graph must not stop its trace
            return
        if name:
            self._has_warned_of_meeting = True
            logging.warning(
                "amp_tf: %s: gradients meet a constant inside the network (%s), as in tf.clip_by_norm(d, 0.1) or d > "
                "0.1 of a tf.custom_gradient or a weight decay; there they are multiplied by the loss scale, and the "
                "constant is not. Divide them by optimizer.loss_scale before and multiply after (docs/limits.md), or "
                "set AMP_TF_PRECISION=bfloat16, which needs no loss scale.",
                where,
                name,
            )

    def _find_kind(self, gradients: Any, scale: Any, by_hand: Gradients) -> Gradients:
        """The kind, by the first of three that tells it: the power of the scale, the calls, dependence on the scale."""
        calls = set().union(*(self._calls.get(place, set()) for place in places()))
        is_handed_over = self._are_others_open()
        depends_on_scale = functools.cache(lambda: lineage.depends_on(gradients, scale))
        if (_Call.READ in calls or {_Call.SCALE_ALONE, _Call.UNSCALE} <= calls) and depends_on_scale():
            power = powers.power_of(gradients, scale)
            if power == 0.0:
                return Gradients.UNSCALED_BY_LOOP
            if power == 1.0:
                return Gradients.SCALED if _Call.SCALE_ALONE in calls else by_hand
        is_noted = self._kind is not Gradients.NEVER_SCALED
        if is_noted and (_Call.SCALE in calls or is_handed_over):
            return self._kind
        if depends_on_scale():
            return self._kind if is_noted else by_hand
        return Gradients.NEVER_SCALED

    def _note(self, call: _Call) -> None:
        self._calls.setdefault(places()[0], set()).add(call)

    def _note_applied(self) -> None:
        """Records that gradients of losses scaled here are applied here, so that no other graph gets them."""
        here = places()
        for place in here:
            calls = self._calls.get(place, set())
            if _Call.SCALE in calls:
                calls.add(_Call.APPLY)
        self._open = [place for place in self._open if place not in here]

    def _are_others_open(self) -> bool:
        """Whether gradients of a loss that was scaled in another graph may arrive here."""
        here = places()
        elsewhere = [place for place in self._open if place not in here]
        functions = [place for place in elsewhere if hasattr(place, "structured_outputs")]
        self._open = [place for place in self._open if place not in functions]
        self._handed_over = self._handed_over or any(map(_gave_something, functions))
        return self._handed_over or len(elsewhere) > len(functions)  # eager code and TF1 graphs never end

    def check_alone(self, where: str) -> None:
        """Refuses a step inside another scaler's step if both scaled the loss.

        Args:
            where: names the optimizer.

        Raises:
            CallOrderError: its loss was scaled here, and no gradients were applied yet.
        """
        if any(place in self._open for place in places()):
            raise CallOrderError(
                "the loss is scaled twice, by this optimizer and by the LossScaler whose step calls it",
                where=where,
                fix=_ONE_OF_THEM,
            )

    def take_loss(self) -> tuple[Any, list[Any], list[Any]]:
        """Whether the loss scaled last in this graph was nonfinite, its data and its parts; then forgets them.

        Returns:
            False, and neither data nor parts, where it is not known.
        """
        flag, data, parts = self._take_note()
        return (tf.constant(False) if flag is None else flag), data, parts

    def _take_note(self) -> tuple[Any, list[Any], list[Any]]:
        graph, *known = getattr(self._losses, "note", _NO_NOTE)
        self._losses.note = _NO_NOTE
        return tuple(known) if graph is places()[0] else _NO_NOTE[1:]


# The scales that multiplied a loss, by the graphs in which they did; weak, because graphs outlive scalers.
_scales: weakref.WeakKeyDictionary[Any, weakref.WeakSet[Any]] = weakref.WeakKeyDictionary()


def note_scale(loss: Any, memory: Any) -> None:
    """Records that a traced loss is multiplied by a scale.

    Args:
        loss: a (nest of) tensor before that.
        memory: holds the variable of the scale.

    Raises:
        CallOrderError: another scale has multiplied it already.
    """
    if tf.executing_eagerly():
        return
    others = {other for place in places() for other in _scales.get(place, ()) if other is not memory}
    if any(powers.power_of(loss, other.scale) == 1.0 for other in others):
        raise CallOrderError("the loss is scaled twice, by two scalers", where="scale_loss", fix=_ONE_OF_THEM)
    for place in places():
        _scales.setdefault(place, weakref.WeakSet()).add(memory)


def _scaled_by_others(gradients: Any, variables: Sequence[Any]) -> bool:
    """Whether gradients depend on a scalar float variable that is not trained: a scale of the program's own."""
    if tf.executing_eagerly():
        return False
    own = [v if isinstance(v, tf.Variable) else getattr(v, "value", None) for v in variables]
    trained = {lineage.key_of(handle) for v in own if isinstance(v, tf.Variable) for handle in lineage.handles_of(v)}
    return lineage.depend_on_scale(lineage.tensors_in(gradients), trained)


_inner_calls = threading.local()


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
    """Whether this thread is inside :func:`inner_call`."""
    return getattr(_inner_calls, "active", False)


_scaled_steps = 0
_scaled_steps_lock = threading.Lock()


@contextlib.contextmanager
def scaled_step() -> Iterator[None]:
    """Marks the step of an optimizer that scales its loss, with all optimizers that it calls, on any thread.

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


def places() -> list[Any]:
    """The graph that is being traced and those around it; in eager execution, an object that stands for it."""
    if tf.executing_eagerly():
        return [_EAGER]
    graphs = [tf.compat.v1.get_default_graph()]
    while (outer := getattr(graphs[-1], "outer_graph", None)) is not None and hasattr(outer, "as_default"):
        graphs.append(outer)
    return graphs


def _gave_something(function: Any) -> bool:
    """Whether a function's graph was traced to its end, where results and effects are set."""
    return bool(function.outputs or function.control_outputs)
