"""What the adapters of Keras 3, tf_keras and TF1 share beside the scaler."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from amp_tf.errors import ConfigError
from amp_tf.loss_scaling import is_loss_scaled


def check_not_scaled(optimizer: Any) -> None:
    """Refuses, by a ConfigError, to wrap an optimizer that already scales its loss."""
    factor = getattr(optimizer, "loss_scale_factor", None)
    if factor is not None:
        raise ConfigError(
            f"the optimizer scales its loss already, by loss_scale_factor={factor}",
            where="LossScaleOptimizer",
            fix="Leave out loss_scale_factor, or use LossScaleOptimizer(…, initial_scale=…, dynamic=False)",
        )
    if is_loss_scaled(optimizer):
        raise ConfigError(
            "the optimizer is a LossScaleOptimizer already", where="LossScaleOptimizer", fix="Wrap it once"
        )


def accepted(method: Callable[..., Any], **keywords: Any) -> dict[str, Any]:
    """The keyword arguments that a method takes: a user's class may leave out some of its base class's, or reorder."""
    parameters = inspect.signature(method).parameters
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return keywords
    return {name: value for name, value in keywords.items() if name in parameters}


class InnerSettings:
    """Delegates attributes that the wrapper does not have, such as momentum, to the wrapped optimizer."""

    _inner = "inner_optimizer"  # the attribute that holds that optimizer
    _of_inner: frozenset[str] = (
        frozenset()
    )  # its settings alone, although the library's wrapper has attributes so named

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or self._inner not in self.__dict__:
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
        return getattr(self.__dict__[self._inner], name)

    def __setattr__(self, name: str, value: Any) -> None:
        is_own = name.startswith("_") or name in self.__dict__ or hasattr(type(self), name)
        inner = self.__dict__.get(self._inner) if "_scaler" in self.__dict__ else None  # else it is still being made
        if inner is not None and (name in self._of_inner or (not is_own and hasattr(inner, name))):
            setattr(inner, name, value)
        else:
            super().__setattr__(name, value)


class SavedScale:
    """The part of a ``.keras`` or ``.weights.h5`` file that holds the scale and its counters.

    Mixed in front of the library's ``losses.Loss``, because Keras saves children of only four known kinds.
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
