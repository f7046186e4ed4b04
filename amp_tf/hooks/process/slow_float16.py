"""Warns where a program asks for float16 on a CPU that computes it more slowly than float32."""

from __future__ import annotations

from amp_tf.config import AmpConfig
from amp_tf.hooks.process import devices, notices
from amp_tf.oplists import hardware
from amp_tf.oplists.targets import CPU_DEVICE, resolve_target
from amp_tf.precision import Precision

WARNING = "precision.slow_float16"  #: the key of the warning


def warn_if_slow(config: AmpConfig) -> None:
    """Warns once if the graphs of this process are converted to float16 on a CPU without fast float16."""
    target = resolve_target(config, devices.hardware()).target
    if target is None or target.device_type != CPU_DEVICE or target.precision is not Precision.FLOAT16:
        return
    flags = hardware.cpu_flags()
    if flags and not hardware.has_fast_float16(flags):
        notices.warn_once(
            WARNING,
            "this CPU has no float16 arithmetic, so float16 is slower there than float32",
            where="precision float16",
            fix=_advice(devices.hardware().cpu_gains),
        )


def _advice(gains_by_bf16: bool) -> str:
    if gains_by_bf16:
        return "Set AMP_TF_PRECISION=bfloat16, in which this CPU is fast, or auto, which converts what is faster"
    return "Set AMP_TF_PRECISION=auto, which leaves this CPU in float32"
