"""TensorFlow functions that a pipeline calls in each way, and that the program itself calls before
and after.
"""

import json

import numpy as np
import tensorflow as tf

rng = np.random.default_rng(0)
rows = rng.normal(size=(64, 32)).astype("float32")
weight = rng.normal(size=(32, 32)).astype("float32")
exact = np.maximum(rows @ weight, 0) @ weight
batch = tf.TensorSpec((16, 32))


def products(x):
    return tf.matmul(tf.nn.relu(tf.matmul(x, weight)), weight)


def without_inlining(function):
    return tf.function(
        function, input_signature=[batch], experimental_attributes={"_noinline": True}
    )


plain = tf.function(products, input_signature=[batch])
compiled = tf.function(products, jit_compile=True, input_signature=[batch])
apart = without_inlining(products)
FUNCTIONS = {
    "plain": plain,
    "compiled": compiled,
    "compiled_inside": tf.function(lambda x: compiled(x) + 0.0, input_signature=[batch]),
    "apart": apart,
    "apart_inside": without_inlining(
        lambda x: tf.cond(tf.reduce_sum(x) > -1e9, lambda: apart(x), lambda: x)
    ),
}


def batches():
    return tf.data.Dataset.from_tensor_slices(rows).batch(16, drop_remainder=True)


def error_of(values):
    return float(np.abs(np.concatenate([*values]) - exact).max())


def called(function):
    return error_of(map(function, batches()))


def py_function(function):
    return lambda x: tf.ensure_shape(tf.py_function(function, [x], tf.float32), batch.shape)


def numpy_function(function):
    def values(given):
        return function(given).numpy()

    return lambda x: tf.ensure_shape(tf.numpy_function(values, [x], tf.float32), batch.shape)


def generated(function):
    def results():
        for start in range(0, 64, 16):
            yield function(rows[start : start + 16])

    data = tf.data.Dataset.from_generator(results, output_signature=batch)
    return error_of(data.as_numpy_iterator())


def mapped(function):
    return error_of(batches().map(function).as_numpy_iterator())


def scanned(function):
    results = batches().scan(0.0, lambda state, x: (state, function(x)))
    return error_of(results.as_numpy_iterator())


def looped(function):
    @tf.function(autograph=True)
    def last(data):
        value = tf.zeros(batch.shape)
        for x in data:
            value = function(x)
            if tf.reduce_sum(x) > 1e9:
                break
        return value

    return float(np.abs(last(batches()) - exact[48:]).max())


data = {}
program = {}
for name, function in FUNCTIONS.items():
    program[f"{name} before"] = called(function)
    data[f"{name} map"] = mapped(function)
    data[f"{name} py_function"] = mapped(py_function(function))
    data[f"{name} numpy_function"] = mapped(numpy_function(function))
    data[f"{name} from_generator"] = generated(function)
    data[f"{name} scan"] = scanned(function)
    program[f"{name} loop over a dataset"] = looped(function)
    program[f"{name} after"] = called(function)
late = tf.function(products, jit_compile=True, input_signature=[batch])
data["first called by py_function"] = mapped(py_function(late))
program["first called by py_function"] = called(late)
for name, road in (("map", mapped), ("scan", scanned)):
    late = without_inlining(products)
    data[f"first called by {name}"] = road(late)
    program[f"first called by {name}"] = called(late)
print(json.dumps({"data": data, "program": program}))
