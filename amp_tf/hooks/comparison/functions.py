"""The patch of ``tf.function``: a function in whose trace gradients are computed trains, and its calls are batches.

The calls themselves run as usual. After the wanted number of calls, or when the program ends, the function is compared
with the variables' values of that moment: its results, and its updates of variables. A function that takes a dataset or
an iterator is compared before its first call, which may be the whole training.
"""

from __future__ import annotations

from typing import Any

from amp_tf.hooks.comparison import sessions, streams
from amp_tf.hooks.comparison.calls import Call, as_function, kept
from amp_tf.hooks.comparison.training import Training
from amp_tf.hooks.patches import Patch, calling


class _Seen:
    """What is known of the functions that were called so far.

    Attributes:
        function: the one that trains; ``None`` as long as there is none.
        calls: its calls.
        has_gradients: whether gradients were asked for in a graph since the outermost call began.
        others: replacements for iterators of which elements were taken, by their ids.
    """

    def __init__(self) -> None:
        self.function: Any = None
        self.calls: list[Call] = []
        self.has_gradients = False
        self.others: dict[int, Any] = {}


_seen = _Seen()


def patches(training: Training, library: str) -> list[Patch]:
    """The patches, as tuples: owner, attribute, and what makes its replacement from the original.

    Args:
        training: the state shared by the patches.
        library: ``"tensorflow"``.
    """
    from tensorflow.python.eager import backprop
    from tensorflow.python.eager.polymorphic_function import polymorphic_function
    from tensorflow.python.ops import gradients_util

    return [
        (polymorphic_function.Function, "__call__", calling(_call, training)),
        (backprop.GradientTape, "gradient", calling(_gradient, training)),
        (gradients_util, "_GradientsHelper", calling(_gradient, training)),
    ]


def compare_what_is_there(training: Training) -> None:
    """Compares the function that trains on the calls made so far, if there were any."""
    calls, _seen.calls = _seen.calls, []
    if calls:
        name = _name(_seen.function)
        function = _seen.function
        subject, batches = as_function(name, function.python_function, calls, jit_compile=function._jit_compile)
        note = f"{name} was compared with the variables as they are after {len(calls)} calls of it"
        training.compare(subject, batches, (note,))


def _call(training: Training, original: Any, self: Any, /, *args: Any, **kwargs: Any) -> Any:
    import tensorflow as tf

    given = streams.replaced((args, kwargs), _seen.others)
    if not training.is_awaited or not tf.executing_eagerly():
        return original(self, *given[0], **given[1])
    _seen.has_gradients = False
    if streams.holds_streams(given):
        with training.surviving():
            _compare_with_elements(self, given, training)
        given = streams.replaced(given, _seen.others)
        return original(self, *given[0], **given[1])
    result = original(self, *given[0], **given[1])
    with training.surviving():
        _note(self, given, training)
    return result


def _compare_with_elements(function: Any, call: Call, training: Training) -> None:
    """Compares a function on the first elements of its data before its first call, which may be an epoch."""
    function.get_concrete_function(*call[0], **call[1])
    if not _seen.has_gradients:
        return
    given = {id(value): value for value in (*call[0], *call[1].values())}
    taken: dict[int, list[Any]] = {}
    try:
        inner, calls = streams.with_elements(function.python_function, call, training.request.steps, taken)
    finally:  # the program gets the elements back in any case
        _seen.others = {number: streams.again(rows, given[number]) for number, rows in taken.items()}
    name = _name(function)
    note = f"{name} was compared with one element of its data a run"
    training.compare(*as_function(name, inner, calls, jit_compile=function._jit_compile), (note,))


def _note(function: Any, call: Call, training: Training) -> None:
    if _seen.function is None and _seen.has_gradients:
        _seen.function = function
    if function is _seen.function:
        _seen.calls.append(kept(call))
        if len(_seen.calls) >= training.request.steps:
            compare_what_is_there(training)


def _gradient(training: Training, original: Any, /, *args: Any, **kwargs: Any) -> Any:
    import tensorflow as tf

    _seen.has_gradients |= not tf.executing_eagerly()
    result = original(*args, **kwargs)
    if training.is_awaited:
        with training.surviving():
            sessions.note_gradients(result)
    return result


def _name(function: Any) -> str:
    return str(getattr(function.python_function, "__name__", "function"))
