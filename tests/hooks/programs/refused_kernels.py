"""Trains convolutions and pools that oneDNN computes in float32 and TensorFlow's own 16-bit kernels refuse."""

import json

import tensorflow as tf

tf.keras.utils.set_random_seed(0)
IMAGES, VOLUMES = tf.random.normal((4, 12, 12, 4)), tf.random.normal((2, 8, 8, 8, 4))


def filters(*shape):
    return tf.Variable(tf.random.normal(shape, stddev=0.1))


def dilated(x, w, v):
    return tf.nn.conv2d(tf.nn.relu(tf.nn.conv2d(x, w, 1, "SAME", dilations=2)), v, 1, "SAME", dilations=2)


def dilated_volumes(x, w, v):
    dilations = [1, 2, 2, 2, 1]
    hidden = tf.nn.relu(tf.nn.conv3d(x, w, [1] * 5, "SAME", dilations=dilations))
    return tf.nn.conv3d(hidden, v, [1] * 5, "SAME", dilations=dilations)


def dilated_depthwise(x, w, v):
    hidden = tf.nn.depthwise_conv2d(x, w, [1] * 4, "SAME", dilations=[2, 2])
    return tf.nn.conv2d(tf.nn.relu(hidden), v, 1, "SAME")


def dilated_transposed(x, w, v):
    hidden = tf.nn.relu(tf.nn.conv2d(x, v, 1, "SAME"))
    return tf.nn.conv2d_transpose(hidden, w, tf.shape(x), 1, "SAME", dilations=2)


def grouped(x, w, v):
    return tf.nn.conv2d(tf.nn.relu(tf.nn.conv2d(x, w, 1, "SAME")), v, 1, "SAME")


def channels_first(x, w, v):
    x = tf.transpose(x, [0, 3, 1, 2])
    hidden = tf.nn.relu(tf.nn.conv2d(x, w, 1, "SAME", data_format="NCHW"))
    hidden = tf.nn.avg_pool2d(hidden, 2, 2, "SAME", data_format="NCHW")
    return tf.nn.max_pool2d(tf.nn.conv2d(hidden, v, 1, "SAME", data_format="NCHW"), 2, 2, "SAME", data_format="NCHW")


def channels_first_volumes(x, w, v):
    x = tf.transpose(x, [0, 4, 1, 2, 3])
    hidden = tf.nn.relu(tf.nn.conv3d(x, w, [1] * 5, "SAME", data_format="NCDHW"))
    hidden = tf.nn.max_pool3d(hidden, 2, 2, "SAME", data_format="NCDHW")
    return tf.nn.avg_pool3d(tf.nn.conv3d(hidden, v, [1] * 5, "SAME", data_format="NCDHW"), 2, 2, "SAME", "NCDHW")


def frozen_statistics(x, w, v):
    hidden = tf.nn.conv2d(tf.transpose(x, [0, 3, 1, 2]), w, 1, "SAME", data_format="NCHW")
    ones = tf.ones(w.shape[-1])
    hidden, _, _ = tf.compat.v1.nn.fused_batch_norm(
        hidden, 2 * ones, ones, 0 * ones, ones, is_training=False, data_format="NCHW"
    )
    return tf.nn.conv2d(tf.transpose(tf.nn.relu(hidden), [0, 2, 3, 1]), v, 1, "SAME")


def transposed(x, w, v):
    hidden = tf.matmul(tf.reshape(x, [16, 144]), w, transpose_a=True)
    return tf.matmul(tf.nn.relu(tf.nn.bias_add(hidden, tf.ones(8))), v)


def train(network, x, *variables):
    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(network(x, *variables) - 1))
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(0.03 * gradient)
        return loss

    return [float(step()) for _ in range(4)]


two, three, wide = (3, 3, 4, 8), (3, 3, 3, 4, 8), (3, 3, 8, 8)
losses = {
    "dilated": train(dilated, IMAGES, filters(*two), filters(*wide)),
    "dilated volumes": train(dilated_volumes, VOLUMES, filters(*three), filters(3, *wide)),
    "dilated depthwise": train(dilated_depthwise, IMAGES, filters(3, 3, 4, 2), filters(*wide)),
    "dilated transposed": train(dilated_transposed, IMAGES, filters(3, 3, 4, 8), filters(*two)),
    "grouped": train(grouped, IMAGES, filters(*two), filters(3, 3, 4, 8)),
    "channels first": train(channels_first, IMAGES, filters(*two), filters(*wide)),
    "channels first volumes": train(channels_first_volumes, VOLUMES, filters(*three), filters(3, *wide)),
    "frozen statistics": train(frozen_statistics, IMAGES, filters(*two), filters(*wide)),
    "transposed": train(transposed, IMAGES, filters(16, 8), filters(8, 8)),
}
print(json.dumps(losses))
