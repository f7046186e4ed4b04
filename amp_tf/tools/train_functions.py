"""How Keras 3, tf_keras and ``tf.function`` train, as the tools meet it: train functions, their
batches, and calls.

Calls of a function become batches: tensors are fed, other arguments are those of the first call.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

Call = tuple[tuple[Any, ...], dict[str, Any]]  #: positional and named arguments
_OWN_STEP = "the model's own train_step was run; its loss is multiplied by no loss scale here"


def patch(
    library: str, kind: str, wrap: Callable[[Any, Any], Any]
) -> tuple[Any, str, Callable[..., Any]]:
    """Returns the patch that wraps the functions which models make from now on.

    Args:
        library: ``"keras"`` or ``"tf_keras"``.
        kind: ``"train"``, ``"test"`` (of ``evaluate``) or ``"predict"``.
        wrap: called with a model that has a new such function, and with the class that has the
            library's own steps; it returns what takes the function's place.
    """
    attribute = f"{kind}_function"
    maker = f"make_{kind}_function"
    model_class = importlib.import_module(library).Model
    owner = next(base for base in model_class.__mro__ if maker in vars(base))

    def make_function(original: Any, model: Any, /, *args: Any, **kwargs: Any) -> Any:
        before = getattr(model, attribute)
        result = original(model, *args, **kwargs)
        if getattr(model, attribute) is not before:
            setattr(model, attribute, wrap(model, owner))
        if result is None:  # Keras 3 returns nothing, tf_keras the function
            return None
        return getattr(model, attribute)

    return owner, maker, make_function


class ReadAhead:
    """A model's function; batches that were taken from its iterator come once more."""

    def __init__(self, function: Any, model: Any) -> None:
        self._function = function
        self._model = model
        self._source: Any = None  # the iterator that was read ahead
        self._taken: list[Any] = []
        self._left = 0  # batches of these that the program has yet to get back
        self._again: Any = None  # returns these

    def take(self, iterator: Any, most: int) -> list[Any]:
        """Takes ``most`` batches, and those that fill the last call."""
        a_call = _steps_a_call(self._model)
        wanted = -(-most // a_call) * a_call
        self._source = iterator
        self._taken.extend(itertools.islice(iterator, wanted))
        self._left = len(self._taken)
        return self._taken

    def __call__(self, data: Any) -> Any:
        if data is not self._source or self._left <= 0:
            return self._function(data)
        if self._again is None:
            self._again = iterate(self._taken)
            self._taken = []
        self._left -= _steps_a_call(self._model)
        return self._function(self._again)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._function, name)


def _steps_a_call(model: Any) -> int:
    """How many batches one call of a model's function takes."""
    # Keras 3 has a number, tf_keras a variable, and a model that is not compiled neither.
    for name in ("steps_per_execution", "_steps_per_execution"):
        count = getattr(model, name, None)
        if count is not None:
            return int(count)
    return 1


def without_optionals(batch: Any) -> Any:
    """Returns a batch with ``None`` for the optionals by which Keras says that."""
    import tensorflow as tf

    return tf.nest.map_structure(
        lambda leaf: None if isinstance(leaf, tf.experimental.Optional) else leaf, batch
    )


def as_step(
    model: Any, taken: Sequence[Any], owner: Any
) -> tuple[Any, Sequence[Any], tuple[str, ...]]:
    """Returns a model's step to compare, its batches, and the notes that go with the result."""
    import tensorflow as tf

    batches = [without_optionals(batch) for batch in taken]
    if type(model).train_step is owner.train_step and all(map(_is_labelled, batches)):
        return model, [tuple(part for part in batch if part is not None) for batch in batches], ()
    step = model.train_step
    if owner.__module__.startswith("keras"):
        step = tf.autograph.experimental.do_not_convert(step)
    calls: list[Call] = [((batch,), {}) for batch in batches]
    function, tensors = as_function(model.name, step, calls, jit_compile=model.jit_compile)
    return function, tensors, (_OWN_STEP,)


