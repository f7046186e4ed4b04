"""Trains under MirroredStrategy on two logical CPUs, with a nonfinite gradient on one replica; prints JSON.

Its own process, because logical devices are chosen before TensorFlow starts.
"""

import functools
import json
import sys

import keras
import numpy as np
import tensorflow as tf
import tf_keras

import amp_tf
from tests.loss_scaling.programs.mirrored_options import OPTIONS
from tests.loss_scaling.programs.own_steps import OWN

STEPS, POISONED = 5, (1, 3)

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def per_replica(values):
    return strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(values[context.replica_id_in_sync_group])
    )


def keras3(options):
    with strategy.scope():
        weights = [keras.Variable(np.ones((3,), "float32")), keras.Variable(np.ones((2, 2), "float32"))]
        return weights, [w.value for w in weights], keras.optimizers.SGD(0.125, momentum=0.5, **options)


def tf_keras_new(options, own=lambda base: base):
    with strategy.scope():
        weights = [tf.Variable(np.ones((3,), "float32")), tf.Variable(np.ones((2, 2), "float32"))]
        return weights, weights, own(tf_keras.optimizers.SGD)(0.125, momentum=0.5, jit_compile=False, **options)


def tf_keras_legacy(options, own=lambda base: base):
    weights, values, _ = tf_keras_new({})
    with strategy.scope():
        return weights, values, own(tf_keras.optimizers.legacy.SGD)(0.125, momentum=0.5, **options)


def v1(options):
    weights, values, _ = tf_keras_new({})
    with strategy.scope():
        return weights, values, tf.compat.v1.train.MomentumOptimizer(0.125, 0.5)


def train(make, options, *, wrapped, bad, traced):
    weights, tensors, optimizer = make(options)
    if wrapped:
        with strategy.scope():
            optimizer = amp_tf.LossScaleOptimizer(optimizer, 2.0**10)
    if make is keras3:
        with strategy.scope():
            optimizer.build(weights)

    def step(x, poison):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tensors[0] * x) + tf.reduce_sum(tensors[1] ** 2) * x[0]
            loss = optimizer.scale_loss(loss) if wrapped or make is keras3 else loss
        gradients = tape.gradient(loss, tensors)
        gradients[1] += poison
        optimizer.apply_gradients(list(zip(gradients, weights, strict=True)))

    def run(x, poison):
        strategy.run(step, args=(x, poison))

    run = tf.function(run) if traced else run
    rng = np.random.RandomState(0)
    for i in range(STEPS):
        x = per_replica([rng.randn(3).astype("float32") for _ in range(2)])
        if bad is not None and i in POISONED:
            run(x, per_replica([np.float32("inf") if replica == bad else np.float32(0) for replica in range(2)]))
        run(x, per_replica([np.float32(0)] * 2))
    return optimizer, [np.array(strategy.experimental_local_results(t)[0]).tolist() for t in tensors]


def local(variable):
    return [value.numpy().tolist() for value in strategy.experimental_local_results(variable)]


def compare(make, name, traced):
    # Keras itself cannot trace accumulation and averages under this strategy; eagerly it can.
    _, expected = train(make, OPTIONS[name], wrapped=False, bad=None, traced=False)
    row = {"expected": expected}
    for bad in (0, 1):
        optimizer, actual = train(make, OPTIONS[name], wrapped=True, bad=bad, traced=traced)
        status = optimizer.status()
        inside = getattr(optimizer, "_loss_scale", None)
        variables = (
            [optimizer._scale.value, optimizer._counters.value]
            if inside is None
            else [getattr(inside, "scale", None) or inside.current_loss_scale, inside.counters]
        )
        row[f"bad_{bad}"] = {
            "weights": actual,
            "scale": status.scale,
            "skipped": status.skipped,
            "locals": [local(variable) for variable in variables],
        }
    return row


def try_compiled(wrapped):
    weights, tensors, optimizer = keras3({})
    with strategy.scope():
        optimizer = amp_tf.LossScaleOptimizer(optimizer) if wrapped else optimizer
        optimizer.build(weights)

    def step():
        optimizer.apply_gradients([(optimizer.scale_loss(t), w) for t, w in zip(tensors, weights, strict=True)])

    try:
        tf.function(lambda: strategy.run(step), jit_compile=True)()
    except tf.errors.InvalidArgumentError:
        return "InvalidArgumentError"
    return "runs"


def fit():
    """Keras' fit with a batch whose second half, which is replica 1's share, is poisoned."""
    x = np.random.RandomState(0).randn(32, 4).astype("float32")
    y = x.sum(1, keepdims=True)
    x[12:16] = np.inf
    with strategy.scope():
        model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
        model.compile(amp_tf.LossScaleOptimizer(keras.optimizers.SGD(0.01)), "mse")
    model.fit(x, y, batch_size=8, epochs=1, shuffle=False, verbose=0)
    status = model.optimizer.status()
    finite = all(np.isfinite(w).all() for w in model.get_weights())
    return {"finite": finite, "skipped": status.skipped, "iterations": int(model.optimizer.iterations.numpy())}


def main():
    results = {
        "keras3": {},
        "fit": fit(),
        "xla": {kind: try_compiled(kind == "wrapped") for kind in ("bare", "wrapped")},
    }
    for name in OPTIONS:
        for traced in (False, True):
            results["keras3"][f"{name}-{'traced' if traced else 'eager'}"] = compare(keras3, name, traced)
    others = {tf_keras_new: ("plain", "global_clipnorm"), tf_keras_legacy: ("plain", "clipnorm"), v1: ("plain",)}
    for make, names in others.items():
        results[make.__name__] = {name: compare(make, name, True) for name in names}
    for make in (tf_keras_new, tf_keras_legacy):
        rows = {name: compare(functools.partial(make, own=own), "plain", True) for name, own in OWN.items()}
        results[make.__name__].update(rows)
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
