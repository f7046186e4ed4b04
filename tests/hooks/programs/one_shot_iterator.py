"""A TF1 session whose data comes from a one-shot iterator over a dataset, without and with
functions of its own.
"""

import json
import sys

import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
tf.set_random_seed(1)
rows = np.random.default_rng(0).normal(size=(64, 256)).astype("float32")
mixing = np.random.default_rng(1).normal(size=(256, 256), scale=0.06).astype("float32")

data = tf.data.Dataset.from_tensors(rows).repeat()
if "map" in sys.argv:
    data = data.map(lambda batch: tf.matmul(tf.matmul(batch, mixing), mixing))
hidden = prepared = tf.data.make_one_shot_iterator(data).get_next()
for index in range(4):
    hidden = tf.nn.relu(tf.matmul(hidden, tf.get_variable(f"w{index}", [256, 256])))
loss = tf.reduce_mean(hidden**2)
train = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    given, *_ = session.run([prepared, loss, train])
wanted = rows @ mixing @ mixing if "map" in sys.argv else rows
print(json.dumps({"error": float(np.abs(given - wanted).max())}))
