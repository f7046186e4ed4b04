"""What every ``LossScaleOptimizer`` offers a loop, in the same words: the methods around its :class:`Scaler`.

Those that a traced step calls are marked ``do_not_convert``: AutoGraph would rewrite them and all that they call, and
warn where it cannot (``tests/loss_scaling/test_autograph.py``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from amp_tf.loss_scaling.scaler import Scaler
from amp_tf.loss_scaling.schedule import Schedule


class ScalingMethods:
    """Comes before the class of the library, whose methods of the same names it stands for."""

    _scaler: Scaler

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
        """As :meth:`scale_loss`, for loops that call :meth:`get_unscaled_gradients`, as with tf_keras.

        Args:
            loss: a tensor, a nest of them, or a callable without arguments that returns one and gives a callable.
        """
        if callable(loss):
            return lambda: self._scaler.scale(loss())
        return self._scaler.scale(loss)

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def get_unscaled_gradients(self, grads: Iterable[Any]) -> list[Any]:
        """Divides gradients by the scale; ``apply_gradients`` then takes them as they come.

        Args:
            grads: tensors, ``tf.IndexedSlices`` or ``None``.
        """
        return self._scaler.unscale_for_loop(grads)

    @property
    def schedule(self) -> Schedule:
        """The settings of the scale; fixed, because traced steps hold them."""
        return self._scaler.schedule
