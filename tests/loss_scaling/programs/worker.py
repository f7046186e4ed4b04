"""One worker of MultiWorkerMirroredStrategy: trains with a nonfinite gradient on one worker at a
time; prints JSON.
"""

import json
import os
import sys

import keras
import numpy as np
import tensorflow as tf

import amp_tf

OPTIONS = {
    "plain": {},
    "clip_and_accumulation": {"global_clipnorm": 0.5, "gradient_accumulation_steps": 2},
    "ema_overwrite": {"use_ema": True, "ema_overwrite_frequency": 2},
}


POISONED = {1: 0, 4: 1}  #: steps before which a worker has a gradient that is not finite


def train(strategy, options, is_poisoned):
    worker = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    with strategy.scope():
        weights = [keras.Variable(np.ones(shape, "float32")) for shape in ((3,), (2, 2))]
        inner = keras.optimizers.SGD(0.125, momentum=0.5, **options)
        optimizer = amp_tf.LossScaleOptimizer(inner, 2.0**10)
        optimizer.build(weights)
    tensors = [weight.value for weight in weights]

    def step(x, poison):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tensors[0] * x) + tf.reduce_sum(tensors[1] ** 2) * x[0]
            loss = optimizer.scale_loss(loss)
        gradients = tape.gradient(loss, tensors)
        gradients[1] += poison
        optimizer.apply_gradients(zip(gradients, weights, strict=True))

    run = tf.function(lambda x, poison: strategy.run(step, args=(x, poison)))
    rng = np.random.RandomState(0)
    for i in range(6):
        x = tf.constant(rng.randn(2, 3).astype("float32")[worker])
        if is_poisoned and i in POISONED:
            run(x, tf.constant(np.nan if worker == POISONED[i] else 0.0))
        run(x, tf.constant(0.0))
    status = optimizer.status()
    return {
        "weights": [weight.numpy().tolist() for weight in weights],
        "scale": status.scale,
        "skipped": status.skipped,
    }


def main():
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    results = {}
    for name, options in OPTIONS.items():
        expected = train(strategy, options, is_poisoned=False)
        results[name] = {"expected": expected, "found": train(strategy, options, is_poisoned=True)}
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
