"""To which power of the scale gradients are proportional: whether a loop divided by what it had multiplied by."""

import re

import numpy as np
import pytest
import tensorflow as tf

from amp_tf.loss_scaling.recognizing import powers

X, W, SCALE, OTHER = (tf.Variable(value) for value in ([[1.0, 2.0]], [[1.0], [2.0]], 4.0, 3.0))
v1 = tf.compat.v1


@tf.function
def scaled_loss(weight):
    return tf.reduce_sum(tf.nn.relu(tf.matmul(X, weight))) * SCALE


@tf.function
def divided(gradient):
    return gradient / SCALE, gradient


def loss_gradient(of=scaled_loss):
    with tf.GradientTape() as tape:
        weight = tf.identity(W)
        tape.watch(weight)
        value = of(weight)
    return tape.gradient(value, weight)


def recurrent(weight):
    """The backward pass of a loop is a loop, with lists of tensors."""
    states = tf.scan(lambda state, x: tf.tanh(tf.matmul(state, weight, transpose_b=True) @ weight + x),
                     tf.ones([3, 1, 1]), initializer=tf.ones([1, 1]))  # fmt: skip
    return tf.reduce_sum(states) * SCALE


def network(weight):
    x = tf.reshape(tf.matmul(X, weight), [1, 1, 1, 1])
    x = tf.nn.max_pool2d(tf.nn.conv2d(x, tf.ones([1, 1, 1, 4]), 1, "SAME"), 1, 1, "SAME")
    x = tf.nn.softmax_cross_entropy_with_logits([[1.0, 0.0, 0.0, 0.0]], tf.reshape(tf.maximum(x, 0.0), [1, 4]))
    return tf.reduce_mean(x) * tf.cast(SCALE, tf.float32)


def penalty(weight):
    """The inner gradient is divided, the outer loss is not."""
    with tf.GradientTape() as tape:
        tape.watch(weight)
        inner = tf.reduce_sum(tf.square(tf.matmul(X, weight))) * SCALE
    inner = tape.gradient(inner, weight) / SCALE
    return (tf.reduce_sum(weight**3) + tf.reduce_sum(inner * weight)) * SCALE


def finite_or_zero(value):
    return tf.where(tf.math.is_finite(value), value, tf.zeros_like(value))


def divided_in_a_branch(value):
    return tf.cond(tf.reduce_sum(W) > 0.0, lambda: value / SCALE, lambda: value)


CASES = {
    "reading": (lambda: SCALE * 1.0, 1.0),
    "nothing": (lambda: OTHER * 2.0, 0.0),
    "no gradient": (lambda: [None], 0.0),
    "gradient": (loss_gradient, 1.0),
    "gradient through layers": (lambda: loss_gradient(network), 1.0),
    "gradient through a loop": (lambda: loss_gradient(recurrent), 1.0),
    "gradient through a loop, divided": (lambda: loss_gradient(recurrent) / SCALE, 0.0),
    "gradient penalty": (lambda: loss_gradient(penalty), 1.0),
    "divided": (lambda: loss_gradient() / SCALE, 0.0),
    "times the reciprocal": (lambda: loss_gradient() * (1.0 / SCALE), 0.0),
    "times tf.math.reciprocal": (lambda: loss_gradient() * tf.math.reciprocal(SCALE), 0.0),
    "divided without NaN": (lambda: tf.math.divide_no_nan(loss_gradient(), SCALE), 0.0),
    "divided in 16 bit": (lambda: tf.cast(loss_gradient(), tf.float16) / tf.cast(SCALE, tf.float16), 0.0),
    "divided in a function": (lambda: divided(loss_gradient())[0], 0.0),
    "beside what a function divided": (lambda: divided(loss_gradient())[1], 1.0),
    "divided slices": (lambda: tf.IndexedSlices(loss_gradient() / SCALE, tf.constant([0, 1])), 0.0),
    "divided twice": (lambda: loss_gradient() / SCALE / SCALE, -1.0),
    "divided, then clipped": (lambda: tf.clip_by_global_norm([loss_gradient() / SCALE], 1.0)[0], 0.0),
    "divided, then summed with zeros": (lambda: finite_or_zero(loss_gradient()) / SCALE + tf.zeros([2, 1]), 0.0),
    "clipped, not divided": (lambda: tf.clip_by_global_norm([loss_gradient()], 1.0)[0], None),
    "clipped by value, not divided": (lambda: tf.clip_by_value(loss_gradient(), -1.0, 1.0), None),
    "divided by a norm": (lambda: loss_gradient() / tf.norm(loss_gradient()), 0.0),
    "divided or not": (lambda: divided_in_a_branch(loss_gradient()), None),
    "one divided, one not": (lambda: [loss_gradient() / SCALE, loss_gradient()], None),
    "divided by another variable": (lambda: loss_gradient() / OTHER, 1.0),
}


