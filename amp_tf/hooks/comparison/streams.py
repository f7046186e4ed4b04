"""Functions that take a dataset or an iterator are compared on one element of it for each run.

A function that loops over a dataset then runs one iteration; one that asks an iterator for several elements gets the
same element each time. So one step of the training is compared, not a loop of thousands.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from amp_tf.errors import GraphError
from amp_tf.hooks.comparison.calls import Call


class Elements(list[Any]):
    """Stands for a dataset: what a loop iterates over."""


class Repeated:
    """Stands for an iterator: returns the same element at each request; a loop over it has one iteration.

    Args:
        element: the element to return.
    """

    def __init__(self, element: Any) -> None:
        self._element = element

    def __iter__(self) -> Iterator[Any]:
        return iter((self._element,))

    def __next__(self) -> Any:
        return self._element

    get_next = __next__


def holds_streams(call: Call) -> bool:
    """Whether an argument is a dataset or an iterator."""
    return any(map(_is_stream, (*call[0], *call[1].values())))


def with_elements(
    function: Callable[..., Any], call: Call, limit: int, taken: dict[int, list[Any]]
) -> tuple[Callable[..., Any], list[Call]]:
    """A function of elements, and its calls.

    Args:
        function: takes datasets or iterators.
        call: the arguments that it was called with.
        limit: how many elements are used.
        taken: gets what was taken of each iterator, by its ``id``, also where an error is raised.

    Returns:
        The function and the calls.

    Raises:
        GraphError: a dataset is empty.
    """
    import tensorflow as tf

    args, kwargs = call
    given: dict[int | str, Any] = dict((*enumerate(args), *kwargs.items()))
    is_dataset = {key: isinstance(value, tf.data.Dataset) for key, value in given.items() if _is_stream(value)}
    rows: dict[int | str, list[Any]] = {}
    for key in is_dataset:
        rows[key] = [] if is_dataset[key] else taken.setdefault(id(given[key]), [])
        rows[key].extend(itertools.islice(given[key], limit))
    if not all(rows.values()):
        raise GraphError(
            "a dataset that the function gets is empty",
            where=getattr(function, "__name__", "function"),
            fix="Look at the data before they are handed over, with next(iter(dataset))",
        )

    def with_streams(*args: Any, **kwargs: Any) -> Any:
        def stream(key: Any, value: Any) -> Any:
            if key not in is_dataset:
                return value
            return Elements((value,)) if is_dataset[key] else Repeated(value)

        positional = [stream(key, value) for key, value in enumerate(args)]
        return function(*positional, **{key: stream(key, value) for key, value in kwargs.items()})

    def with_element(number: int) -> Call:
        row = {key: rows[key][number] if key in rows else value for key, value in given.items()}
        return tuple(row[place] for place in range(len(args))), {key: row[key] for key in kwargs}

    return with_streams, [with_element(number) for number in range(min(map(len, rows.values())))]


def again(taken: Sequence[Any], iterator: Any) -> Any:
    """An iterator that first returns the elements that were taken from another, and then the rest of that one."""
    import tensorflow as tf

    whole = itertools.chain(taken, iterator)
    return iter(tf.data.Dataset.from_generator(lambda: whole, output_signature=iterator.element_spec))


def replaced(call: Call, others: Mapping[int, Any]) -> Call:
    """A call in which iterators with known ids are replaced by others."""
    if not others:
        return call
    return (
        tuple(others.get(id(value), value) for value in call[0]),
        {key: others.get(id(value), value) for key, value in call[1].items()},
    )


def _is_stream(value: Any) -> bool:
    import tensorflow as tf

    return isinstance(value, (tf.data.Dataset, tf.data.Iterator))
