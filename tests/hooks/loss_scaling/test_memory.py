"""A search over settings builds, fits and drops models: what of them stays, beside the same search without amp_tf."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from tensorflow.python.framework.func_graph import FuncGraph

import amp_tf
from amp_tf.hooks import loss_scaling as automatic

MOST = 1.2  # times what stays without amp_tf; TensorFlow itself keeps the graph of a step for good
X = np.random.RandomState(0).rand(8, 16).astype(np.float32)


def nodes_that_stay(make: Callable[[], None], count: int) -> float:
    """Nodes of graphs for each model that are alive when the models are gone."""

    def alive() -> int:
        gc.collect()
        return sum(len(each.get_operations()) for each in gc.get_objects() if isinstance(each, FuncGraph))

    make()  # what is made once
    before = alive()
    for _ in range(count):
        make()
    return (alive() - before) / count


def fit(library: Any, optimizer: str) -> None:
    model = library.Sequential([library.layers.Dense(8, "relu"), library.layers.Dense(1)])
    model.build((None, 16))
    module = library.optimizers.legacy if optimizer == "legacy" else library.optimizers
    model.compile(module.Adam(), "mse", jit_compile=False)
    model.fit(X, X[:, :1], verbose=0)


def loop(wrap: Callable[[Any], Any]) -> None:
    dense, optimizer = keras.layers.Dense(4), wrap(keras.optimizers.Adam())

    @tf.function
    def step(x: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(dense(x) ** 2)
            loss = optimizer.scale_loss(loss) if hasattr(optimizer, "scale_loss") else loss
        optimizer.apply(tape.gradient(loss, dense.trainable_weights), dense.trainable_weights)

    step(tf.constant(X))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("library", "optimizer", "count"),
    [(keras, "", 10), (tf_keras, "", 10), (tf_keras, "legacy", 10)],
    ids=["keras", "tf_keras", "legacy"],
)
def test_a_search_keeps_no_more_of_its_models_than_without_amp_tf(library: Any, optimizer: str, count: int) -> None:
    make = functools.partial(fit, library, optimizer)
    without = nodes_that_stay(make, 5)
    automatic.install(amp_tf.AmpConfig(precision="float16"), runs_in_float16=lambda: True)
    try:
        assert nodes_that_stay(make, count) <= MOST * without
    finally:
        automatic.uninstall()


def test_a_loop_with_a_wrapper_keeps_no_more_than_with_that_of_keras() -> None:
    theirs = nodes_that_stay(lambda: loop(keras.optimizers.LossScaleOptimizer), 3)
    assert nodes_that_stay(lambda: loop(amp_tf.LossScaleOptimizer), 3) <= MOST * theirs
