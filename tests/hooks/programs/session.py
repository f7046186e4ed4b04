"""tf.compat.v1: a graph, a Session, an optimizer; one of the matrix products is fetched."""

import json

import numpy as np
import tensorflow as tf

rng = np.random.default_rng(1)
data = rng.normal(size=(1024, 512)).astype("float32")
with tf.Graph().as_default():
    inputs = tf.compat.v1.placeholder(tf.float32, [1024, 512])
    first = tf.compat.v1.get_variable(
        "first", initializer=rng.normal(size=(512, 512)).astype("float32") / 23
    )
    second = tf.compat.v1.get_variable(
        "second", initializer=rng.normal(size=(512, 1)).astype("float32") / 23
    )
    fetched = tf.matmul(inputs, first)
    loss = tf.reduce_mean(tf.square(tf.matmul(tf.nn.relu(fetched), second) - 1.0))
    train = tf.compat.v1.train.GradientDescentOptimizer(0.01).minimize(loss)
    with tf.compat.v1.Session() as session:
        session.run(tf.compat.v1.global_variables_initializer())
        product = session.run(fetched, {inputs: data})
        steps = [session.run([train, loss, fetched], {inputs: data})[1:] for _ in range(10)]
print(
    json.dumps(
        {
            "loss": [float(value) for value, _ in steps],
            "fetched_types": sorted(
                {str(array.dtype) for _, array in steps} | {str(product.dtype)}
            ),
            "fetched": product[:2, :4].tolist(),
        }
    )
)
