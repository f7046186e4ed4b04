"""Times ops on this CPU in float32 and in bfloat16: the figures of amp_tf/oplists/costs.py.

    python benchmarks/cpu_op_costs.py [--size 64] [--repeats 9] [--only Sigmoid,Mul]

Each op runs ten times, one after the other, inside one tf.function with TensorFlow's graph optimizers off, on tensors
of 8 × size × size × 64: of size 64 they just fit the caches, of size 128 they do not. Every run reads the same input
and writes to new memory, as in training, where the activations are kept for the gradients; in a chain TensorFlow would
write in place. The two types take turns; the minimum counts. The table gives nanoseconds for each element. The last
rows are the products, in floating-point operations a nanosecond.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # as a script it finds only this folder
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

from benchmarks.op_timing import Op, run_many, seconds

parser = argparse.ArgumentParser(description="Times ops on this CPU in float32 and in bfloat16.")
parser.add_argument("--size", type=int, default=64, help="height and width of the tensors")
parser.add_argument("--repeats", type=int, default=9)
parser.add_argument("--only", default="", help="ops, comma-separated")
ARGUMENTS = parser.parse_args()
SHAPE = (8, ARGUMENTS.size, ARGUMENTS.size, 64)
RUNS = 10
POOL = [1, 2, 2, 1]
raw = tf.raw_ops

UNARY: dict[str, Op] = {
    "Elu": tf.nn.elu,
    "Erf": tf.math.erf,
    "Erfc": tf.math.erfc,
    "LeakyRelu": tf.nn.leaky_relu,
    "Log": lambda x: tf.math.log(tf.abs(x)),
    "Log1p": tf.math.log1p,
    "Neg": tf.negative,
    "Reciprocal": tf.math.reciprocal,
    "Relu": tf.nn.relu,
    "Relu6": tf.nn.relu6,
    "Rsqrt": tf.math.rsqrt,
    "Selu": tf.nn.selu,
    "Sigmoid": tf.sigmoid,
    "Softmax": tf.nn.softmax,
    "Softplus": tf.nn.softplus,
    "Softsign": tf.nn.softsign,
    "Sqrt": tf.sqrt,
    "Square": tf.square,
    "Tanh": tf.tanh,
    "Transpose": lambda x: tf.transpose(x, [0, 2, 1, 3]),
}
BINARY: dict[str, Op] = {
    "Add": lambda x, y: raw.Add(x=x, y=y),
    "AddN": lambda x, y: tf.add_n([x, y]),
    "AddV2": tf.add,
    "EluGrad": lambda x, y: raw.EluGrad(gradients=x, outputs=y),
    "LeakyReluGrad": lambda x, y: raw.LeakyReluGrad(gradients=x, features=y),
    "Maximum": tf.maximum,
    "Minimum": tf.minimum,
    "Mul": tf.multiply,
    "RealDiv": lambda x, y: raw.RealDiv(x=x, y=y),
    "Relu6Grad": lambda x, y: raw.Relu6Grad(gradients=x, features=y),
    "ReluGrad": lambda x, y: raw.ReluGrad(gradients=x, features=y),
    "SelectV2": lambda x, y: tf.where(MASK, x, y),
    "SeluGrad": lambda x, y: raw.SeluGrad(gradients=x, outputs=y),
    "SigmoidGrad": lambda x, y: raw.SigmoidGrad(y=y, dy=x),
    "SoftplusGrad": lambda x, y: raw.SoftplusGrad(gradients=x, features=y),
    "SoftsignGrad": lambda x, y: raw.SoftsignGrad(gradients=x, features=y),
    "SquaredDifference": tf.math.squared_difference,
    "Sub": tf.subtract,
    "TanhGrad": lambda x, y: raw.TanhGrad(y=y, dy=x),
}
MORE_UNARY: dict[str, Op] = {
    "AvgPool": lambda x: tf.nn.avg_pool2d(x, 2, 2, "SAME"),
    "BiasAdd": lambda x: tf.nn.bias_add(x, tf.cast(BIAS, x.dtype)),
    "BiasAddGrad": lambda x: raw.BiasAddGrad(out_backprop=x),
    "ConcatV2": lambda x: tf.concat([x, x], -1),
    "FusedBatchNormGradV3": lambda x: raw.FusedBatchNormGradV3(
        y_backprop=x, x=x, scale=BIAS, reserve_space_1=BIAS, reserve_space_2=BIAS, reserve_space_3=BIAS
    )[0],
    "FusedBatchNormV3": lambda x: raw.FusedBatchNormV3(
        x=x, scale=BIAS, offset=BIAS, mean=tf.zeros([0]), variance=tf.zeros([0]), is_training=True
    )[0],
    "AvgPoolGrad": lambda x: raw.AvgPoolGrad(
        orig_input_shape=SHAPE, grad=x[:, ::2, ::2], ksize=POOL, strides=POOL, padding="SAME"
    ),
    "MaxPool": lambda x: tf.nn.max_pool2d(x, 2, 2, "SAME"),
    "MaxPoolGrad": lambda x: raw.MaxPoolGrad(
        orig_input=x, orig_output=x[:, ::2, ::2], grad=x[:, ::2, ::2], ksize=POOL, strides=POOL, padding="SAME"
    ),
    "Mean": lambda x: tf.reduce_mean(x, [1, 2]),
    "Pad": lambda x: tf.pad(x, [[0, 0], [1, 1], [1, 1], [0, 0]]),
    "Slice": lambda x: tf.slice(x, [0, 1, 0, 0], [8, SHAPE[1] - 1, SHAPE[2], 64]),
    "Split": lambda x: tf.split(x, 2, -1)[0],
    "Sum": lambda x: tf.reduce_sum(x, [1, 2]),
    "Tile": lambda x: tf.tile(x, [2, 1, 1, 1]),
}

random = np.random.default_rng(0)
DATA = tf.constant(random.uniform(0.1, 0.9, SHAPE).astype("float32"))
BIAS = tf.constant(random.uniform(0.1, 0.9, SHAPE[-1]).astype("float32"))
MASK = tf.constant(random.uniform(size=SHAPE) > 0.5)


def main() -> None:
    wanted = set(filter(None, ARGUMENTS.only.split(",")))
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    elements = DATA.shape.num_elements()
    print(f"{'op':24}{'float32':>9}{'bfloat16':>10}   ns for each element")
    cases = [(name, run_many(op, RUNS), (DATA,)) for name, op in (UNARY | MORE_UNARY).items()]
    cases += [(name, run_many(op, RUNS), (DATA, DATA)) for name, op in BINARY.items()]
    for name, function, inputs in sorted(cases):
        if not wanted or name in wanted:
            times = (1e9 * second / RUNS / elements for second in seconds(function, inputs, ARGUMENTS.repeats))
            print(f"{name:24}{next(times):9.2f}{next(times):10.2f}", flush=True)
    if not wanted:
        down, _ = seconds(run_many(lambda x: tf.cast(x, tf.bfloat16), RUNS), (DATA,), ARGUMENTS.repeats)
        _, up = seconds(run_many(lambda x: tf.cast(x, tf.float32), RUNS), (DATA,), ARGUMENTS.repeats)
        print(f"Cast to bfloat16 {1e9 * down / RUNS / elements:.2f}, to float32 {1e9 * up / RUNS / elements:.2f}")
        print(f"\n{'product':24}{'float32':>9}{'bfloat16':>10}   operations in a ns")
        for size in (256, 512, 1024):
            matrix = tf.constant(random.normal(size=(size, size)).astype("float32") / size)
            times = seconds(run_many(tf.matmul, RUNS), (matrix, matrix), ARGUMENTS.repeats)
            rates = [RUNS * 2 * size**3 / second / 1e9 for second in times]
            print(f"MatMul {size:<17}{rates[0]:9.1f}{rates[1]:10.1f}", flush=True)


if __name__ == "__main__":
    main()
