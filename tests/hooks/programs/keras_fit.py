"""Keras 3, or ``keras_fit.py tf_keras``: fit, evaluate, predict; a checkpoint and a SavedModel."""

import importlib
import json
import os
import sys
import tempfile

import keras
import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

keras.utils.set_random_seed(1)  # up to 2.18 tf_keras' own does not work on Python 3.12
keras = importlib.import_module(sys.argv[1]) if sys.argv[1:] else keras
rng = np.random.default_rng(1)
images = rng.normal(size=(256, 16, 16, 3)).astype("float32")
labels = (images.sum(axis=(1, 2, 3)) > 0).astype("int32")
model = keras.Sequential(
    [
        keras.layers.Input((16, 16, 3)),
        keras.layers.Conv2D(32, 3, activation="relu"),
        keras.layers.Conv2D(32, 3, activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Flatten(),
        keras.layers.Dense(64, activation="relu"),
        keras.layers.Dense(2),
    ]
)
model.compile(
    keras.optimizers.SGD(0.02), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
)
history = model.fit(images, labels, batch_size=32, epochs=3, verbose=0)
folder = tempfile.mkdtemp()
model.export(os.path.join(folder, "exported"))
model.save_weights(os.path.join(folder, "model.weights.h5"))
checkpoint = os.path.join(folder, "checkpoint")
tf.train.Checkpoint(model=model).write(checkpoint)
with open(os.path.join(folder, "exported", "saved_model.pb"), "rb") as file:
    graph = SavedModel.FromString(file.read()).meta_graphs[0].graph_def
nodes = list(graph.node)
for function in graph.library.function:
    nodes += function.node_def
f16 = (tf.float16.as_datatype_enum, tf.bfloat16.as_datatype_enum)
saved_16_bit = 0
for node in nodes:
    saved_16_bit += sum(attr.type in f16 for attr in node.attr.values())
types = tf.train.load_checkpoint(checkpoint).get_variable_to_dtype_map().values()
found = {
    "loss": history.history["loss"],
    "evaluated": float(model.evaluate(images, labels, verbose=0)),
    "predicted": model.predict(images[:4], verbose=0).tolist(),
    "saved_16_bit": saved_16_bit,
    "checkpoint_types": sorted({dtype.name for dtype in types}),
}
print(json.dumps(found))
