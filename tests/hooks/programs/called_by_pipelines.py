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


compiled = tf.function(products, jit_compile=True, input_signature=[batch])
plain = tf.function(products, input_signature=[batch])
apart = tf.function(products, input_signature=[batch], experimental_attributes={"_noinline": True})
apart_inside = tf.function(
    lambda x: tf.cond(tf.reduce_sum(x) > -1e9, lambda: apart(x), lambda: x),
    input_signature=[batch],
    experimental_attributes={"_noinline": True},
)
compiled_inside = tf.function(lambda x: compiled(x) + 0.0, input_signature=[batch])


def error_of(values):
    return float(np.abs(np.concatenate([*values]) - exact).max())


def called(function):
    return error_of(function(rows[first : first + 16]).numpy() for first in range(0, 64, 16))


def py_function(function):
    return lambda x: tf.ensure_shape(tf.py_function(function, [x], tf.float32), batch.shape)


def numpy_function(function):
    return lambda x: tf.ensure_shape(
        tf.numpy_function(lambda given: function(given).numpy(), [x], tf.float32), (16, 32)
    )


def generated(function):
    def batches():
        for first in range(0, 64, 16):
            yield function(rows[first : first + 16])

    return error_of(
        tf.data.Dataset.from_generator(batches, output_signature=batch).as_numpy_iterator()
    )


def mapped(function):
    return error_of(
        tf.data.Dataset.from_tensor_slices(rows).batch(16).map(function).as_numpy_iterator()
    )


def scanned(function):
    batches = tf.data.Dataset.from_tensor_slices(rows).batch(16)
    return error_of(batches.scan(0.0, lambda state, x: (state, function(x))).as_numpy_iterator())


def looped(function):
    @tf.function(autograph=True)
    def last(batches):
        value = tf.zeros(batch.shape)
        for x in batches:
            value = function(x)
            if tf.reduce_sum(x) > 1e9:
                break
        return value

    value = last(tf.data.Dataset.from_tensor_slices(rows).batch(16, drop_remainder=True))
    return float(np.abs(value - exact[48:]).max())


data = {}
program = {}
for name, function in (
    ("plain", plain),
    ("compiled", compiled),
    ("compiled_inside", compiled_inside),
    ("apart", apart),
    ("apart_inside", apart_inside),
):
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
for name in ("first called by map", "first called by scan"):
    late = tf.function(products, experimental_attributes={"_noinline": True})
    data[name] = mapped(late) if name.endswith("map") else scanned(late)
    program[name] = called(late)
print(json.dumps({"data": data, "program": program}))
