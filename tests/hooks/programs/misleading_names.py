"""Functions of pipelines whose names do not say so, functions of the program that are named as
those of pipelines, and pipelines that outlive amp_tf.
"""

import json

import numpy as np
import tensorflow as tf

import amp_tf

rng = np.random.default_rng(0)
rows = rng.normal(size=(64, 32)).astype("float32")
weight = rng.normal(size=(32, 32)).astype("float32")
exact = np.maximum(rows @ weight, 0) @ weight
batch = tf.TensorSpec((16, 32))


def products(x):
    return tf.matmul(tf.nn.relu(tf.matmul(x, weight)), weight)


def batches():
    return tf.data.Dataset.from_tensor_slices(rows).batch(16, drop_remainder=True)


def error_of(dataset):
    return float(np.abs(np.concatenate([*dataset.as_numpy_iterator()]) - exact).max())


def named(name):
    def function(x):
        return products(x)

    function.__name__ = name
    return tf.function(function)


def scan_body(state, x):
    return state, products(x)


def by_python(function):
    return lambda x: tf.ensure_shape(tf.py_function(function, [x], tf.float32), batch.shape)


def interleaved():
    options = tf.data.Options()
    options.experimental_optimization.seq_interleave_prefetch = True
    data = batches().interleave(
        lambda x: tf.data.Dataset.from_tensors(products(x)),
        cycle_length=1,
        num_parallel_calls=1,
        deterministic=True,
    )
    return data.with_options(options)


def last_of_loop():
    @tf.function
    def last(data):
        value = tf.zeros(batch.shape)
        for x in data:
            value = products(x)
        return value

    return float(np.abs(last(batches()) - exact[48:]).max())


program = {"loop over a dataset": last_of_loop()}
for name in ("fused_mapping", "fused_filter_bank", "map_on_gpu_and_cpu", "Dataset_loss"):
    program[name] = float(np.abs(named(name)(rows) - exact).max())
data = {
    "scan_body": error_of(batches().scan(0.0, scan_body)),
    "interleave": error_of(interleaved()),
    "loop in a map": error_of(
        batches().map(
            lambda x: tf.data.Dataset.from_tensors(x).reduce(x, lambda _, each: products(each))
        )
    ),
}
compiled = tf.function(products, jit_compile=True, input_signature=[batch])
program["compiled"] = float(np.abs(compiled(rows[:16]) - exact[:16]).max())
before = batches().map(by_python(compiled))
amp_tf.disable()
data["map, made after"] = error_of(batches().map(compiled))
data["py_function, made before"] = error_of(before)
amp_tf.enable(precision="bfloat16")
tf.data.experimental.enable_debug_mode()
data["debug mode"] = error_of(batches().map(tf.function(products)))
print(json.dumps({"data": data, "program": program}))
