"""float16 on a CPU without float16 arithmetic is slower than float32: told once, with what to set."""

import pytest

from amp_tf.hooks.process import notices
from amp_tf.oplists import hardware
from tests.hooks import running

PROGRAM = """
import tensorflow as tf

@tf.function(jit_compile=JIT)
def step(x):
    return tf.nn.relu(tf.matmul(tf.nn.relu(tf.matmul(x, x)), x))

for size in (16, 32):
    step(tf.ones((size, size)))
"""
WARNING = "this CPU has no float16 arithmetic, so float16 is slower there than float32"


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize(("precision", "warned"), [("float16", 1), ("bfloat16", 0), ("auto", 0)])
def test_a_program_that_asks_for_float16_is_told_once(jit, precision, warned, site_folder):
    if precision == "float16" and hardware.has_fast_float16(hardware.cpu_flags()):
        warned = 0
    program = PROGRAM.replace("JIT", str(jit))
    ended = running.run(["-c", program], site_folder, {running.SWITCH: "1", "AMP_TF_PRECISION": precision})
    assert ended.status == 0, ended.err
    told = [line for line in ended.err.splitlines() if WARNING in line]
    assert len(told) == warned, ended.err
    assert all("Set AMP_TF_PRECISION=" in line for line in told)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"avx512f", "avx512_bf16", "f16c"}, False),  # f16c converts, it does not compute
        ({"avx512f", "avx512_fp16"}, True),
        ({"amx_tile", "amx_fp16"}, True),
        ({"fp", "asimd", "fphp", "asimdhp"}, True),
        ({"fp", "asimd"}, False),
    ],
)
def test_cpus_with_float16_arithmetic_are_known_by_their_flags(flags, expected):
    assert hardware.has_fast_float16(flags) is expected


def test_the_advice_names_what_this_cpu_is_good_at():
    assert "AMP_TF_PRECISION=bfloat16, in which this CPU is fast" in notices._advice(True)
    assert notices._advice(False) == "Set AMP_TF_PRECISION=auto, which leaves this CPU in float32"
