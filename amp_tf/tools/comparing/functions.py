"""Watches the calls of ``tf.function`` for the one that trains.

A function in whose trace gradients are computed trains, and its calls are batches. The calls
themselves run as usual. After the wanted number of calls, or when the program ends, the function is
compared with the variables' values of that moment: its results, and its updates of variables.

A function that takes a dataset or an iterator is compared before its first call, which may be the
whole training, on one element of it for each run: one that loops over a dataset then runs one
iteration; one that asks an iterator for several elements gets the same element each time. So one
step is compared, not a loop of thousands.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from amp_tf.errors import GraphError
from amp_tf.tools.train_functions import Call, Repeated, as_function, generated, kept

if TYPE_CHECKING:
    from amp_tf.tools.comparing.training import Training


class Functions:
    """The calls of the function that trains, as soon as there is one."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._function: Any = None  # the tf.function that trains
        self._calls: list[Call] = []  # of it
        self._has_gradients = False  # in a graph, since the outermost call began
        # Replacements for iterators of which elements were taken, by their ids.
        self._others: dict[int, Any] = {}

    def patches(self) -> list[tuple[Any, str, Any]]:
        """Returns the patches that watch calls and gradients."""
        from tensorflow.python.eager import backprop
        from tensorflow.python.eager.polymorphic_function import polymorphic_function
        from tensorflow.python.ops import gradients_util

        return [
            (polymorphic_function.Function, "__call__", self._call),
            (backprop.GradientTape, "gradient", self._gradient),
            (gradients_util, "_GradientsHelper", self._gradient),
        ]

    def compare(self) -> None:
        """Compares the function with the calls so far, if there are any."""
        calls = self._calls
        self._calls = []
        if calls:
            after = f"the variables as they are after {len(calls)} calls of it"
            self._compare(self._function, self._function.python_function, calls, after)

    def _call(self, original: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        import tensorflow as tf

        args, kwargs = self._with_others((args, kwargs))
        if not self._training.is_awaited or not tf.executing_eagerly():
            return original(function, *args, **kwargs)
        self._has_gradients = False
        if any(map(_is_stream, (*args, *kwargs.values()))):
            with self._training.surviving():
                self._compare_on_elements(function, (args, kwargs))
            args, kwargs = self._with_others((args, kwargs))
            return original(function, *args, **kwargs)
        result = original(function, *args, **kwargs)
        with self._training.surviving():
            self._note(function, (args, kwargs))
        return result

    def _note(self, function: Any, call: Call) -> None:
        """Keeps a call that has just returned; compares the function where they are enough."""
        if self._function is None and self._has_gradients:
            self._function = function
        if function is self._function:
            self._calls.append(kept(call))
            if len(self._calls) >= self._training.request.steps:
                self.compare()
        elif self._function is None:
            self._training.forward.note(function, *call)

    def _with_others(self, call: Call) -> Call:
        """Returns a call with the replacements for iterators."""
        import tensorflow as tf

        if not self._others:
            return call
        args, kwargs = tf.nest.map_structure(lambda leaf: self._others.get(id(leaf), leaf), call)
        return args, kwargs

    def _compare_on_elements(self, function: Any, call: Call) -> None:
        """Compares a function that takes datasets or iterators, if it trains."""
        import tensorflow as tf

        args, kwargs = call
        function.get_concrete_function(*args, **kwargs)
        if not self._has_gradients:
            return
        taken: dict[int, list[Any]] = {}
        steps = self._training.request.steps
        try:
            inner, calls = with_elements(function.python_function, call, steps, taken)
        finally:  # the program gets the elements back in any case
            for leaf in tf.nest.flatten(call):
                if id(leaf) in taken:
                    self._others[id(leaf)] = again(taken[id(leaf)], leaf)
        self._compare(function, inner, calls, "one element of its data a run")

    def _compare(
        self, function: Any, inner: Callable[..., Any], calls: Sequence[Call], how: str
    ) -> None:
        import tensorflow as tf

        from amp_tf.loss_scaling.calls import is_scaled_place

        @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
        def note() -> None:
            self._training.is_scaled |= is_scaled_place()

        def watched(*args: Any, **kwargs: Any) -> Any:
            result = inner(*args, **kwargs)
            note()
            return result

        name = str(getattr(function.python_function, "__name__", "function"))
        subject, batches = as_function(name, watched, calls, jit_compile=function._jit_compile)
        self._training.compare(subject, batches, (f"{name} was compared with {how}",))

    def _gradient(self, original: Any, /, *args: Any, **kwargs: Any) -> Any:
        import tensorflow as tf

        self._has_gradients |= not tf.executing_eagerly()
        result = original(*args, **kwargs)
        if self._training.is_awaited:
            with self._training.surviving():
                self._training.sessions.note_gradients(tf.nest.flatten(result))
        return result


def with_elements(
    function: Callable[..., Any], call: Call, limit: int, taken: dict[int, list[Any]]
) -> tuple[Callable[..., Any], list[Call]]:
    """Returns a function of elements in place of one of datasets or iterators, and its calls.

    Args:
        function: the function.
        call: one call of it.
        limit: how many calls there are at most, each with one element of each dataset.
        taken: gets what was taken of each iterator, by its ``id``, also where an error is raised.

    Raises:
        GraphError: a dataset is empty.
    """
    import tensorflow as tf

    leaves = tf.nest.flatten(call)
    rows: dict[int, list[Any]] = {}
    for place, leaf in enumerate(leaves):
        if _is_stream(leaf):
            rows[place] = []
            if not _is_dataset(leaf):
                rows[place] = taken.setdefault(id(leaf), [])
            rows[place].extend(itertools.islice(leaf, limit))
    count = min(map(len, rows.values()))
    if not count:
        what = "a dataset that the function gets is empty"
        fix = "Look at the data before they are handed over, with next(iter(dataset))"
        raise GraphError(what, where=getattr(function, "__name__", "function"), fix=fix)

    def stream(given: Any, value: Any) -> Any:
        if _is_stream(given):
            return Repeated(value)
        return value

    def with_streams(*args: Any, **kwargs: Any) -> Any:
        nest = tf.__internal__.nest
        args, kwargs = nest.map_structure_up_to(call, stream, call, (args, kwargs))
        return function(*args, **kwargs)

    calls: list[Call] = []
    for number in range(count):
        given = list(leaves)
        for place, elements in rows.items():
            given[place] = elements[number]
        calls.append(tf.nest.pack_sequence_as(call, given))
    return with_streams, calls


def again(taken: Sequence[Any], iterator: Any) -> Any:
    """An iterator that first returns the elements that were taken from another, and then the rest
    of that one.
    """
    whole = itertools.chain(taken, iterator)
    return iter(generated(lambda: whole, iterator.element_spec))


def _is_stream(value: Any) -> bool:
    import tensorflow as tf

    return _is_dataset(value) or isinstance(value, tf.data.Iterator)


def _is_dataset(value: Any) -> bool:
    import tensorflow as tf

    return isinstance(value, tf.data.Dataset)
