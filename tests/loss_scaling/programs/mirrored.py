"""Trains under MirroredStrategy on two logical CPUs, with a nonfinite gradient on one replica at a
time; prints JSON.
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
POISONED = {1: 0, 3: 1}  #: steps before which a replica's gradients are infinite
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


def on_replicas(step, is_traced=True):
    """Returns a function that runs the step on each replica."""

    def run(*args):
        return strategy.run(step, args=args)

    return tf.function(run) if is_traced else run


def weights_of(kind):
    return [kind(np.ones(shape, "float32")) for shape in ((3,), (2, 2))]


def keras3(options, cls=keras.optimizers.SGD):
    return weights_of(keras.Variable), cls(0.125, momentum=0.5, **options)


def tf_keras_new(options, own=lambda base: base):
    sgd = own(tf_keras.optimizers.SGD)
    return weights_of(tf.Variable), sgd(0.125, momentum=0.5, jit_compile=False, **options)


def tf_keras_legacy(options, own=lambda base: base):
    sgd = own(tf_keras.optimizers.legacy.SGD)
    return weights_of(tf.Variable), sgd(0.125, momentum=0.5, **options)


def v1(options):
    return weights_of(tf.Variable), tf.compat.v1.train.MomentumOptimizer(0.125, 0.5)


def train(make, options, *, is_wrapped, is_poisoned=False, is_traced=True):
    """Trains, with steps in which the gradients of one replica are infinite if it is poisoned."""
    with strategy.scope():
        weights, optimizer = make(options)
        is_keras3 = isinstance(weights[0], keras.Variable)
        tensors = weights
        if is_keras3:
            tensors = [weight.value for weight in weights]
        if is_wrapped:
            optimizer = amp_tf.LossScaleOptimizer(optimizer, 2.0**10)
        if is_keras3:
            optimizer.build(weights)

    def step(x, poison):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tensors[0] * x) + tf.reduce_sum(tensors[1] ** 2) * x[0]
            if hasattr(optimizer, "scale_loss"):
                loss = optimizer.scale_loss(loss)
        gradients = tape.gradient(loss, tensors)
        gradients[1] += poison
        optimizer.apply_gradients(list(zip(gradients, weights, strict=True)))

    run = on_replicas(step, is_traced)
    nothing = np.zeros(2, "float32")
    rng = np.random.RandomState(0)
    for i in range(STEPS):
        x = per_replica([rng.randn(3).astype("float32") for _ in range(2)])
        if is_poisoned and i in POISONED:
            poison = nothing.copy()
            poison[POISONED[i]] = np.inf
            run(x, per_replica(poison))
        run(x, per_replica(nothing))
    return optimizer, [local(tensor)[0] for tensor in tensors]


def local(variable):
    return [value.numpy().tolist() for value in strategy.experimental_local_results(variable)]


def compare(make, name, is_traced=True):
    # Keras itself cannot trace accumulation and averages under this strategy; eagerly it can.
    _, expected = train(make, OPTIONS[name], is_wrapped=False, is_traced=False)
    optimizer, actual = train(
        make, OPTIONS[name], is_wrapped=True, is_poisoned=True, is_traced=is_traced
    )
    status = optimizer.status()
    return {
        "expected": expected,
        "weights": actual,
        "scale": status.scale,
        "skipped": status.skipped,
        "locals": [local(variable) for variable in state_of(optimizer)],
    }


def state_of(optimizer):
    """The variables of the scale and its counters."""
    inside = getattr(optimizer, "_loss_scale", None)
    if inside is None:
        return optimizer._scale.value, optimizer._counters.value
    return getattr(inside, "scale", None) or inside.current_loss_scale, inside.counters


def all_mean(gradients):
    return [tf.distribute.get_replica_context().all_reduce("mean", g) for g in gradients]


def train_by_a_scaler(is_in_scope, is_traced, is_reduced_in_apply):
    with strategy.scope():
        weight = tf.Variable([1.0, 2.0], aggregation=tf.VariableAggregation.MEAN)
        scaler = amp_tf.LossScaler(2.0**10)
    if not is_in_scope:
        scaler = amp_tf.LossScaler(2.0**10)

    def apply(gradients, rate):
        if is_reduced_in_apply:
            gradients = all_mean(gradients)
        weight.assign_sub(rate * gradients[0])

    def step(x):
        with tf.GradientTape() as tape:
            loss = scaler.scale(tf.reduce_sum(weight * x))
        gradients = tape.gradient(loss, [weight])
        if not is_reduced_in_apply:
            gradients = all_mean(gradients)
        return scaler.step(apply, scaler.unscale(gradients), 0.5 * x[1])  # a rate of each replica

    run = on_replicas(step, is_traced)
    taken = []
    for bad in (None, 0, 1):
        rows = np.float32([[1.0, 1.0], [3.0, 2.0]])
        if bad is not None:
            rows[bad, 0] = np.inf
        taken.append(local(run(per_replica(rows))))
    return {"taken": taken, "weight": local(weight), "scale": local(scaler.loss_scale)}


def train_a_model(is_built, is_wrapped_in_scope):
    with strategy.scope():
        model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
        optimizer = keras.optimizers.Adam(0.1)
        if is_built:
            optimizer.build(model.trainable_variables)
        if is_wrapped_in_scope:
            optimizer = amp_tf.LossScaleOptimizer(optimizer)
    if not is_wrapped_in_scope:
        optimizer = amp_tf.LossScaleOptimizer(optimizer)

    def step(x):
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(tf.reduce_mean((model(x) - x[:, :1]) ** 2))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    run = on_replicas(step)
    rows = np.random.RandomState(0).randn(2, 4, 4).astype("float32")
    for _ in range(3):
        run(per_replica(rows))
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
        def update_step(self, *args):
            seen.append(steps_of_a_thread())
            super().update_step(*args)

        def _backend_increment_gradient_accumulators(self, *args):
            seen.append(steps_of_a_thread())
            super()._backend_increment_gradient_accumulators(*args)

    train(functools.partial(keras3, cls=Own), ACCUMULATION, is_wrapped=True)
    return seen


class Storing(keras.optimizers.SGD):
    """Stores its gradients' norm for the step to read, and returns half of it."""

    def apply(self, grads, trainable_variables=None):
        self.norm = tf.linalg.global_norm(grads)
        super().apply(grads, trainable_variables)

    def apply_gradients(self, grads_and_vars):
        half = tf.linalg.global_norm([gradient for gradient, _ in grads_and_vars]) / 2.0
        super().apply_gradients(grads_and_vars)
        return half


