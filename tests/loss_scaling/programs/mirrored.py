"""Trains under MirroredStrategy on two logical CPUs, with a nonfinite gradient on one replica;
prints JSON.
"""

import functools
import inspect
import itertools
import json
import sys
import threading

import keras
import numpy as np
import tensorflow as tf
import tf_keras

import amp_tf
from tests.loss_scaling.programs.own_steps import OWN

STEPS = 5
POISONED = (1, 3)
ACCUMULATION = {"gradient_accumulation_steps": 2}
AVERAGES = {"use_ema": True, "ema_overwrite_frequency": 3}
OPTIONS = {
    "plain": {},
    "clipnorm": {"clipnorm": 0.5},
    "global_clipnorm": {"global_clipnorm": 0.5},
    "accumulation": ACCUMULATION,
    "averages": AVERAGES,
    "both": {**ACCUMULATION, **AVERAGES, "weight_decay": 0.1, "global_clipnorm": 0.5},
}

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def per_replica(values):
    return strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(values[context.replica_id_in_sync_group])
    )


def weights_of(kind):
    return [kind(np.ones(shape, "float32")) for shape in ((3,), (2, 2))]


def keras3(options, cls=keras.optimizers.SGD):
    weights = weights_of(keras.Variable)
    return weights, [w.value for w in weights], cls(0.125, momentum=0.5, **options)


def tf_keras_new(options, own=lambda base: base):
    weights = weights_of(tf.Variable)
    return (
        weights,
        weights,
        own(tf_keras.optimizers.SGD)(0.125, momentum=0.5, jit_compile=False, **options),
    )


def tf_keras_legacy(options, own=lambda base: base):
    weights = weights_of(tf.Variable)
    return weights, weights, own(tf_keras.optimizers.legacy.SGD)(0.125, momentum=0.5, **options)


def v1(options):
    weights = weights_of(tf.Variable)
    return weights, weights, tf.compat.v1.train.MomentumOptimizer(0.125, 0.5)


def train(make, options, *, wrapped, bad, traced):
    with strategy.scope():
        weights, tensors, optimizer = make(options)
        optimizer = amp_tf.LossScaleOptimizer(optimizer, 2.0**10) if wrapped else optimizer
        if isinstance(weights[0], keras.Variable):
            optimizer.build(weights)

    def step(x, poison):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tensors[0] * x) + tf.reduce_sum(tensors[1] ** 2) * x[0]
            loss = optimizer.scale_loss(loss) if hasattr(optimizer, "scale_loss") else loss
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
            run(
                x,
                per_replica(
                    [np.float32("inf") if replica == bad else np.float32(0) for replica in range(2)]
                ),
            )
        run(x, per_replica([np.float32(0)] * 2))
    return optimizer, [
        np.array(strategy.experimental_local_results(t)[0]).tolist() for t in tensors
    ]


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


def all_mean(gradients):
    return [tf.distribute.get_replica_context().all_reduce("mean", g) for g in gradients]


def train_by_a_scaler(scaler_in_scope, traced, reduced_in_apply):
    with strategy.scope():
        weight = tf.Variable([1.0, 2.0], aggregation=tf.VariableAggregation.MEAN)
        scaler = amp_tf.LossScaler(2.0**10)
    if not scaler_in_scope:
        scaler = amp_tf.LossScaler(2.0**10)

    def apply(gradients, rate):
        for gradient in all_mean(gradients) if reduced_in_apply else gradients:
            weight.assign_sub(rate * gradient)

    def step(x):
        with tf.GradientTape() as tape:
            loss = scaler.scale(tf.reduce_sum(weight * x))
        gradients = tape.gradient(loss, [weight])
        gradients = gradients if reduced_in_apply else all_mean(gradients)
        return scaler.step(apply, scaler.unscale(gradients), 0.5 * x[1])  # a rate of each replica

    def run(x):
        return strategy.run(step, args=(x,))

    run = tf.function(run) if traced else run
    taken = []
    for bad in (None, 0, 1):
        rows = [
            [np.inf if replica == bad else 2.0 * replica + 1.0, replica + 1.0]
            for replica in range(2)
        ]
        x = per_replica([np.float32(row) for row in rows])
        taken.append([bool(value) for value in strategy.experimental_local_results(run(x))])
    return {"taken": taken, "weight": local(weight), "scale": local(scaler.loss_scale)}