@pytest.mark.parametrize("case", CASES)
def test_the_power_of_a_traced_tensor(case):
    make, expected = CASES[case]
    powers_seen = []

    @tf.function
    def step():
        powers_seen.append(powers.power_of(make(), SCALE))

    step()
    assert powers_seen == [expected]


def test_a_captured_tensor_has_the_power_that_it_has_outside():
    seen = []

    @tf.function
    def step():
        value = loss_gradient()
        for _ in tf.range(1):
            seen.append(powers.power_of([value / SCALE], SCALE))
            seen.append(powers.power_of([value], SCALE))

    step()
    assert seen == [0.0, 1.0]


def test_tensors_of_two_graphs_with_one_name_are_told_apart():
    seen = []

    @tf.function
    def step():
        outer = tf.multiply(W, OTHER, name="cond/product")

        def branch():
            inner = tf.multiply(W, SCALE, name="product")
            assert inner.name == outer.name
            seen.append(powers.power_of([inner, outer], SCALE))
            return 0

        tf.cond(tf.random.uniform([]) < 2.0, branch, lambda: 0)

    step()
    assert seen == [None]


def test_every_replica_divides_by_its_own_copy():
    seen = []
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        scale = tf.Variable(2.0)

    @tf.function
    def step():
        seen.extend(powers.power_of([value], scale) for value in (W * scale, W * scale / scale))

    strategy.run(step)
    assert seen == [1.0, 0.0]


def test_a_ring_of_a_tf1_loop_has_no_known_power():
    with tf.Graph().as_default():
        scale = v1.get_variable("scale", initializer=2.0, use_resource=True)
        v1.disable_control_flow_v2()
        try:
            looped = v1.while_loop(lambda i: i < 3.0, lambda i: i * 2.0, [scale + 0.0])
        finally:
            v1.enable_control_flow_v2()
        assert powers.power_of([looped], scale) is None
        assert powers.power_of([scale * 2.0], scale) == 1.0


def test_eager_tensors_have_no_known_power():
    assert powers.power_of([W * SCALE], SCALE) is None


def test_the_examples_of_the_docstring_have_these_powers():
    rows = re.findall(r"^    ((\w+) = .+?) {2,}(\d|None)\b", powers.__doc__, re.MULTILINE)
    found = []

    @tf.function
    def step(weight):
        names = {"tf": tf, "scale": SCALE, "weight": weight, "loss": tf.reduce_sum(tf.matmul(X, weight))}
        for line, name, _ in rows:
            exec(line, names)
            power = powers.power_of(names[name], SCALE)
            found.append(str(power if power is None else int(power)))

    step(tf.identity(W))
    assert len(rows) == 8
    assert found == [power for _, _, power in rows]


def normalized(d):
    return d / (tf.norm(d) + 1e-6)


