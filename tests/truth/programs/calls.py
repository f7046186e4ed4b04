"""Values that one function computes and another one needs exactly.

TensorFlow inlines calls and lowers branches and loops before its graph optimizers run. For XLA they
stay, and so each way shows something else.
"""

import numpy as np
import tensorflow as tf


def _chances(x, weight):
    return tf.sigmoid(3.0 * tf.matmul(x, weight) + 4.0)


def _cross_entropy(chances, target):
    of_one = target * tf.math.log(chances + 1e-7)
    return -tf.reduce_mean(of_one + (1.0 - target) * tf.math.log(1.0 - chances + 1e-7))


def _judge_loss(bench, loss_of):
    """Judges a loss of chances near one, and its gradient."""
    weight = bench.weight(8, 4)

    def run(x, target):
        with tf.GradientTape() as tape:
            loss = loss_of(_chances(x, weight), target)
        return {"loss": loss, "gradient": tape.gradient(loss, weight)}

    bench.judge(run, lambda: (bench.normal(64, 8), np.float32(bench.normal(64, 4) > 0)))


def cross_entropy_in_a_function(bench):
    _judge_loss(bench, tf.function(_cross_entropy))


def cross_entropy_that_is_compiled_apart(bench):
    _judge_loss(bench, tf.function(_cross_entropy, jit_compile=True))


def cross_entropy_in_a_branch(bench):
    def loss_of(chances, target):
        is_labelled = tf.reduce_sum(target) > 0.0
        return tf.cond(is_labelled, lambda: _cross_entropy(chances, target), lambda: 0.0)

    _judge_loss(bench, loss_of)


def cross_entropy_in_a_loop(bench):
    def loss_of(chances, target):
        def body(turn, total):
            return turn + 1, total + _cross_entropy(chances, target)

        _, loss = tf.while_loop(lambda turn, _: turn < 3, body, [0, 0.0], maximum_iterations=3)
        return loss

    _judge_loss(bench, loss_of)


def policy_in_a_function(bench):
    weight = bench.weight(8, 16)
    bias = tf.Variable(60 + bench.normal(16))
    last = bench.weight(16, 4)

    @tf.function
    def policy(values):
        return tf.nn.softmax(values / 0.5)

    def run(x):
        return tf.matmul(policy(tf.nn.bias_add(tf.matmul(x, weight), bias)), last)

    bench.judge(run, lambda: (bench.normal(16, 8),))
