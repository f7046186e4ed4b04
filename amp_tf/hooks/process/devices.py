"""The devices of the running TensorFlow, as the rewrite needs them."""

from __future__ import annotations

import dataclasses
import functools

from amp_tf.oplists.hardware import Hardware

HAS_TF32 = (8, 0)  #: the compute capability from which GPUs have it, Ampere's


@functools.cache
def hardware() -> Hardware:
    """What the GPUs that TensorFlow sees and this CPU can do.

    Must be called when TensorFlow runs a graph, not before: asking for the GPUs fixes which ones are visible, and a
    script may not have chosen them yet.

    Source of the compute capabilities: ``tf.config.experimental.get_device_details``.
    """
    return dataclasses.replace(Hardware.detect_cpu(), gpu_capabilities=_gpu_capabilities())


def uses_tf32(capability: tuple[int, ...]) -> bool | None:
    """Whether TensorFlow lets a GPU compute float32 products in TF32; ``None`` where it cannot.

    Args:
        capability: its compute capability.
    """
    import tensorflow as tf

    return tf.config.experimental.tensor_float_32_execution_enabled() if capability >= HAS_TF32 else None


def _gpu_capabilities() -> tuple[tuple[int, int], ...]:
    import tensorflow as tf

    details = (tf.config.experimental.get_device_details(gpu) for gpu in tf.config.get_visible_devices("GPU"))
    return tuple(tuple(known["compute_capability"]) for known in details if known.get("compute_capability"))
