"""Cases 21 to 26: accumulation, two optimizers, second order, sparse, missing and special
gradients.
"""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import amp_tf
from amp_tf.tools.comparing.flattening import flatten_graph
from tests.loss_scaling.steps import (
    KERAS,
    accumulates_gradients,
    assert_same,
    eager_and_traced,
    gradients,
    in_mode,
    poisoned,
    run,
    sgd_of,
    variables,
)


@accumulates_gradients
@pytest.mark.parametrize("position", [0, 1, 2])
def test_case_21_an_overflowing_micro_batch_is_dropped_alone_and_its_window_waits(position):
    def make_optimizer():
        return keras.optimizers.Adam(0.1, gradient_accumulation_steps=3)

    good = [gradients(i) for i in range(6)]
    trace = [*good[:position], poisoned(gradients(9), 0, np.inf), *good[position:]]
    optimizer, after = run(make_optimizer, trace)
    alone, bare = run(make_optimizer, good, wrapped=False)
    assert_same(after, bare)
    # Windows; all steps up to Keras 3.4.
    assert int(optimizer.iterations.numpy()) == int(alone.iterations.numpy()) > 0
    assert optimizer.status().skipped == 1


def test_case_22_two_optimizers_with_two_losses_decide_each_for_itself():
    weights = (variables(), variables())
    optimizers = [sgd_of(of_one) for of_one in weights]

    @tf.function
    def step(poison):
        losses = []
        with tf.GradientTape(persistent=True) as tape:
            for optimizer, of_one, factor in zip(optimizers, weights, (1.0, poison), strict=True):
                squares = [tf.reduce_sum(weight.value**2) for weight in of_one]
                losses.append(optimizer.scale_loss(tf.add_n(squares) * factor))
        for optimizer, of_one, loss in zip(optimizers, weights, losses, strict=True):
            grads = tape.gradient(loss, [weight.value for weight in of_one])
            optimizer.apply_gradients(zip(grads, of_one, strict=True))

    step(tf.constant(np.nan))
    for weight in weights[0]:
        assert (weight.numpy() == 0).all()
    assert_same(weights[1], variables())
    first, second = (optimizer.status() for optimizer in optimizers)
    assert first.scale == 2.0**15
    assert first.skipped == 0
    assert second.scale == 2.0**14
    assert second.skipped == 1
    assert [int(optimizer.iterations.numpy()) for optimizer in optimizers] == [1, 0]


def test_case_23_a_gradient_penalty_differentiates_the_unscaled_gradient():
    def train(optimizer):
        weight = keras.Variable([0.5, -1.5])
        optimizer.build([weight])

        @tf.function
        def step():
            with tf.GradientTape() as outer:
                with tf.GradientTape() as tape:
                    loss = tf.reduce_sum(weight.value**4)
                    scaled = optimizer.scale_loss(loss)
                scale = scaled / loss
                penalty = tf.reduce_sum((tape.gradient(scaled, weight.value) / scale) ** 2)
                total = optimizer.scale_loss(loss + 0.1 * penalty)
            optimizer.apply_gradients([(outer.gradient(total, weight.value), weight)])

        for _ in range(3):
            step()
        return weight.numpy()

    wrapped = train(amp_tf.LossScaleOptimizer(keras.optimizers.SGD(0.001)))
    np.testing.assert_allclose(wrapped, train(keras.optimizers.SGD(0.001)), rtol=1e-6)


def embedding(dtype):
    return keras.Variable(np.ones((4, 2)), dtype=dtype)


