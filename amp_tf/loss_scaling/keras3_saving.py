"""The files of Keras 3: where the scale is kept in them, and which layouts of optimizer state are understood."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import keras

# Keras' own wrapper writes these before the variables of its inner optimizer, the first two of them dead.
_KERAS_WRAPPER = ("iteration", "learning_rate", "step_counter", "dynamic_scale")


class SavedState(NamedTuple):
    """What a file holds of an optimizer.

    Attributes:
        inner: maps "0", "1", … to the arrays of the inner optimizer.
        scale: the loss scale, if it stands among them.
        good_steps: the growth tracker, likewise.
    """

    inner: dict[str, Any]
    scale: Any = None
    good_steps: Any = None


def read_state(store: Mapping[str, Any]) -> dict[str, Any]:
    """Copies of the arrays in a store of Keras.

    Args:
        store: an open group of a file, or a dict.
    """
    return {key: store[key][()] for key in store.keys()}  # noqa: SIM118 - a store has keys() but is no mapping


def match_state(arrays: dict[str, Any], expected: int) -> SavedState | None:
    """Recognizes the layout: of an optimizer that was bare or wrapped by us, or of Keras' own wrapper.

    Args:
        arrays: maps "0", "1", … to arrays.
        expected: how many variables the inner optimizer has.

    Returns:
        The state, or ``None`` if the file is of another optimizer.
    """
    if len(arrays) == expected:
        return SavedState(arrays)
    own = len(_KERAS_WRAPPER)
    if len(arrays) != expected + own:
        return None
    inner = {str(i): arrays[str(i + own)] for i in range(expected)}
    scale, good_steps = (arrays[str(_KERAS_WRAPPER.index(name))] for name in ("dynamic_scale", "step_counter"))
    return SavedState(inner, scale, good_steps)


class ScaleState(keras.losses.Loss):  # type: ignore[misc]
    """The part of a ``.keras`` or ``.weights.h5`` file that holds the scale and its counters.

    It is a child of its own, so that the group of the optimizer holds what it holds without loss scaling and a float32
    run can load it. A Loss only because Keras saves children of four known kinds.
    """

    def __init__(self, variables: Callable[[], list[Any]]) -> None:
        super().__init__(name="loss_scale_state")
        self._read_variables = variables

    def save_own_variables(self, store: Any) -> None:
        """Keras calls this when it saves."""
        for name, variable in zip(("scale", "counters"), self._read_variables(), strict=True):
            store[name] = variable.numpy()

    def load_own_variables(self, store: Any) -> None:
        """Keras calls this when it loads; a file of a run without loss scaling has nothing here."""
        for name, variable in zip(("scale", "counters"), self._read_variables(), strict=True):
            if name in store.keys():  # noqa: SIM118 - see read_state
                variable.assign(store[name])
