"""Trains a model, then converts it for TFLite, whose converter holds Python's lock while TensorFlow
runs its graphs.
"""

import json

import numpy as np
import tensorflow as tf

rng = np.random.default_rng(1)
inputs = rng.normal(size=(64, 32)).astype("float32")
labels = rng.normal(size=(64, 4)).astype("float32")
model = tf.keras.Sequential(
    [tf.keras.Input((32,)), tf.keras.layers.Dense(64, "relu"), tf.keras.layers.Dense(4)]
)
model.compile("sgd", "mse", jit_compile=False)
model.fit(inputs, labels, verbose=0)

converted = tf.lite.TFLiteConverter.from_keras_model(model).convert()
interpreter = tf.lite.Interpreter(model_content=converted)
(given,), (got,) = interpreter.get_input_details(), interpreter.get_output_details()
interpreter.resize_tensor_input(given["index"], inputs.shape)
interpreter.allocate_tensors()
interpreter.set_tensor(given["index"], inputs)
interpreter.invoke()
types = sorted({detail["dtype"].__name__ for detail in interpreter.get_tensor_details()})
error = np.abs(interpreter.get_tensor(got["index"]) - model(inputs).numpy()).max()
print(json.dumps({"error": float(error), "types": types}))
