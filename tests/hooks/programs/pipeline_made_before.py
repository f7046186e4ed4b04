"""Pipelines made before and after the program turns amp_tf on itself: by a call, or by setting the
variables.
"""

import json
import os
import sys

import numpy as np
import tensorflow as tf

rng = np.random.default_rng(0)
images = rng.normal(size=(64, 32)).astype("float32")
labels = rng.uniform(1000, 2000, size=(64, 1)).astype("float32")
whitening = rng.normal(size=(32, 32)).astype("float32")


def prepare(image, label):
    return tf.nn.relu(tf.matmul(image, whitening)) + 0.5, tf.matmul(label, [[1.0]]) + 0.25


def make():
    data = tf.data.Dataset.from_tensor_slices((images, labels)).batch(16)
    if "fused" not in sys.argv:
        return data.map(prepare)
    options = tf.data.Options()
    options.experimental_optimization.map_fusion = True
    return (
        data.map(prepare).map(lambda image, label: (image * 1.0, label * 1.0)).with_options(options)
    )


def values_of(dataset):
    return [np.concatenate(parts) for parts in zip(*dataset.as_numpy_iterator(), strict=True)]


before = make()
exact = values_of(make())
if "environ" in sys.argv:
    os.environ.update(AMP_TF_PRECISION="bfloat16", TF_ENABLE_AUTO_MIXED_PRECISION="1")
else:
    import amp_tf

    amp_tf.enable(precision="bfloat16")
step = tf.function(lambda image: tf.matmul(prepare(image, labels)[0], whitening))
rounded = step(tf.constant(images)).numpy() - exact[0] @ whitening
errors = {
    name: [
        float(np.abs(got - wanted).max())
        for got, wanted in zip(values_of(dataset), exact, strict=True)
    ]
    for name, dataset in (("before", before), ("after", make()))
}
print(json.dumps({**errors, "step": float(np.abs(rounded).max())}))
