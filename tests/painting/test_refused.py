from __future__ import annotations

import pytest

from amp_tf.oplists.hardware import Hardware
from amp_tf.painting.reasons import Code
from tests.painting.painted import BF16_CPU, VOLTA, painted

pytestmark = pytest.mark.usefixtures("local_rules")

OLD_CPU = Hardware()
STRIDES = "strides=[1, 1, 1, 1] padding='SAME'"
FIRST = f"{STRIDES} data_format='NCHW'"
POOL = f"ksize=[1, 1, 2, 2] {FIRST}"
NO_KERNEL = "TensorFlow has no 16-bit kernel of its op for its device"

PAIR = f"""
    x = Placeholder()
    m = Conv2D(x, x) {FIRST}
    p = MaxPool(m) {POOL}
    n = Conv2D(p, x) {FIRST}
"""
NORM = f"""
    x = Placeholder()
    m = Conv2D(x, x) {STRIDES}
    e = _FusedBatchNormEx(m, x, x, x, x) T=float32 U=float32 activation_mode='Relu' is_training=true
    n = Conv2D(e, x) {STRIDES}
"""
PRODUCTS = f"""
    x = Placeholder()
    sizes = Const() dtype=int32 value=int32[4]*8
    g = Conv2DBackpropInput(sizes, x, x) {STRIDES} dilations=[1, 2, 2, 1]
    c = Conv2D(g, x) {FIRST}
"""
IN_A_FUNCTION = f"""
    function f(x: float32, w: float32) -> (y: float32)
    m = Conv2D(x, w) {STRIDES}
    p = MaxPool(m:output:0) {POOL}
    n = Conv2D(p:output:0, w) {STRIDES}
    return y = n:output:0
"""
#: The graph, the precision, the hardware, what becomes 16 bit, and what the kernels of the others
#: refuse.
SHOWN = {
    "float32 kernels compute products, and refuse nothing": (
        PRODUCTS,
        "bfloat16",
        OLD_CPU,
        "g c",
        {},
    ),
    "in float16, too": (PRODUCTS, "float16", OLD_CPU, "g c", {}),
    "GPUs refuse nothing": (PAIR, "float16", VOLTA, "m p n", {}),
    "a pool between products, channels first": (
        PAIR,
        "bfloat16",
        OLD_CPU,
        "m n",
        {"p": "with channels first"},
    ),
    "a function is asked as a graph is": (
        IN_A_FUNCTION,
        "float16",
        BF16_CPU,
        "m n",
        {"p": "with channels first"},
    ),
    "a maximum and its gradient where only oneDNN computes both": (
        f"{PAIR}\n g = MaxPoolGrad(m, p, n) {POOL}\n o = Conv2D(g, x) {FIRST}",
        "bfloat16",
        BF16_CPU,
        "m n o",
        dict.fromkeys("gp", "with channels first and a gradient"),
    ),
    "a maximum alone is converted": (PAIR, "bfloat16", BF16_CPU, "m p n", {}),
    "a fused normalization where oneDNN computes it": (NORM, "bfloat16", BF16_CPU, "m e n", {}),
    "and where it does not": (NORM, "bfloat16", OLD_CPU, "m n", {}),
}


@pytest.mark.parametrize(
    ("text", "precision", "hardware", "f16", "refused"), SHOWN.values(), ids=SHOWN
)
def test_what_kernels_refuse_stays_and_its_reason_says_why(text, precision, hardware, f16, refused):
    result = painted(text, precision=precision, hardware=hardware)
    assert result.f16 == f16
    for name, what in refused.items():
        assert result.code(name) is Code.NO_KERNEL
        assert result.words(name) == f"{NO_KERNEL} ({what})"


def test_a_forced_node_is_not_converted_where_its_kernel_refuses_it():
    text = f"x = Placeholder()\np = MaxPool(x) {POOL}"
    assert painted(text, precision="bfloat16", hardware=OLD_CPU, force_f16=("p",)).f16 == ""
