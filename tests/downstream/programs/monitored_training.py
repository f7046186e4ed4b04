"""Estimator-style code of the TF1 days: model_fn, global step, hooks, checkpoints, a second session that resumes."""

import json
import tempfile

import numpy as np
import tensorflow.compat.v1 as tf
from sklearn.datasets import load_digits

tf.logging.set_verbosity(tf.logging.WARN)


def input_fn():
    digits = load_digits()
    data = tf.data.Dataset.from_tensor_slices(((digits.data / 16.0).astype("float32"), digits.target.astype("int32")))
    return data.repeat().batch(64, drop_remainder=True)


def model_fn(features, labels):
    net = features
    for number, (inputs, units) in enumerate(((64, 128), (128, 128))):
        scale = np.sqrt(2.0 / inputs)
        weights = tf.get_variable(
            f"w{number}", [inputs, units], initializer=tf.random_normal_initializer(stddev=scale, seed=number)
        )
        bias = tf.get_variable(f"b{number}", [units], initializer=tf.zeros_initializer())
        net = tf.nn.relu(tf.nn.bias_add(tf.matmul(net, weights), bias))
    weights = tf.get_variable("w", [128, 10], initializer=tf.random_normal_initializer(stddev=0.1, seed=9))
    logits = tf.matmul(net, weights)
    loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
    step = tf.train.get_or_create_global_step()
    train = tf.train.MomentumOptimizer(0.05, 0.9).minimize(loss, global_step=step)
    accuracy = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1, output_type=tf.int32), labels), tf.float32))
    tf.summary.scalar("loss", loss)
    return loss, accuracy, train, step


def train_until(last_step, folder):
    with tf.Graph().as_default():
        tf.set_random_seed(1)
        features, labels = tf.data.make_one_shot_iterator(input_fn()).get_next()
        loss, accuracy, train, step = model_fn(features, labels)
        hooks = [tf.train.StopAtStepHook(last_step=last_step), tf.train.NanTensorHook(loss)]
        with tf.train.MonitoredTrainingSession(
            checkpoint_dir=folder,
            hooks=hooks,
            save_checkpoint_steps=20,
            save_summaries_steps=10,
            log_step_count_steps=0,
        ) as session:
            losses = []
            while not session.should_stop():
                value, right, number, _ = session.run([loss, accuracy, step, train])
                losses.append(float(value))
        return losses, float(right), int(number)


with tempfile.TemporaryDirectory() as folder:
    first, _, _ = train_until(40, folder)
    second, accuracy, number = train_until(80, folder)
print(json.dumps({"first": first[::8], "second": second[::8], "steps": len(first) + len(second), "accuracy": accuracy}))
