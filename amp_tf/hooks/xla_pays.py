"""Which ops pay in bfloat16 under XLA on a CPU: measured rows, and what ``auto`` makes of them.

XLA:CPU computes a bfloat16 product in float32 after widening its operands, so that the casts come on top of the same
arithmetic. ``auto`` therefore leaves the ops that do not pay in float32; a precision that the user names, and
``ignore_performance``, convert them all the same.

Source of the figures: ``python benchmarks/xla_cpu_ops.py --rows`` (TensorFlow 2.21.0, 2 cores of an Intel Xeon with
avx512_bf16); its docstring says what is measured and when an op pays.
"""

from __future__ import annotations

import dataclasses

from amp_tf.config import AmpConfig
from amp_tf.oplists.hardware import Hardware
from amp_tf.oplists.targets import CPU_DEVICE, resolve_target
from amp_tf.painting.reasons import Reason, Rule


@dataclasses.dataclass(frozen=True)
class XlaCpuRow:
    """One op under XLA:CPU.

    Attributes:
        op: the op's name.
        inside: speed-up of bfloat16 over float32 where operands and result are bfloat16 already, the geometric mean
            over the measured shapes.
        alone: the same where the operands come from float32 and the result goes back to it.
        pays: whether ``auto`` converts the op.
    """

    op: str
    inside: float
    alone: float
    pays: bool


ROWS = (
    XlaCpuRow("MatMul", 0.70, 0.69, pays=False),
    XlaCpuRow("BatchMatMulV2", 0.55, 0.63, pays=False),
    XlaCpuRow("Einsum", 0.85, 1.04, pays=False),
    XlaCpuRow("Conv2D", 0.79, 0.91, pays=False),
    XlaCpuRow("Conv2DBackpropInput", 0.97, 0.86, pays=False),
    XlaCpuRow("Conv2DBackpropFilter", 1.05, 1.00, pays=False),
    XlaCpuRow("DepthwiseConv2dNative", 1.02, 0.98, pays=False),
    XlaCpuRow("DepthwiseConv2dNativeBackpropInput", 1.11, 0.97, pays=False),
    XlaCpuRow("DepthwiseConv2dNativeBackpropFilter", 0.98, 0.89, pays=False),
    XlaCpuRow("BatchMatMul", 0.77, 0.81, pays=False),
    XlaCpuRow("Conv3D", 0.97, 1.18, pays=False),
    XlaCpuRow("Conv3DBackpropInputV2", 1.00, 0.94, pays=False),
    XlaCpuRow("Conv3DBackpropFilterV2", 1.06, 1.06, pays=False),
)

DOES_NOT_PAY = Reason(
    Rule.DOES_NOT_PAY,
    detail="on XLA:CPU, which widens bfloat16 operands to float32; AMP_TF_PRECISION=bfloat16 converts all the same",
)


def is_weighed(config: AmpConfig, hardware: Hardware) -> bool:
    """Whether these rows decide: the user left the choice to amp_tf, and the choice is the CPU."""
    if config.precision != "auto" or config.ignore_performance:
        return False
    target = resolve_target(config, hardware).target
    return target is not None and target.device_type == CPU_DEVICE


def without_unprofitable(config: AmpConfig) -> AmpConfig:
    """The configuration with the ops that do not pay taken off the allow list, unless the user put them there."""
    ops = [row.op for row in ROWS if not row.pays and row.op not in config.allow_add]
    return dataclasses.replace(config, allow_remove=(*config.allow_remove, *ops))
