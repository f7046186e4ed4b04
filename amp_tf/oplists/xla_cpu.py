"""What ops gain in bfloat16 under XLA on a CPU: measured, as data.

XLA:CPU widens bfloat16 operands and computes in float32, so that the casts come on top of the same arithmetic.

Source: ``python benchmarks/xla_cpu_ops.py --rows`` on 2 cores of an AMD EPYC (Zen 5) with avx512_bf16, TensorFlow 2.21;
its docstring says what is measured and when an op pays.
"""

from __future__ import annotations

import dataclasses


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

UNPROFITABLE = frozenset(row.op for row in ROWS if not row.pays)
