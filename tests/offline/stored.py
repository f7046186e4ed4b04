"""Models whose weights are stored in 16 bit, and what they answer."""

import numpy as np
import tensorflow as tf

import amp_tf
from amp_tf.offline.saved_model import convert_saved_model

BFLOAT16 = amp_tf.AmpConfig(precision="bfloat16", target="cpu")


def random_values(*shape):
    return np.random.default_rng(len(shape)).normal(size=shape).astype("f")


def convert(model, folder, config=BFLOAT16, **options):
    """The report of a model that is stored in 16 bit, and both converted models, the other with
    float32 weights.
    """
    tf.saved_model.save(model, str(folder / "f32"), **options)
    convert_saved_model(folder / "f32", folder / "converted", config)
    report = convert_saved_model(folder / "f32", folder / "stored", config, weights="f16")
    return report.weights, *(
        tf.saved_model.load(str(folder / name)) for name in ("converted", "stored")
    )


def serve(folder, values):
    """Returns the answer of a folder's model."""
    model = tf.saved_model.load(str(folder))  # whose variables live as long as it does
    return tf.nest.map_structure(np.asarray, model.serve(tf.constant(values)))


def reasons_kept(weights):
    """Why each variable stays in float32, by name; ``None`` for those that are stored in 16 bit."""
    return {variable.name: variable.kept for variable in weights.variables}


class Tied(tf.Module):
    """A weight, and something else that uses it."""

    def __init__(self):
        self.w = tf.Variable(random_values(8, 8), name="w")
        self.idle = tf.Variable(random_values(2), name="idle")

    @tf.function(input_signature=[tf.TensorSpec((None, 8))])
    def __call__(self, x):
        return tf.matmul(x, self.w)
