"""Keeps what a program runs forward, for ``amp-tf compare`` of a program that trains nothing.

Evaluation, prediction and serving ask for no gradients. They run as usual, and the first batches of
each are copied: of ``evaluate`` and ``predict``, and of each ``tf.function`` that has a product.
The callable with most calls is compared as the program ends, because it may train until then.

An iterator is read ahead by as many batches as are compared; the program gets these back.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from amp_tf.oplists.table import PRODUCTS
from amp_tf.tools import train_functions
from amp_tf.tools.comparing.flattening import every_node
from amp_tf.tools.train_functions import Call, ReadAhead, as_function, kept, without_optionals

_KINDS = ("test", "predict")  # of the functions that a Keras model makes for evaluate and predict
_NOTE = "the program trained nothing: the results of {} were compared, and no gradients"


@dataclasses.dataclass
class ForwardCalls:
    """A callable without gradients, and its first calls."""

    name: str  #: for people
    function: Callable[..., Any]
    jit_compile: Any  #: whether XLA compiles it, as TensorFlow's arguments of this name say
    most: int  #: calls that are kept
    calls: list[Call] = dataclasses.field(default_factory=list)  #: with copies of their tensors

    def keep(self, call: Call) -> None:
        """Keeps a call unless there are enough."""
        if len(self.calls) < self.most:
            self.calls.append(kept(call))


class Forward:
    """The forward calls of a program; of each callable at most ``most`` calls are kept."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._of_functions: dict[Any, ForwardCalls | None] = {}  # None: without a product
        self._of_models: list[ForwardCalls] = []

    def note(self, function: Any, args: Any, kwargs: Any) -> None:
        """Keeps a call that a ``tf.function`` has just returned from; does nothing where that
        fails.
        """
        with contextlib.suppress(Exception):
            if function not in self._of_functions:
                python = function.python_function
                name = str(getattr(python, "__name__", "function"))
                found = ForwardCalls(name, python, function._jit_compile, self._most)
                self._of_functions[function] = found if _has_product(function) else None
            calls = self._of_functions[function]
            if calls is not None:
                calls.keep((args, kwargs))

    def patches(self, library: str) -> list[tuple[Any, str, Callable[..., Any]]]:
        """Returns the patches that watch the test and predict functions of ``"keras"`` or
        ``"tf_keras"``.
        """
        return [
            train_functions.patch(library, kind, functools.partial(self._watch, kind))
            for kind in _KINDS
        ]

    def _watch(self, kind: str, model: Any, owner: Any) -> Any:
        """Returns what takes the place of a model's new test or predict function."""
        import tensorflow as tf

        function = getattr(model, f"{kind}_function")
        self._of_functions[function] = None  # the model has its calls
        if model.distribute_strategy.num_replicas_in_sync > 1:
            return function
        step = model.predict_step  # it takes the batches of both, and ignores labels
        if kind == "test" and type(model).test_step is not owner.test_step:
            step = model.test_step
        if owner.__module__.startswith("keras"):
            step = tf.autograph.experimental.do_not_convert(step)
        jit_compile = getattr(model, "jit_compile", None)
        found = ForwardCalls(model.name, step, jit_compile, self._most)
        self._of_models.append(found)
        return _WatchedForward(function, model, found)

    def most_called(self) -> tuple[Any, list[Any], tuple[str, ...]] | None:
        """Returns the step with most calls, its batches, and the notes that go with the result;
        models come first.
        """
        of_functions = [found for found in self._of_functions.values() if found is not None]
        called = [found for found in self._of_models if found.calls]
        called = called or [found for found in of_functions if found.calls]
        if not called:
            return None
        most = max(called, key=lambda found: len(found.calls))
        subject, batches = as_function(
            most.name, most.function, most.calls, jit_compile=most.jit_compile
        )
        return subject, batches, (_NOTE.format(most.name),)


class _WatchedForward(ReadAhead):
    """A model's test or predict function, whose first batches are kept."""

    def __init__(self, function: Any, model: Any, found: ForwardCalls) -> None:
        super().__init__(function, model)
        self._found = found

    def __call__(self, data: Any) -> Any:
        import tensorflow as tf

        batches: Any = []
        if isinstance(data, (list, tuple)):  # Keras 3's predict hands over batches
            batches = data
        elif isinstance(data, tf.data.Iterator) and not self._found.calls:
            batches = self.take(data, self._found.most)
        with contextlib.suppress(Exception):
            for batch in batches:
                self._found.keep(((without_optionals(batch),), {}))
        return super().__call__(data)


def _has_product(function: Any) -> bool:
    for concrete in function._list_all_concrete_functions():
        if any(node.op in PRODUCTS for node in every_node(concrete.graph.as_graph_def())):
            return True
    return False
