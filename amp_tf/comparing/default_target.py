"""Chooses what to compare where ``auto`` converts nothing: float16, as on a GPU.

Most people develop on a CPU without bfloat16 and train on a GPU. What they want to know is how the model fares there,
and that needs no GPU: the same nodes are converted, and rounding is the same.
"""

from __future__ import annotations

import dataclasses

from amp_tf.config import AmpConfig
from amp_tf.oplists.hardware import MIN_COMPUTE_CAPABILITY, Hardware
from amp_tf.oplists.targets import resolve_target


def choose_target(config: AmpConfig, hardware: Hardware | None) -> tuple[AmpConfig, Hardware, tuple[str, ...]]:
    """The configuration and the devices to compare for, and notes about the choice.

    Args:
        config: the user's settings; they are compared if they convert anything here.
        hardware: the devices of this machine; its CPU by default.
    """
    hardware = Hardware.detect_cpu() if hardware is None else hardware
    why = resolve_target(config, hardware).why_none
    if not why:
        return config, hardware, ()
    note = f"compared in float16 for a GPU (precision float16, target gpu), because auto converts nothing here: {why}"
    config = dataclasses.replace(config, precision="float16", target="gpu")
    return config, dataclasses.replace(hardware, gpu_capabilities=(MIN_COMPUTE_CAPABILITY,)), (note,)
