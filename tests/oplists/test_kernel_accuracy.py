"""Only ops called INACCURATE have 16-bit kernels that lose more than some units of a result.

Each op runs on all 65,536 numbers of a 16-bit type. Its results are compared with float64, in units
in the last place of the 16-bit type (ulp). A result may be off by more where one ulp of the input
changes it by more, where TensorFlow's float32 kernel is off by an ulp, too, and where it is below
the normal numbers of the type.
"""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from amp_tf.oplists import table

MOST = 8  #: ulps that a kernel may lose
LEAST_FLOAT32 = 2.0**-126
DIGITS = {tf.bfloat16: 8, tf.float16: 11}
LEAST = {tf.bfloat16: LEAST_FLOAT32, tf.float16: 2.0**-14}  #: the smallest normal numbers
SELU_ALPHA = 1.6732632423543772
SELU_SCALE = 1.0507009873554805
#: Ops that do not compute with single values, and one that only the remapper makes.
LEFT_OUT = table.Trait(
    "BiasAddGrad OnesLike Where ZerosLike _MklSwish", table.SHAPE_QUESTIONS, table.CONTROL_FLOW
)
#: Float64 kernels that lose as much, and functions that do not.
EXACT = {
    "Elu": lambda x: np.where(x < 0, np.expm1(x), x),
    "LogSoftmax": lambda x: -np.logaddexp(0, -x),
    "Selu": lambda x: SELU_SCALE * np.where(x < 0, SELU_ALPHA * np.expm1(x), x),
}


def operands(op):
    """The inputs of an op that takes values of one type and needs nothing else; else none."""
    definition = op_def_registry.get(op)
    if definition is None:
        return []
    for attribute in definition.attr:
        if attribute.type != "type" and not attribute.HasField("default_value"):
            return []
    types = {argument.type_attr for argument in definition.input_arg}
    is_list = any(argument.number_attr for argument in definition.input_arg)
    if len(types) != 1 or types == {""} or is_list:
        return []
    return [argument.name for argument in definition.input_arg]


def listed_ops():
    ops = []
    for row in table.ROWS:
        if row.op_list in (table.INFER, table.CLEAR) and len(operands(row.op)) == 1:
            ops.append(row.op)
    return [op for op in dict.fromkeys(ops) if op not in LEFT_OUT]


def ran(op, values, dtype):
    """The results of an op in a type, as float64; a softmax takes pairs of a value and zero."""
    (name,) = operands(op)

    def compute(x):
        raw_op = getattr(tf.raw_ops, op)
        if op.endswith("Softmax"):
            pairs = tf.stack([x, tf.zeros_like(x)], -1)
            return raw_op(**{name: pairs})[..., 0]
        return raw_op(**{name: x})

    compiled = tf.function(compute, autograph=False)
    result = compiled(tf.cast(tf.constant(values), dtype))
    return tf.cast(result, tf.float64).numpy().reshape(-1)


def ulp(values, dtype):
    """The distance of the numbers of a type around each value."""
    sizes = np.maximum(np.abs(values), LEAST[dtype])
    sizes = np.where(np.isfinite(sizes), sizes, LEAST[dtype])
    exponents = np.floor(np.log2(sizes))
    return np.exp2(exponents - DIGITS[dtype] + 1)


def lost(op, dtype):
    """How many ulps of a result the kernel loses at its worst."""
    bits = tf.constant(np.arange(2**16).astype(np.uint16))
    x = tf.cast(tf.bitcast(bits, dtype), tf.float64).numpy()

    def ideal(values):
        return EXACT[op](values) if op in EXACT else ran(op, values, tf.float64)

    with np.errstate(all="ignore"):
        exact = ideal(x)
        moved = np.zeros_like(exact)
        for step in (ulp(x, dtype), -ulp(x, dtype)):
            moved = np.fmax(moved, np.abs(ideal(x + step) - exact))
        off = np.abs(ran(op, x, dtype) - exact)
        off_float32 = np.abs(ran(op, x, tf.float32) - exact)
        is_normal = (x == 0) | (np.abs(x) >= LEAST_FLOAT32)
        is_normal &= (exact == 0) | (np.abs(exact) >= LEAST[dtype])
        judged = is_normal & np.isfinite(off) & (off_float32 <= ulp(exact, dtype))
        units = np.maximum(ulp(exact, dtype), np.nan_to_num(moved, posinf=0))
    return float(np.max(off / units, initial=0, where=judged))


@pytest.mark.parametrize("dtype", DIGITS, ids=lambda dtype: dtype.name)
def test_only_ops_that_are_called_inaccurate_lose_more_than_some_units(dtype):
    ops = listed_ops()
    assert {"Elu", "Tanh", "Softmax", "Neg"} <= set(ops)
    inaccurate = set()
    for op in ops:
        if lost(op, dtype) > MOST:
            inaccurate.add(op)
    assert inaccurate == table.INACCURATE
