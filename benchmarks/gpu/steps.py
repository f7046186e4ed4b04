"""The steps that are judged: of training, forward, backward and the optimizer; of inference, the
model alone.

In float16 the optimizer scales the loss, as a program has it.
"""

from __future__ import annotations

from typing import Any

from benchmarks.models import Workload

FIRST_LOSS_SCALE = 2.0**10
"""The loss scale of the float16 variants: low enough that the first step is not a skipped one."""


def optimizer(workload: Workload, loss_scaling: str | None) -> Any:
    """The workload's optimizer, in its own Keras' or amp_tf's loss scaling.

    Args:
        workload: the model.
        loss_scaling: ``"keras"``, ``"amp_tf"`` or ``None``.
    """
    inner = workload.optimizer()
    if loss_scaling == "keras":
        keras = workload.keras
        library = keras.optimizers if workload.framework == "keras" else keras.mixed_precision
        return library.LossScaleOptimizer(inner, initial_scale=FIRST_LOSS_SCALE)
    return _scaled_by_amp_tf(inner) if loss_scaling else inner


def _scaled_by_amp_tf(inner: Any) -> Any:
    import amp_tf

    return amp_tf.LossScaleOptimizer(inner, initial_scale=FIRST_LOSS_SCALE)


def step(workload: Workload, model: Any, optimizer: Any, *, jit_compile: bool) -> Any:
    """One training step as a ``tf.function`` of the inputs and the target.

    Args:
        workload: what the model is trained for.
        model: a model of its.
        optimizer: from :func:`optimizer`, built.
        jit_compile: whether XLA compiles it.
    """
    import tensorflow as tf

    @tf.function(jit_compile=jit_compile)
    def step(*parts: Any) -> Any:
        x = parts[:-1] if len(parts) > 2 else parts[0]
        y = parts[-1]
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(workload.loss(y, model(x, training=True)))
            scaled = optimizer.scale_loss(loss)
        weights = [weight.value for weight in model.trainable_variables]
        optimizer.apply(tape.gradient(scaled, weights), model.trainable_variables)
        return loss

    return step


def inference(model: Any, *, jit_compile: bool) -> Any:
    """An inference step, as a ``tf.function`` of the model's inputs."""
    import tensorflow as tf

    @tf.function(jit_compile=jit_compile)
    def predict(*parts: Any) -> Any:
        return model(list(parts) if len(parts) > 1 else parts[0], training=False)

    return predict


def specs(workload: Workload, batch: int) -> list[Any]:
    """The specs of a step's inputs and target for so many examples."""
    import tensorflow as tf

    samples = tf.nest.flatten(workload.data(4, 0))
    return [tf.TensorSpec((batch, *sample.shape[1:]), sample.dtype) for sample in samples]
