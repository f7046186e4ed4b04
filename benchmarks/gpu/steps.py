"""The steps that are judged: of training, forward, backward and the optimizer; of inference, the
model alone.

In float16 the optimizer scales the loss, as a program has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.models import Workload

FIRST_LOSS_SCALE = 2.0**10
"""The loss scale of the float16 variants: low enough that the first step is not a skipped one."""


def optimizer(workload: Workload, loss_scaling: str | None) -> Any:
    """Makes the workload's optimizer, in its own Keras' or amp_tf's loss scaling.

    Args:
        workload: the model.
        loss_scaling: ``"keras"``, ``"amp_tf"`` or ``None``.
    """
    inner = workload.optimizer()
    if loss_scaling is None:
        return inner
    if loss_scaling == "amp_tf":
        import amp_tf

        return amp_tf.LossScaleOptimizer(inner, initial_scale=FIRST_LOSS_SCALE)
    keras = workload.keras
    if workload.framework == "keras":
        return keras.optimizers.LossScaleOptimizer(inner, initial_scale=FIRST_LOSS_SCALE)
    return keras.mixed_precision.LossScaleOptimizer(inner, initial_scale=FIRST_LOSS_SCALE)


def step(workload: Workload, model: Any, optimizer: Any, *, jit_compile: bool) -> Any:
    """Makes one training step, a ``tf.function`` of the inputs and the target.

    Args:
        workload: what the model is trained for.
        model: a model of its.
        optimizer: from :func:`optimizer`, built.
        jit_compile: whether XLA compiles it.
    """
    import tensorflow as tf

    @tf.function(jit_compile=jit_compile)
    def step(*parts: Any) -> Any:
        x = _one_or_all(parts[:-1])
        y = parts[-1]
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(workload.loss(y, model(x, training=True)))
            scaled = optimizer.scale_loss(loss)
        weights = [weight.value for weight in model.trainable_variables]
        optimizer.apply(tape.gradient(scaled, weights), model.trainable_variables)
        return loss

    return step


def inference(model: Any, *, jit_compile: bool) -> Any:
    """Makes an inference step, a ``tf.function`` of the model's inputs."""
    import tensorflow as tf

    @tf.function(jit_compile=jit_compile)
    def predict(*parts: Any) -> Any:
        return model(_one_or_all(parts), training=False)

    return predict


def _one_or_all(parts: Sequence[Any]) -> Any:
    """Returns the input of a model: the only part, or the list of all."""
    if len(parts) == 1:
        return parts[0]
    return list(parts)


def specs(workload: Workload, batch: int) -> list[Any]:
    """Returns the specs of a step's inputs and target for so many examples."""
    import tensorflow as tf

    found = []
    for sample in tf.nest.flatten(workload.data(4, 0)):
        shape = (batch, *sample.shape[1:])
        found.append(tf.TensorSpec(shape, sample.dtype))
    return found