def norms_of(options):
    """The norms that each replica reads and gets after each step, the second of which is
    skipped.
    """
    with strategy.scope():
        weight = keras.Variable([1.0, 2.0])
        optimizer = amp_tf.LossScaleOptimizer(Storing(0.5, **options), 2.0**10)
        optimizer.build([weight])

    def step(x):
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(tf.reduce_sum(weight.value * x))
        returned = optimizer.apply_gradients([(tape.gradient(loss, weight.value), weight)])
        return tf.stack([optimizer.inner_optimizer.norm, returned])

    run = on_replicas(step)
    norms = []
    for first in (3.0, np.inf, 3.0):
        rows = np.float32([[first, 4.0], [6.0, 8.0]])
        norms.append(local(run(per_replica(rows))))
    return norms


BUILT = {"built": (True, True), "built, wrapped outside": (True, False), "unbuilt": (False, True)}
# Its first versions do not accumulate gradients.
ACCUMULATES = "gradient_accumulation_steps" in inspect.signature(keras.optimizers.SGD).parameters
TRACED = ("plain", "accumulation", "averages", "both") if ACCUMULATES else ("plain",)
OTHERS = {tf_keras_new: "global_clipnorm", tf_keras_legacy: "clipnorm", v1: "plain"}
OWNS = {
    tf_keras_new: ("pairs_alone", "keeping_arguments"),
    tf_keras_legacy: ("without_name", "with_name_alone"),
}


def main():
    results = {
        "scaler": [],
        "counts": {name: train_a_model(*case) for name, case in BUILT.items()},
        "beside": train_beside_a_thread() if ACCUMULATES else [],
        "norms": {name: norms_of(OPTIONS[name]) for name in TRACED},
        "keras3": {name: compare(keras3, name) for name in TRACED},
    }
    for how in itertools.product((True, False), repeat=3):
        results["scaler"].append([*how, train_by_a_scaler(*how)])
    if ACCUMULATES:
        results["keras3"]["both, eager"] = compare(keras3, "both", is_traced=False)
    for make, name in OTHERS.items():
        rows = results[make.__name__] = {name: compare(make, name)}
        for own in OWNS.get(make, ()):
            rows[own] = compare(functools.partial(make, own=OWN[own]), "plain")
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
