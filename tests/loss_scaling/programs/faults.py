"""Random training runs with faults: prints, as JSON, what each run was and whether the faults left a trace.

Arguments: how many runs. Each run draws a strategy, a precision, a clip, accumulation, averages, a mode and faults, and
trains twice with one traced step: with the faults, and without ever seeing the faulty steps.
"""

import json
import random
import sys

import keras
import numpy as np
import tensorflow as tf

import amp_tf

STEPS = 5
CLIPS = ({}, {"clipnorm": 0.1}, {"global_clipnorm": 0.1}, {"clipvalue": 0.01})
OPTIMIZERS = {
    "sgd": lambda **options: keras.optimizers.SGD(0.1, momentum=0.5, **options),
    "adam": lambda **options: keras.optimizers.Adam(0.01, **options),
    "rmsprop": lambda **options: keras.optimizers.RMSprop(0.01, **options),
}

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
STRATEGIES = {"none": tf.distribute.get_strategy(), "mirrored": tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])}


def draw(seed):
    rng = random.Random(seed)
    strategy = rng.choice(["none", "none", "mirrored"])
    return {
        "strategy": strategy,
        "precision": rng.choice(["float32", "float16", "bfloat16"]),
        "clip": rng.choice(CLIPS),
        "accumulation": rng.choice([None, None, 2, 3]),
        "ema": rng.choice([None, None, 2]),
        "optimizer": rng.choice(sorted(OPTIMIZERS)),
        "mode": rng.choice(["eager", "function", "xla"] if strategy == "none" else ["eager", "function", "function"]),
        "faults": {
            step: (rng.choice(["data", "gradient", "scale"]), rng.choice(["inf", "-inf", "nan"]), rng.randrange(2))
            for step in rng.sample(range(STEPS), rng.choice([1, 1, 2]))
        },
        "seed": seed,
    }


class Run:
    """One drawn run: its variables, its optimizer and its step."""

    def __init__(self, spec):
        self.spec = spec
        self.strategy = STRATEGIES[spec["strategy"]]
        options = dict(spec["clip"], gradient_accumulation_steps=spec["accumulation"])
        if spec["ema"]:
            options |= {"use_ema": True, "ema_overwrite_frequency": spec["ema"]}
        rng = np.random.RandomState(spec["seed"])
        with self.strategy.scope():
            self.weights = [keras.Variable(rng.randn(*s).astype("float32")) for s in ((4, 6), (6,), (6, 1))]
            self.optimizer = amp_tf.LossScaleOptimizer(
                OPTIMIZERS[spec["optimizer"]](**options), 2.0**10, dynamic_growth_steps=3
            )
            self.optimizer.build(self.weights)
        self.variables = [*self.weights, *self.optimizer.variables]
        self.start = [v.numpy() for v in self.variables]
        mode = spec["mode"]
        if mode == "eager":
            self.run = self.run_replicas
        else:
            self.run = tf.function(self.run_replicas, jit_compile=mode == "xla")

    def run_replicas(self, x, poison):
        self.strategy.run(self.step, args=(x, poison))

    def step(self, x, poison):
        dtype = self.spec["precision"]
        values = [w.value for w in self.weights]
        with tf.GradientTape() as tape:
            kernel, bias, out = (tf.cast(v, dtype) for v in values)
            y = tf.matmul(tf.tanh(tf.matmul(tf.cast(x, dtype), kernel) + bias), out)
            loss = tf.reduce_mean((tf.cast(y, tf.float32) - tf.reduce_sum(x, 1, keepdims=True)) ** 2)
            loss = self.optimizer.scale_loss(loss)
        gradients = tape.gradient(loss, values)
        gradients[1] += poison
        self.optimizer.apply_gradients(zip(gradients, self.weights, strict=True))

    def spread(self, values):
        if self.spec["strategy"] == "none":
            return tf.constant(values[0])
        return self.strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(values[context.replica_id_in_sync_group])
        )

    def train(self, faults, scales=None):
        """Trains; returns the scale before each good step. With ``scales`` these are set, and faults are left out."""
        for variable, value in zip(self.variables, self.start, strict=True):
            variable.assign(value)
        seen = []
        for i in range(STEPS):
            rng = np.random.RandomState(1000 + i)
            xs = [rng.randn(4, 4).astype("float32") for _ in range(2)]
            if i in faults:
                self.disturb(faults[i], xs)
            if scales is not None:
                self.optimizer.loss_scale = scales[i]
            seen.append(self.optimizer.status().scale)
            self.run(self.spread(xs), self.spread([np.float32(0)] * 2))
        return seen

    def disturb(self, fault, xs):
        kind, value, replica = fault
        replica = replica if self.spec["strategy"] == "mirrored" else 0
        bad, poison = [x.copy() for x in xs], [np.float32(0)] * 2
        if kind == "data":
            bad[replica][0, 0] = float(value)
        elif kind == "gradient":
            poison[replica] = np.float32(value)
        else:  # a scale that no gradient survives, in any precision
            self.optimizer.loss_scale = 2.0**127
            bad[replica] *= 1e4
        before = self.optimizer.status().skipped
        self.run(self.spread(bad), self.spread(poison))
        self.skips_are_right &= self.optimizer.status().skipped == before + 1

    def check(self):
        self.skips_are_right = True
        scales = self.train(self.spec["faults"])
        faulty = [v.numpy() for v in self.variables]
        self.train({}, scales)
        clean = [v.numpy() for v in self.variables]
        inner = len(clean) - len(self.optimizer._variables)  # the scale and its counters are last
        pairs = list(zip(faulty, clean, strict=True))[:inner]
        return {
            "skipped": self.skips_are_right,
            "finite": all(np.isfinite(v).all() for v in faulty),
            "equal": all(np.array_equal(a, b) for a, b in pairs),
        }


def main(count):
    json.dump([dict(draw(seed), outcome=Run(draw(seed)).check()) for seed in range(count)], sys.stdout)


if __name__ == "__main__":
    main(int(sys.argv[1]))