def sparse(rows, values, dtype):
    return tf.IndexedSlices(
        tf.cast(values, dtype), tf.constant(rows), dense_shape=tf.constant([4, 2])
    )


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@eager_and_traced
def test_case_24_sparse_gradients_are_unscaled_checked_and_applied(dtype, mode):
    table = embedding(dtype)
    optimizer = sgd_of([table], 4.0, rate=1.0)
    optimizer.scale_loss(0.0)

    def apply(values):
        optimizer.apply_gradients([(sparse([1, 3], values, dtype), table)])

    step = in_mode(apply, mode)
    for value in (4.0, np.inf):
        step(tf.constant([[2.0, 2.0], [value, 4.0]], dtype))
        np.testing.assert_array_equal(table.numpy(), [[1, 1], [0.5, 0.5], [1, 1], [0, 0]])
    assert optimizer.status().scale == 2.0


@pytest.mark.parametrize(
    ("dtype", "rows", "skipped"),
    [("float16", [1, 1], 1), ("float16", [1, 2], 0), ("float32", [1, 1], 1)],
)
def test_case_24_rows_that_meet_may_sum_to_infinity(dtype, rows, skipped):
    table = embedding(dtype)
    large = {"float16": 64000.0, "float32": 3e38}[dtype]
    optimizer = sgd_of([table], 1.0, rate=1e-4)
    optimizer.scale_loss(0.0)
    optimizer.apply_gradients([(sparse(rows, [[large, 1.0]] * 2, dtype), table)])
    assert optimizer.status().skipped == skipped
    assert np.isfinite(table.numpy()).all()
    assert (table.numpy() == 1).all() == skipped


@eager_and_traced
def test_case_25_missing_gradients_are_left_out(mode):
    weights = variables()
    optimizer = sgd_of(weights, 2.0)
    optimizer.scale_loss(0.0)
    before = [weight.numpy() for weight in weights]

    def apply(grad):
        optimizer.apply_gradients(zip([None, grad, None], weights, strict=True))

    step = in_mode(apply, mode)
    with pytest.warns(UserWarning, match="Gradients do not exist"):
        step(tf.ones((2, 2)))
    assert_same(weights, [before[0], before[1] - 0.25, before[2]])
    step(tf.fill((2, 2), np.nan))
    assert optimizer.status().nonfinite_variables == (weights[1].path,)


def test_case_25_an_empty_list_of_gradients_is_nothing():
    optimizer = sgd_of(variables())
    optimizer.scale_loss(0.0)
    optimizer.apply_gradients([])
    optimizer.apply([], [])
    assert optimizer.status().steps == 0


@pytest.mark.skipif(
    KERAS < (3, 3), reason="this Keras overwrites no variables with their gradients"
)
def test_case_26_variables_that_are_overwritten_with_their_gradient_are_not_unscaled():
    weights = variables()
    weights[0].overwrite_with_gradient = True
    optimizer = sgd_of(weights, 4.0)
    optimizer.scale_loss(0.0)
    optimizer.apply([tf.constant([7.0, 8.0, 9.0]), tf.zeros((2, 2)), tf.zeros(())], weights)
    assert weights[0].numpy().tolist() == [7.0, 8.0, 9.0]


has_multi = pytest.mark.skipif(
    not hasattr(keras.optimizers, "MultiOptimizer"), reason="this Keras has no MultiOptimizer"
)


def make_multi(**options):
    """Two variables of three are Adam's, which alone has the options."""
    adam = keras.optimizers.Adam(0.1, **options)
    by_name = keras.optimizers.OptimizerMap(keras.optimizers.SGD(0.5), {"[bc]": adam})
    return keras.optimizers.MultiOptimizer(by_name)


def train_multi(optimizer, *steps):
    weights = [keras.Variable(np.ones(2, "float32"), name=name) for name in "abc"]
    optimizer.build(weights)
    optimizer.scale_loss(tf.constant(1.0))
    for step in steps:
        optimizer.apply_gradients(zip(step, weights, strict=True))
    return [weight.numpy() for weight in weights]


@has_multi
def test_case_25_missing_gradients_of_a_multi_optimizer_are_left_out():
    steps = [[tf.ones(2), tf.ones(2), None]] * 2
    wrapped = train_multi(amp_tf.LossScaleOptimizer(make_multi(), 1.0), *steps)
    assert_same(wrapped, train_multi(make_multi(), *steps))


