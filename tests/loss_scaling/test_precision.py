"""Loss scaling divides gradients, and keeps no product in float32 by that, as differences that are divided would."""

from __future__ import annotations

from typing import Any

import keras
import pytest
import tensorflow as tf

import amp_tf
from amp_tf.tools.comparing.flattening import flatten_graph

ACTIVATIONS = (
    *("relu", "gelu", "gelu_tanh", "silu", "mish", "selu", "elu", "celu", "softplus", "squareplus", "softsign"),
    *("tanh", "tanh_shrink", "sigmoid", "log_sigmoid", "hard_silu", "softmax", "log_softmax"),
)


def activation(name: str) -> Any:
    if name.startswith("gelu"):
        return lambda x: keras.activations.gelu(x, approximate=name == "gelu_tanh")
    return getattr(keras.activations, name)


def traced(optimizer: Any, divisor: float | None) -> Any:
    """A training step of a network that has each activation between two products."""
    x = given = keras.Input((16,))
    for name in ACTIVATIONS:
        x = keras.layers.Dense(16, activation=activation(name), name=name)(x)
    model = keras.Model(given, keras.layers.Dense(4)(x))
    optimizer.build(model.trainable_variables)
    weights = [weight.value for weight in model.trainable_variables]

    @tf.function(autograph=False)
    def step(x: Any) -> Any:
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
    ("optimizer", "divisor"),
    [
        (lambda: keras.optimizers.Adam(), None),
        (lambda: amp_tf.LossScaleOptimizer(keras.optimizers.Adam()), None),
        (lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam()), None),
        (lambda: keras.optimizers.Adam(global_clipnorm=1.0), None),
        (lambda: keras.optimizers.Adam(), 1000.0),
    ],
    ids=["none", "amp_tf", "keras", "clipped", "by hand"],
)
def test_every_product_is_16_bit_whatever_becomes_of_its_gradient(
    optimizer: Any, divisor: float | None, precision: Any
) -> None:
    concrete = traced(optimizer(), divisor)
    ends = [*(tensor.name for tensor in (*concrete.inputs, *concrete.outputs))]
    ends += [operation.name for operation in concrete.graph.control_outputs]
    flat, _, _ = flatten_graph(concrete.graph.as_graph_def(add_shapes=True), ends)
    config = amp_tf.AmpConfig(precision=precision, target="gpu")
    report = amp_tf.rewrite(flat, config, preserve=[end.partition(":")[0] for end in ends]).report
    products = [node for node in report.nodes if node.op == "MatMul"]
    assert len(products) == 3 * (len(ACTIVATIONS) + 1) - 1
    assert [node.name for node in products if node.precision.value == "float32"] == []
