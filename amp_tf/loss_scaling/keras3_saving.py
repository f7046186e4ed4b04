"""Saves and loads the Keras 3 wrapper: where the scale is kept, and which layouts of optimizer state are understood."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import keras

from amp_tf.loss_scaling.keras3_inner import INNER_SETTINGS
from amp_tf.loss_scaling.saved_scale import SavedScale
from amp_tf.loss_scaling.scaler import Scaler
from amp_tf.loss_scaling.schedule import usable_scale

# Keras' own wrapper writes these before the variables of its inner optimizer, the first two of them unused.
_KERAS_WRAPPER = ("iteration", "learning_rate", "step_counter", "dynamic_scale")


class ScaleState(SavedScale, keras.losses.Loss):  # type: ignore[misc]
    """The part of a file that holds the scale."""


class Saving:
    """Saves the wrapped optimizer in its usual place, and the scale beside it.

    Attributes:
        _pending_weights: what was loaded before ``build`` made the variables for it.
    """

    inner_optimizer: Any
    name: str
    built: bool
    _variables: list[Any]
    _scale: Any
    _counters: Any
    _scaler: Scaler
    _settings: dict[str, Any]
    _pending_weights: dict[str, Any] | None

    @property
    def variables(self) -> list[Any]:
        """The wrapped optimizer's variables, then the scale and its counters."""
        return [*self.inner_optimizer.variables, *self._variables]

    def save_own_variables(self, store: Any) -> None:
        """Writes what the inner optimizer alone would write; the scale goes to its own group."""
        if self._pending_weights is not None:  # loaded, and no step has built the variables for it yet
            for key, array in self._pending_weights.items():
                store[key] = array
            return
        self.inner_optimizer.save_own_variables(store)

    def load_own_variables(self, store: Any) -> None:
        """Reads the state of an optimizer that was saved wrapped, bare, or in Keras' own wrapper.

        Args:
            store: maps "0", "1", … to arrays. What has no variable yet waits for ``build``.
        """
        arrays = {key: store[key][()] for key in store.keys()}  # noqa: SIM118 - it has keys() but is no mapping
        if not arrays:
            return
        expected = len(self.inner_optimizer.variables)
        if not self.built and len(arrays) > expected:
            self._pending_weights = arrays
            return
        of_wrapper = len(arrays) - expected  # those of Keras' own wrapper, if it was saved
        if of_wrapper not in (0, len(_KERAS_WRAPPER)):
            warnings.warn(
                f"amp_tf: optimizer '{self.name}': the file holds {len(arrays)} variables of an optimizer, not "
                f"{expected}; its state is not loaded. Compile the model with the optimizer that was saved.",
                stacklevel=2,
            )
            return
        inner = {str(number): arrays[str(number + of_wrapper)] for number in range(expected)}
        self.inner_optimizer.load_own_variables(inner)
        if of_wrapper:
            wrapper = {name: arrays[str(number)] for number, name in enumerate(_KERAS_WRAPPER)}
            self._scale.assign(usable_scale(float(wrapper["dynamic_scale"]), self._scaler.schedule))
            self._counters.assign([int(wrapper["step_counter"]), 0, 0, 0, 0, 0])

    def get_weights(self) -> list[Any]:
        """Copies of all ``variables`` as numpy arrays."""
        return [variable.numpy() for variable in self.variables]

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Sets all ``variables``, or those of the inner optimizer alone (what a float32 run's optimizer gives).

        Args:
            weights: arrays, in the order of ``variables``.

        Raises:
            ValueError: their number fits neither, or a shape differs.
        """
        variables = self.variables
        if len(weights) not in (len(variables), len(variables) - len(self._variables)):
            raise ValueError(
                f"optimizer '{self.name}' has {len(variables)} variables, got {len(weights)} arrays. Build the "
                "optimizer first with build(trainable_variables)."
            )
        for variable, weight in zip(variables, weights, strict=False):
            if tuple(variable.shape) != tuple(weight.shape):
                raise ValueError(f"variable '{variable.path}' has shape {variable.shape}, the array {weight.shape}.")
            variable.assign(weight)

    def get_config(self) -> dict[str, Any]:
        """The settings, from which :meth:`from_config` makes the same optimizer."""
        config: dict[str, Any] = super().get_config()  # type: ignore[misc]
        for setting in INNER_SETTINGS | {"loss_scale_factor"}:  # which the base class gives up to Keras 3.8
            config.pop(setting, None)
        return {**config, **self._settings}
