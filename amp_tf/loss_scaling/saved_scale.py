"""The part of a ``.keras`` or ``.weights.h5`` file that holds the scale and its counters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


class SavedScale:
    """Mixed in front of the library's ``losses.Loss``, because Keras saves children of only four known kinds.

    It is a separate child, so that the optimizer's group is the same as without loss scaling, and a float32 run can
    load it.

    Args:
        variables: returns the variables by their names in the file.
    """

    def __init__(self, variables: Callable[[], Mapping[str, Any]]) -> None:
        super().__init__(name="loss_scale_state")  # type: ignore[call-arg]
        self._read_variables = variables

    def save_own_variables(self, store: Any) -> None:
        """Called by the library when it saves."""
        for name, variable in self._read_variables().items():
            store[name] = variable.numpy()

    def load_own_variables(self, store: Any) -> None:
        """Called by the library when it loads; a file of a run without loss scaling has no entries here."""
        for name, variable in self._read_variables().items():
            if name in store.keys():  # noqa: SIM118 - the store has keys() but is no mapping
                variable.assign(store[name][()])
