"""Training in float16 with loss scaling: as in float32, without a trace of faults, every product in 16 bit."""

from __future__ import annotations

import collections
from typing import Any

import keras
import pytest
import tensorflow as tf

import amp_tf
from amp_tf.tools.comparing.flattening import flatten_graph
from benchmarks.accuracy.__main__ import compare, render
from benchmarks.accuracy.demonstrations import bare, dynamic, floor_of_one, train
from tests.loss_scaling.processes import finish, start

pytest.importorskip("sklearn")
TINY, HUGE = 2.0**-24, 2.0**24
EPOCHS = 6
CHANCE = 0.2


@pytest.fixture(scope="module")
def float32():
    return train("float32", 1.0, bare, seed=0, epochs=EPOCHS)[0]


def test_case_35_float16_with_scaling_trains_as_float32_does(float32):
    assert float32 > 0.9
    accuracy, scale = train("float16", 1.0, dynamic, seed=0, epochs=EPOCHS)
    assert accuracy == pytest.approx(float32, abs=0.03)
    assert scale > 1.0


def test_case_36_tiny_gradients_are_lost_in_float16_and_kept_by_scaling(float32):
    alone, _ = train("float16", TINY, bare, seed=0, epochs=EPOCHS)
    scaled, scale = train("float16", TINY, dynamic, seed=0, epochs=EPOCHS)
    assert alone < float32 - 0.05
    assert scaled == pytest.approx(float32, abs=0.03)
    assert scale > 2.0**15


def test_case_37_huge_gradients_need_a_scale_below_one(float32):
    alone, _ = train("float16", HUGE, bare, seed=0, epochs=1)
    floored, floor = train("float16", HUGE, floor_of_one, seed=0, epochs=1)
    scaled, scale = train("float16", HUGE, dynamic, seed=0, epochs=EPOCHS)
    assert alone < CHANCE
    assert (floored < CHANCE, floor) == (True, 1.0)
    assert scaled == pytest.approx(float32, abs=0.03)
    assert scale < 1.0


def test_the_gate_fails_where_a_mode_of_amp_tf_is_two_deviations_off():
    reference, same, off = {0: 0.9, 1: 0.92}, {0: 0.91, 1: 0.93}, {0: 0.7, 1: 0.72}
    assert compare(off, reference) == (pytest.approx(-0.2), pytest.approx(0.01414, abs=1e-5))
    for values, verdict in ((same, True), (off, False)):
        table, passed = render({("t", "float32"): reference, ("t", "float16, amp_tf"): values}, ["t"])
        assert passed is verdict
        assert ("**fail**" in table[-1]) is not verdict
    assert render({("t", "float32"): reference, ("t", "float16, Keras policy"): off}, ["t"])[1]


COUNT = 24


@pytest.mark.slow
def test_faults_leave_no_trace_in_24_random_runs_that_cover_what_they_are_meant_to():
    runs = finish(start("faults.py", str(COUNT)), seconds=570)
    assert len(runs) == COUNT
    assert [run for run in runs if not all(run["outcome"].values())] == []
    drawn = collections.Counter()
    names = ("strategy", "precision", "mode", "accumulation", "ema", "clip")
    for run in runs:
        drawn.update((name, str(run[name])) for name in names)
        drawn.update(("fault", kind, value) for kind, value, _ in run["faults"].values())
    values = collections.Counter(name for name, *_ in drawn)
    assert values == {"strategy": 2, "precision": 3, "mode": 3, "accumulation": 3, "ema": 2, "clip": 4, "fault": 9}


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
