"""The signature and a function of a loaded SavedModel."""

import json
import tempfile

import numpy as np
import tensorflow as tf

rng = np.random.default_rng(1)


class Model(tf.Module):
    def __init__(self):
        self.first = tf.Variable(rng.normal(size=(512, 512)).astype("float32") / 23)
        self.second = tf.Variable(rng.normal(size=(512, 512)).astype("float32") / 23)

    @tf.function(input_signature=[tf.TensorSpec([None, 512], tf.float32)])
    def __call__(self, inputs):
        hidden = tf.nn.relu(inputs @ self.first)
        weight = tf.identity(
            self.second
        )  # read once, so that one cast serves several products and pays
        for _ in range(3):
            hidden = tf.nn.relu(hidden @ weight)
        return hidden @ weight


folder = tempfile.mkdtemp()
tf.saved_model.save(Model(), folder)
loaded = tf.saved_model.load(folder)
data = tf.constant(rng.normal(size=(128, 512)).astype("float32"))
by_signature = loaded.signatures["serving_default"](data)["output_0"]
print(
    json.dumps(
        {
            "called": loaded(data).numpy()[:4, :8].tolist(),
            "signature": by_signature.numpy()[:4, :8].tolist(),
        }
    )
)
