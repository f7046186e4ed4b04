"""Keeps what a program runs forward, for ``amp-tf compare`` of a program that trains nothing.

Evaluation, prediction and serving ask for no gradients. They run as usual, and the first batches of
each are copied: of ``evaluate`` and ``predict``, and of each ``tf.function`` that has a product.
What was called most often is compared as the program ends, because it may train until then.

An iterator is read ahead by as many batches as are compared; the program gets these back.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

from amp_tf.oplists.table import PRODUCTS
from amp_tf.tools import train_functions
from amp_tf.tools.train_functions import (
    Call,
    as_function,
    iterate,
    kept,
    steps_a_call,
    without_optionals,
)

_KINDS = ("test", "predict")  # of the functions that a Keras model makes for evaluate and predict
_NOTE = "the program trained nothing: the results of {} were compared, and no gradients"


@dataclasses.dataclass
class ForwardCalls:
    """A callable without gradients, and its first calls."""

    name: str  #: for people
    function: Callable[..., Any]
    jit_compile: Any  #: whether XLA compiles it, as TensorFlow's arguments of this name say
    calls: list[Call] = dataclasses.field(default_factory=list)  #: with copies of their tensors


class Forward:
    """The forward calls of a program; of each callable at most ``most`` calls are kept."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._of_functions: dict[
            Any, ForwardCalls | None
        ] = {}  # None for functions without a product
        self._of_models: list[ForwardCalls] = []
        self._functions_of_models: list[Any] = []

    def note(self, function: Any, args: Any, kwargs: Any) -> None:
        """Keeps a call that a ``tf.function`` has just returned from; does nothing where that
        fails.
        """
        if any(function is known for known in self._functions_of_models):
            return
        with contextlib.suppress(Exception):
            if function not in self._of_functions:
                name = str(getattr(function.python_function, "__name__", "function"))
                found = ForwardCalls(name, function.python_function, function._jit_compile)
                self._of_functions[function] = found if _has_product(function) else None
            found_calls = self._of_functions[function]
            if found_calls is not None and len(found_calls.calls) < self._most:
                found_calls.calls.append(kept((args, kwargs)))

    def patches(self, library: str) -> list[tuple[Any, str, Callable[..., Any]]]:
        """Returns the patches that watch the test and predict functions of ``"keras"`` or
        ``"tf_keras"``.
        """
        watches = ((kind, functools.partial(self._watch, kind)) for kind in _KINDS)
        return [train_functions.patch_forward(library, kind, watch) for kind, watch in watches]

    def _watch(self, kind: str, model: Any, owner: Any) -> Any:
        """Returns what takes the place of a model's new test or predict function.

        ``owner`` is the class that has the library's own ``test_step``.
        """
        import tensorflow as tf

        function = getattr(model, f"{kind}_function")
        self._functions_of_models.append(function)
        if model.distribute_strategy.num_replicas_in_sync > 1:
            return function
        step = model.predict_step  # it takes the batches of both, and ignores labels
        if kind == "test" and type(model).test_step is not owner.test_step:
            step = model.test_step
        if owner.__module__.startswith("keras"):
            step = tf.autograph.experimental.do_not_convert(step)
        found = ForwardCalls(model.name, step, getattr(model, "jit_compile", None))
        self._of_models.append(found)
        return _WatchedForward(function, model, found, self._most)

    def most_called(self) -> tuple[Any, list[Any], tuple[str, ...]] | None:
        """Returns the step with most calls, its batches, and the notes that go with the result;
        models come first.
        """
        of_functions = [found for found in self._of_functions.values() if found is not None]
        for group in (self._of_models, of_functions):
            called = [found for found in group if found.calls]
            if called:
                most = max(called, key=lambda found: len(found.calls))
                subject, batches = as_function(
                    most.name, most.function, most.calls, jit_compile=most.jit_compile
                )
                return subject, batches, (_NOTE.format(most.name),)
        return None


class _WatchedForward:
    """A model's test or predict function; its first batches are kept, and given back where an
    iterator had them.
    """

    def __init__(self, function: Any, model: Any, found: ForwardCalls, most: int) -> None:
        self._function, self._model, self._found, self._most = function, model, found, most
        self._source: Any = None  # the iterator that was read ahead
        self._left = 0  # batches of it that the program has yet to get back
        self._again: Any = None  # returns these

    def __call__(self, data: Any) -> Any:
        import tensorflow as tf

        if isinstance(data, tf.data.Iterator):
            if not self._found.calls:
                self._read_ahead(data)
        elif isinstance(data, (list, tuple)):  # Keras 3's predict hands over batches
            self._keep(data)
        if data is not self._source or self._left <= 0:
            return self._function(data)
        self._left -= steps_a_call(self._model)
        return self._function(self._again)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._function, name)

    def _read_ahead(self, iterator: Any) -> None:
        a_call = steps_a_call(self._model)
        wanted = -(-self._most // a_call) * a_call  # whole calls, so that whole calls are left
        taken = list(itertools.islice(iterator, wanted))
        if taken:
            self._source, self._left, self._again = iterator, len(taken), iterate(taken)
            self._keep(taken)

    def _keep(self, batches: Any) -> None:
        calls = self._found.calls
        with contextlib.suppress(Exception):
            for batch in batches:
                if len(calls) < self._most:
                    calls.append(kept(((without_optionals(batch),), {})))


def _has_product(function: Any) -> bool:
    return any(node.op in PRODUCTS for node in _nodes(function))


def _nodes(function: Any) -> Iterator[Any]:
    for concrete in function._list_all_concrete_functions():
        graph = concrete.graph.as_graph_def()
        yield from graph.node
        for inner in graph.library.function:
            yield from inner.node_def