@has_multi
@pytest.mark.parametrize("clip", [{"clipnorm": 1.0}, {"global_clipnorm": 1.0}], ids=str)
def test_case_09_the_clips_inside_a_multi_optimizer_are_known(clip):
    optimizer = amp_tf.LossScaleOptimizer(make_multi(**clip), 1.0)
    weights = train_multi(optimizer, [tf.ones(2), tf.constant([1e30, 0.0]), tf.ones(2)])
    assert optimizer.status().skipped == 1
    assert_same(weights, [np.ones(2, "float32")] * 3)


class Sevens(keras.optimizers.SGD):
    """A user's optimizer that does something to its gradients."""

    def apply_gradients(self, grads_and_vars):
        sevens = [(tf.fill(gradient.shape, 7.0), variable) for gradient, variable in grads_and_vars]
        return super().apply_gradients(sevens)


@pytest.mark.parametrize("mode", ["eager", "function", "xla"])
@pytest.mark.parametrize("settings", [{}, {"enabled": False}], ids=str)
def test_apply_gradients_of_a_users_optimizer_is_called(mode, settings):
    trace = [gradients(i) for i in range(2)]
    _, wrapped = run(lambda: Sevens(0.5), trace, mode, **settings)
    _, bare = run(lambda: Sevens(0.5), trace, mode, wrapped=False)
    assert_same(wrapped, bare)


ACTIVATIONS = re.findall(
    r"\w+",
    """relu gelu gelu_tanh silu mish selu elu celu softplus squareplus softsign tanh tanh_shrink
    sigmoid log_sigmoid hard_silu softmax log_softmax""",
)


def activation(name):
    if name.startswith("gelu"):
        return lambda x: keras.activations.gelu(x, approximate=name == "gelu_tanh")
    return getattr(keras.activations, name)


def traced(optimizer, divisor):
    """A training step of a network that has each activation between two products."""
    x = given = keras.Input((16,))
    for name in ACTIVATIONS:
        x = keras.layers.Dense(16, activation=activation(name), name=name)(x)
    model = keras.Model(given, keras.layers.Dense(4)(x))
    optimizer.build(model.trainable_variables)
    weights = [weight.value for weight in model.trainable_variables]

    @tf.function(autograph=False)
    def step(x):
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(tf.reduce_mean(tf.square(model(x))))
        gradients = tape.gradient(loss, weights)
        if divisor is not None:
            gradients = [gradient / divisor for gradient in gradients]
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    return step.get_concrete_function(tf.TensorSpec((8, 16)))


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    ("wrap", "options", "divisor"),
    [
        (lambda optimizer: optimizer, {}, None),
        (amp_tf.LossScaleOptimizer, {}, None),
        (keras.optimizers.LossScaleOptimizer, {}, None),
        (lambda optimizer: optimizer, {"global_clipnorm": 1.0}, None),
        (lambda optimizer: optimizer, {}, 1000.0),
    ],
    ids=["none", "amp_tf", "keras", "clipped", "by hand"],
)
def test_every_product_is_16_bit_whatever_becomes_of_its_gradient(
    wrap, options, divisor, precision
):
    concrete = traced(wrap(keras.optimizers.Adam(**options)), divisor)
    ends = [tensor.name for tensor in (*concrete.inputs, *concrete.outputs)]
    ends += [operation.name for operation in concrete.graph.control_outputs]
    flat, _, _ = flatten_graph(concrete.graph.as_graph_def(add_shapes=True), ends)
    config = amp_tf.AmpConfig(precision=precision, target="gpu")
    preserved = [end.partition(":")[0] for end in ends]
    report = amp_tf.rewrite(flat, config, preserve=preserved).report
    products = [node for node in report.nodes if node.op == "MatMul"]
    assert len(products) == 3 * (len(ACTIVATIONS) + 1) - 1
    assert [node.name for node in products if not node.precision.is_f16] == []
