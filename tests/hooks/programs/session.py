"""tf.compat.v1: a graph, a Session, an optimizer; one of the matrix products is fetched."""

import json

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
rng = np.random.default_rng(1)
data = rng.normal(size=(1024, 512)).astype("float32")


def weight(name, *shape):
    values = rng.normal(size=shape).astype("float32") / 23
    return v1.get_variable(name, initializer=values)


with tf.Graph().as_default():
    inputs = v1.placeholder(tf.float32, [1024, 512])
    fetched = tf.matmul(inputs, weight("first", 512, 512))
    result = tf.matmul(tf.nn.relu(fetched), weight("second", 512, 1))
    loss = tf.reduce_mean(tf.square(result - 1.0))
    train = v1.train.GradientDescentOptimizer(0.01).minimize(loss)
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        product = session.run(fetched, {inputs: data})
        losses = []
        types = {str(product.dtype)}
        for _ in range(10):
            _, value, again = session.run([train, loss, fetched], {inputs: data})
            losses.append(float(value))
            types.add(str(again.dtype))
found = {"loss": losses, "fetched_types": sorted(types), "fetched": product[:2, :4].tolist()}
print(json.dumps(found))