@pytest.mark.parametrize(
    ("of_gradient", "operation"),
    [
        (lambda d: d, ""),
        (lambda d: d * 0.1, ""),
        (lambda d: d + d, ""),
        (lambda d: d + tf.zeros_like(d), ""),
        (lambda d: d + W, ""),  # a variable may hold a sum of scaled gradients
        (lambda d: tf.where(d > 0.0, d, 0.0), ""),
        (lambda d: tf.concat([d, tf.ones_like(d)], 0), ""),
        (lambda d: tf.clip_by_norm(d / SCALE, 0.1) * SCALE, ""),
        (lambda d: tf.clip_by_norm(d, 0.1), "clip_by_norm"),
        (lambda d: tf.clip_by_value(d, -0.1, 0.1), "clip_by_value"),
        (lambda d: tf.minimum(d, 0.1), "Minimum"),
        (lambda d: d + 1e-4 * W, "add"),
        (normalized, "add"),
        (lambda d: tf.cond(tf.reduce_sum(W) > 0.0, lambda: tf.minimum(d, 0.1), lambda: d), ""),  # not known
        (tf.function(lambda d: tf.minimum(d, 0.1)), "Minimum"),
        (lambda d: tf.where(d > 0.1, d, 0.0), "Greater"),
        (lambda d: tf.where(d / SCALE > 0.1, d, 0.0), ""),
        (lambda d: tf.where(tf.abs(d) < np.inf, d, 0.0), ""),
        (lambda d: tf.where(tf.math.is_finite(d), d, 0.0), ""),
        (lambda d: tf.where(tf.abs(d) > 0.1 * tf.reduce_max(d), d, 0.0), ""),  # both of power 1
        (lambda d: tf.where(tf.abs(d) / tf.norm(d) > 0.1, d, 0.0), ""),
        (lambda d: tf.where(tf.sign(d) > 0.5, d, 0.0), ""),
        (lambda d: d * tf.cast((d > -0.1) & (W > 0.0), tf.float32), "Greater"),
        (lambda d: tf.cond(tf.norm(d) > 1.0, lambda: d / tf.norm(d), lambda: d), "Greater"),
        (tf.function(lambda d: tf.where(d <= 0.1, d, 0.0)), "LessEqual"),
    ],
)
def test_where_a_scaled_gradient_meets_a_constant_is_found(of_gradient, operation):
    found = []

    @tf.function
    def step():
        gradient = of_gradient(loss_gradient())
        found.append(powers.find_meeting([gradient, None], SCALE))
        return gradient

    step()
    assert found[0].startswith(operation)
    assert bool(found[0]) is bool(operation)


SQUARE = tf.constant([[2.0, 1.0, 0.5], [1.0, 3.0, 0.2], [0.5, 0.2, 1.0]])


@pytest.mark.parametrize(
    "function",
    [
        *(tf.linalg.eigh, tf.linalg.eigvalsh, tf.linalg.qr, tf.linalg.svd, tf.linalg.cholesky, tf.linalg.inv),
        *(tf.linalg.slogdet, tf.linalg.expm, tf.linalg.sqrtm, tf.linalg.pinv, tf.norm, tf.reduce_prod),
        *(tf.math.cumprod, tf.reduce_max, tf.sort, tf.reduce_logsumexp, tf.sign, tf.nn.relu6, tf.nn.softplus),
        lambda x: tf.linalg.qr(x[:, :2]),
        lambda x: tf.linalg.svd(x[:2]),
        lambda x: tf.clip_by_norm(x, 0.1),
        lambda x: tf.where(x > 0.7, x, 0.1),
        lambda x: tf.keras.losses.Huber()(x, 0.1 * x),
        lambda x: tf.nn.sigmoid_cross_entropy_with_logits(tf.ones_like(x), x),
        lambda x: tf.nn.max_pool2d(x[None, ..., None], 2, 1, "SAME"),
    ],
)
def test_gradients_of_functions_meet_nothing(function):
    """They decide by the values of the forward pass, which are not scaled."""
    found = []

    @tf.function
    def step(weight):
        with tf.GradientTape() as tape:
            tape.watch(weight)
            results = tf.nest.flatten(function(weight @ SQUARE))
            loss = tf.add_n([tf.reduce_sum(result**2 + result) for result in results]) * SCALE
        gradient = tape.gradient(loss, weight)
        found.append(powers.find_meeting([gradient], SCALE))
        return gradient

    step(SQUARE)
    assert found == [""]


def test_eagerly_no_meeting_is_known():
    assert powers.find_meeting([tf.minimum(loss_gradient(), 0.1)], SCALE) == ""
