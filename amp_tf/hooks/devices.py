"""The devices of the running TensorFlow, as the rewrite needs them."""

from __future__ import annotations

import dataclasses
import functools

from amp_tf.oplists.hardware import Hardware


@functools.cache
def hardware() -> Hardware:
    """What the GPUs that TensorFlow sees and this CPU can do.

    To be called when TensorFlow runs a graph, not before: asking for the GPUs fixes which ones are visible, and a
    script may still be about to choose them.

    Source of the compute capabilities: ``tf.config.experimental.get_device_details``.
    """
    return dataclasses.replace(Hardware.detect_cpu(), gpu_capabilities=_gpu_capabilities())


def _gpu_capabilities() -> tuple[tuple[int, int], ...]:
    import tensorflow as tf

    details = (tf.config.experimental.get_device_details(gpu) for gpu in tf.config.get_visible_devices("GPU"))
    return tuple(tuple(known["compute_capability"]) for known in details if known.get("compute_capability"))
