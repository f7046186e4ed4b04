"""Watches the calls of ``tf.function``.

A function in whose trace gradients are computed trains, and its calls are batches. The calls
themselves run as usual. After the wanted number of calls, or when the program ends, the function is
compared with the variables' values of that moment: its results, and its updates of variables.

A function that takes a dataset or an iterator is compared before its first call, which may be the
whole training, on one element of it for each run: one that loops over a dataset then runs one
iteration; one that asks an iterator for several elements gets the same element each time. So one
step is compared, not a loop of thousands.

The first calls of functions that have products and do not train are kept, too. They are compared as
the program ends, if it has trained nothing.
"""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING, Any

from amp_tf.errors import GraphError
from amp_tf.oplists.table import PRODUCTS
from amp_tf.reporting.text import plural
from amp_tf.tools.comparing.calls import Call, Calls, Function, Patch, Repeated
from amp_tf.tools.comparing.flattening import every_node

if TYPE_CHECKING:
    from amp_tf.tools.comparing.training import Training


class Functions:
    """The functions of a program, with their calls."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._trains: Any = None  # the first tf.function that trains
        self._has_gradients = False  # in traces, since the outermost call began
        self._calls: dict[Any, Calls | None] = {}  # by function; None for one without products

    @property
    def forward(self) -> list[Calls]:
        """The calls of functions that do not train."""
        return [calls for calls in self._calls.values() if calls is not None]

    def patches(self) -> list[Patch]:
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
        """Compares the function that trains with its calls so far, if there are any."""
        calls = self._calls.get(self._trains)
        if calls is not None and self._training.claim():
            count = plural(len(calls.kept), "call")
            after = f"the variables as they are after {count} of it"
            self._compare(calls, after)

    def _call(self, original: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Calls a ``tf.function``, and notes or compares the call; replaces ``__call__``."""
        import tensorflow as tf

        if not self._training.is_awaited or not tf.executing_eagerly():
            return original(function, *args, **kwargs)
        self._has_gradients = False
        if any(map(_is_stream, (*args, *kwargs.values()))):
            with self._training.answering():
                self._compare_on_elements(function, (args, kwargs))
            return original(function, *args, **kwargs)
        result = original(function, *args, **kwargs)
        with self._training.answering():
            self._note(function, (args, kwargs))
        return result

    def _note(self, function: Any, call: Call) -> None:
        """Keeps a call that has just returned.

        A function that trains is compared once its calls are enough.
        """
        args, kwargs = call
        if self._trains is None and self._has_gradients:
            self._trains = function
            self._calls = {function: self._calls_of(function)}
        if function is self._trains:
            calls = self._calls[function]
            assert calls is not None
            calls.keep(*args, **kwargs)
            if len(calls.kept) == calls.most:
                self.compare()
        elif self._trains is None:
            with contextlib.suppress(Exception):
                if function not in self._calls:
                    self._calls[function] = None
                    if has_product(function):
                        self._calls[function] = self._calls_of(function)
                if (forward := self._calls[function]) is not None:
                    forward.keep(*args, **kwargs)

    def _calls_of(self, function: Any, inner: Function | None = None) -> Calls:
        """Makes the empty record of a function's calls; ``inner`` runs in its place."""
        python = function.python_function
        name = str(getattr(python, "__name__", "function"))
        most = self._training.request.steps
        return Calls(name, inner or python, function._jit_compile, most)

    def _compare_on_elements(self, function: Any, call: Call) -> None:
        """Compares a function that takes datasets or iterators, if it trains."""
        args, kwargs = call
        function.get_concrete_function(*args, **kwargs)
        if self._has_gradients and self._training.claim():
            calls = self._calls_of(function, with_streams(function.python_function, call))
            for positional, named in elements(call, calls.most):
                calls.keep(*positional, **named)
            if not calls.kept:
                raise GraphError(
                    "a dataset that the function gets is empty",
                    where=calls.name,
                    fix="Look at the data before they are handed over, with next(iter(dataset))",
                )
            self._compare(calls, "one element of its data a run")

    def _compare(self, calls: Calls, how: str) -> None:
        """Compares a function, and notes whether it scales its loss."""
        import tensorflow as tf

        from amp_tf.loss_scaling.calls import is_scaled_place

        inner = calls.function

        @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
        def note() -> None:
            self._training.is_scaled |= is_scaled_place()

        def watched(*args: Any, **kwargs: Any) -> Any:
            result = inner(*args, **kwargs)
            note()
            return result

        calls.function = watched
        self._training.compare(calls, calls.kept, (f"{calls.name} was compared with {how}",))

    def _gradient(self, original: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Notes that gradients are computed; takes the place of TensorFlow's functions."""
        import tensorflow as tf

        self._has_gradients |= not tf.executing_eagerly()
        result = original(*args, **kwargs)
        if self._training.is_awaited:
            with self._training.answering():
                self._training.sessions.note_gradients(tf.nest.flatten(result))
        return result


def with_streams(function: Function, call: Call) -> Function:
    """Returns a function that takes elements in place of the datasets and iterators of a call."""
    import tensorflow as tf

    def stream(given: Any, value: Any) -> Any:
        if _is_stream(given):
            return Repeated(value)
        return value

    def of_elements(*args: Any, **kwargs: Any) -> Any:
        nest = tf.__internal__.nest
        args, kwargs = nest.map_structure_up_to(call, stream, call, (args, kwargs))
        return function(*args, **kwargs)

    return of_elements


def elements(call: Call, most: int) -> list[Call]:
    """Returns calls with an element in place of each dataset and iterator of a call.

    There are at most ``most``, and none where a dataset is empty.
    """
    import tensorflow as tf

    leaves = tf.nest.flatten(call)
    rows: list[Any] = []
    streams: dict[int, Any] = {}  # an iterator that is given twice gives an element to both
    for leaf in leaves:
        if not _is_stream(leaf):
            rows.append(itertools.repeat(leaf))
            continue
        if id(leaf) not in streams:
            streams[id(leaf)] = list(itertools.islice(leaf, most))
        rows.append(streams[id(leaf)])
    return [tf.nest.pack_sequence_as(call, list(given)) for given in zip(*rows, strict=False)]


def _is_stream(value: Any) -> bool:
    import tensorflow as tf

    return isinstance(value, (tf.data.Dataset, tf.data.Iterator))


def has_product(function: Any) -> bool:
    """Tells whether a ``tf.function`` computes matmuls or convolutions, as far as it is traced."""
    traced = function._list_all_concrete_functions()
    return any(computes_product(concrete.graph.as_graph_def()) for concrete in traced)


def computes_product(graph: Any) -> bool:
    """Tells whether a GraphDef, or a function of it, computes matmuls or convolutions."""
    return any(node.op in PRODUCTS for node in every_node(graph))