def _is_labelled(batch: Any) -> bool:
    """Tells whether a batch is ``(x, y)`` or ``(x, y, sample_weight)``."""
    if not isinstance(batch, tuple) or len(batch) not in (2, 3):
        return False
    return batch[0] is not None and batch[1] is not None


def as_function(
    name: str, function: Callable[..., Any], calls: Sequence[Call], *, jit_compile: Any = None
) -> tuple[Callable[..., Any], list[Any]]:
    """Returns a function that takes tensors only, under a name, and the tensors of each call.

    Calls have positional and named arguments, nests of tensors and other values, such as
    ``training=True``. Calls that differ from the first one in something else than tensors are left
    out. ``jit_compile`` is the program's.
    """
    import tensorflow as tf

    first = tf.nest.flatten(calls[0])

    def call_with(*tensors: Any) -> Any:
        given = iter(tensors)
        leaves = [next(given) if _is_fed(leaf) else leaf for leaf in first]
        arguments, named = tf.nest.pack_sequence_as(calls[0], leaves)
        return function(*arguments, **named)

    def is_like_first(leaves: Sequence[Any]) -> bool:
        return len(leaves) == len(first) and all(map(_are_alike, leaves, first))

    call_with.__name__ = name
    call_with.jit_compile = jit_compile  # type: ignore[attr-defined]
    alike = [leaves for leaves in map(tf.nest.flatten, calls) if is_like_first(leaves)]
    return call_with, [tuple(_copy(leaf) for leaf in leaves if _is_fed(leaf)) for leaves in alike]


def _are_alike(one: Any, other: Any) -> bool:
    """Tells whether two arguments are equal, or both are fed."""
    if one is other:
        return True
    if _is_fed(one) or _is_fed(other):
        return _is_fed(one) and _is_fed(other)
    return type(one) is type(other) and not hasattr(one, "assign") and bool(one == other)


def kept(call: Call) -> Call:
    """Returns the call with copies of its tensors, because the program may overwrite them
    afterwards.
    """
    import tensorflow as tf

    args, kwargs = tf.nest.map_structure(lambda leaf: _copy(leaf) if _is_fed(leaf) else leaf, call)
    return args, kwargs


def _is_fed(leaf: Any) -> bool:
    is_tensor = hasattr(leaf, "numpy") and not hasattr(
        leaf, "assign"
    )  # variables are passed on as they are
    return is_tensor or isinstance(leaf, (np.ndarray, np.generic))


def _copy(leaf: Any) -> np.ndarray:
    return np.array(leaf.numpy() if hasattr(leaf, "numpy") else leaf)


class Repeated:
    """Stands for an iterator, also in a trace: returns one element at each request; a loop over it
    has one round.
    """

    def __init__(self, element: Any) -> None:
        self._element = element

    def __iter__(self) -> Iterator[Any]:
        return iter((self._element,))

    def __next__(self) -> Any:
        return self._element

    get_next = __next__

    def get_next_as_optional(self) -> Any:
        """Returns the element as an Optional, which is what Keras asks for in a loop."""
        import tensorflow as tf

        return tf.experimental.Optional.from_value(self._element)


def generated(make: Callable[[], Iterable[Any]], element_spec: Any) -> Any:
    """Makes a dataset of what Python yields, without TensorFlow's thread that asks ahead of need.

    TensorFlow waits for that thread when an iterator is dropped, with Python's lock in hand, which
    the thread needs. So a program with such an iterator may hang at its end.
    """
    import tensorflow as tf

    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    return tf.data.Dataset.from_generator(make, output_signature=element_spec).with_options(options)


def iterate(batches: Sequence[Any]) -> Any:
    """Makes an iterator over some batches."""
    import tensorflow as tf

    dataset: Any = tf.data.Dataset.from_tensors(batches[0])
    for batch in batches[1:]:
        dataset = dataset.concatenate(tf.data.Dataset.from_tensors(batch))
    return iter(dataset)