def train_a_model(is_built, wrapped_in_scope):
    with strategy.scope():
        model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
        optimizer = keras.optimizers.Adam(0.1)
        if is_built:
            optimizer.build(model.trainable_variables)
        if wrapped_in_scope:
            optimizer = amp_tf.LossScaleOptimizer(optimizer)
    if not wrapped_in_scope:
        optimizer = amp_tf.LossScaleOptimizer(optimizer)

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(tf.reduce_mean((model(x) - y) ** 2))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    x = np.random.RandomState(0).randn(8, 4).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(8).repeat(3)
    run = tf.function(lambda x, y: strategy.run(step, args=(x, y)))
    for batch in strategy.experimental_distribute_dataset(data):
        run(*batch)
    status = optimizer.status()
    return [status.steps, status.skipped, int(optimizer.iterations.numpy())]


def steps_of_a_thread():
    """The weight after each step of an optimizer that another thread uses, eagerly and by
    itself.
    """
    weights = []

    def train():
        weight = keras.Variable([0.0])
        optimizer = keras.optimizers.SGD(1.0, gradient_accumulation_steps=2)
        optimizer.build([weight])
        for _ in range(4):
            optimizer.apply([tf.ones([1])], [weight])
            weights.append(float(weight.numpy()[0]))

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    return weights


def train_beside_a_thread():
    """Trains in a thread while replicas trace a step that accumulates gradients."""
    seen = []

    class Own(keras.optimizers.SGD):
        def update_step(self, gradient, variable, learning_rate):
            seen.append(steps_of_a_thread())
            super().update_step(gradient, variable, learning_rate)

        def _backend_increment_gradient_accumulators(self, *args):
            seen.append(steps_of_a_thread())
            super()._backend_increment_gradient_accumulators(*args)

    train(lambda options: keras3(options, Own), ACCUMULATION, wrapped=True, bad=None, traced=True)
    return seen


class Storing(keras.optimizers.SGD):
    """Stores its gradients' norm for the step to read."""

    def apply(self, grads, trainable_variables=None):
        self.norm = tf.linalg.global_norm(grads)
        super().apply(grads, trainable_variables)


def norms_of(options):
    """The norm that each replica reads after each step, the second of which is skipped."""
    with strategy.scope():
        weight = keras.Variable([1.0, 2.0])
        optimizer = amp_tf.LossScaleOptimizer(Storing(0.5, **options), 2.0**10)
        optimizer.build([weight])

    def step(x):
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(tf.reduce_sum(weight.value * x))
        optimizer.apply_gradients([(tape.gradient(loss, weight.value), weight)])
        return tf.identity(optimizer.inner_optimizer.norm)

    run = tf.function(lambda x: strategy.run(step, args=(x,)))
    bad = (0.0, np.inf, 0.0)
    inputs = [per_replica([np.float32([3.0 + b, 4.0]), np.float32([6.0, 8.0])]) for b in bad]
    return [local(run(x)) for x in inputs]


BUILT = {"built": (True, True), "built, wrapped outside": (True, False), "unbuilt": (False, True)}


KERAS = [("plain", "plain", True)]
ACCUMULATES = (
    "gradient_accumulation_steps" in inspect.signature(keras.optimizers.SGD).parameters
)  # not in its first versions
if ACCUMULATES:
    KERAS += [(name, name, True) for name in ("accumulation", "averages", "both")] + [
        ("both, eager", "both", False)
    ]
OWNS = {
    tf_keras_new: ("pairs_alone", "keeping_arguments"),
    tf_keras_legacy: ("without_name", "with_name_alone"),
}


def main():
    results = {
        "scaler": [
            [*how, train_by_a_scaler(*how)] for how in itertools.product((True, False), repeat=3)
        ],
        "counts": {name: train_a_model(*case) for name, case in BUILT.items()},
        "beside": train_beside_a_thread() if ACCUMULATES else [],
        "norms": {name: norms_of(OPTIONS[name]) for name, _, is_traced in KERAS if is_traced},
        "keras3": {name: compare(keras3, *case) for name, *case in KERAS},
    }
    for make, name in {
        tf_keras_new: "global_clipnorm",
        tf_keras_legacy: "clipnorm",
        v1: "plain",
    }.items():
        owns = {
            own: compare(functools.partial(make, own=OWN[own]), "plain", True)
            for own in OWNS.get(make, ())
        }
        results[make.__name__] = {name: compare(make, name, True), **owns}
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
