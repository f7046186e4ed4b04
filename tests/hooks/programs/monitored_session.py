"""tf.compat.v1.train.MonitoredTrainingSession with a global step and a checkpoint folder."""

import json
import tempfile

import numpy as np
import tensorflow as tf

rng = np.random.default_rng(1)
data = rng.normal(size=(256, 256)).astype("float32")
losses = []
with tf.Graph().as_default():
    weights = tf.compat.v1.get_variable("weights", initializer=rng.normal(size=(256, 256)).astype("float32") / 16)
    last = tf.compat.v1.get_variable("last", initializer=rng.normal(size=(256, 1)).astype("float32") / 16)
    loss = tf.reduce_mean(tf.square(tf.matmul(tf.nn.relu(tf.matmul(tf.constant(data), weights)), last) - 1.0))
    global_step = tf.compat.v1.train.get_or_create_global_step()
    train = tf.compat.v1.train.AdamOptimizer(0.01).minimize(loss, global_step=global_step)
    hooks = [tf.compat.v1.train.StopAtStepHook(last_step=10)]
    with tf.compat.v1.train.MonitoredTrainingSession(checkpoint_dir=tempfile.mkdtemp(), hooks=hooks) as session:
        while not session.should_stop():
            losses.append(float(session.run([train, loss])[1]))
print(json.dumps({"loss": losses}))
