"""The methods that ``LossScaler`` and every ``LossScaleOptimizer`` have in common.

Methods that a traced step calls are marked ``do_not_convert``: AutoGraph would rewrite them and all that they call, and
warn where it cannot (``tests/loss_scaling/test_autograph.py``).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from amp_tf.loss_scaling.diagnosis import Status
from amp_tf.loss_scaling.scaler import Scaler
from amp_tf.loss_scaling.schedule import DynamicScale, Schedule


class StateMethods:
    """Methods that show and set the state of a :class:`Scaler`."""

    _scaler: Scaler

    @property
    def loss_scale(self) -> Any:
        """The scale now, a float32 variable.

        Assigning a number takes effect at the next step, also in traced ones; in a TF1 graph in the default session.

        Raises:
            ConfigError: it is set to a number outside the range of scales, 2**-126 to 2**127.
        """
        self._scaler.usage.note_reading()
        return self._scaler.memory.scale

    @loss_scale.setter
    def loss_scale(self, value: float) -> None:
        self._scaler.memory.assign_scale(value)

    @property
    def schedule(self) -> Schedule:
        """The settings of the scale; fixed, because traced steps hold them."""
        return self._scaler.schedule

    @property
    def dynamic(self) -> bool:
        """Whether the scale moves."""
        return isinstance(self.schedule, DynamicScale)

    def status(self, session: Any = None) -> Status:
        """The state as Python numbers. Waits for the device: for callbacks and people, not for traced steps.

        Args:
            session: the session of a TF1 graph to ask; none is needed with eager execution.
        """
        return self._scaler.status(session)


class ScalingMethods(StateMethods):
    """Methods that scale and unscale; mixed in front of the library's class, whose methods they replace.

    A traced loop may multiply its loss by :attr:`loss_scale` instead of calling :meth:`scale_loss`; eager ones may not.
    """

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def scale_loss(self, loss: Any) -> Any:
        """The loss times the scale: what the tape, or ``tf.gradients``, differentiates; the step then unscales.

        Args:
            loss: a floating-point tensor of any shape, or a nest of them.

        Returns:
            The same structure, float32 (float64 where it was).
        """
        self._scaler.usage.note_automatic_unscaling()
        return self._scaler.scale(loss)

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def get_scaled_loss(self, loss: Any) -> Any:
        """Scales a loss for loops that call :meth:`get_unscaled_gradients`, as with tf_keras.

        Args:
            loss: a tensor, a nest of them, or a callable without arguments that returns one; the result is then a
                callable too.
        """
        if callable(loss):
            return lambda: self._scaler.scale(loss())
        return self._scaler.scale(loss)

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def get_unscaled_gradients(self, grads: Iterable[Any]) -> list[Any]:
        """Divides gradients by the scale; ``apply_gradients`` then takes them unchanged.

        Args:
            grads: tensors, ``tf.IndexedSlices`` or ``None``.
        """
        return self._scaler.unscale_for_loop(grads)


def accepted(method: Callable[..., Any], **keywords: Any) -> dict[str, Any]:
    """The keyword arguments that a method takes: a user's class may leave out some of its base class's.

    Args:
        method: of the optimizer inside a wrapper. Libraries call it by keywords, so its arguments may have any order.
        **keywords: what the base class's method takes beside the gradients.
    """
    parameters = inspect.signature(method).parameters
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return keywords
    return {name: value for name, value in keywords.items() if name in parameters}


class InnerSettings:
    """Delegates attributes that the wrapper does not have, such as momentum, to the wrapped optimizer.

    Attributes:
        _inner: the name of the attribute that holds that optimizer.
        _of_inner: settings that are its alone although the library's wrapper has attributes of their names.
    """

    _inner = "inner_optimizer"
    _of_inner: frozenset[str] = frozenset()

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
