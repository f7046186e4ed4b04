"""Puts Keras' own wrapper and ours into the twelve situations K1 to K12; prints, as JSON, what each did.

Each probe takes the wrapper class and returns a few words. Its own process, because two logical CPUs are needed.
"""

import json
import logging
import sys
import tempfile
import warnings

import keras
import numpy as np
import tensorflow as tf
from absl import logging as absl_logging

import amp_tf
from amp_tf.callbacks import LossScaleMonitor
from amp_tf.config import AmpConfig
from amp_tf.hooks import loss_scaling
from amp_tf.loss_scaling.ledger import LossScaleError

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
WRAPPERS = {"keras": keras.optimizers.LossScaleOptimizer, "amp_tf": amp_tf.LossScaleOptimizer}
INF = np.float32("inf")


def weight(values=(1.0, 2.0)):
    return keras.Variable(np.array(values, "float32"))


def built(wrap, variable, inner=None, **settings):
    """A wrapper that is built and has scaled a loss, so that it unscales what comes."""
    optimizer = wrap(inner or keras.optimizers.SGD(1.0), **settings)
    optimizer.build([variable])
    optimizer.scale_loss(tf.constant(1.0))
    return optimizer


def is_finite(variable):
    return bool(np.isfinite(variable.numpy()).all())


def scale_of(optimizer):
    return float(keras.ops.convert_to_numpy(optimizer.dynamic_scale))


def in_replicas(step, *per_replica):
    spread = [
        strategy.experimental_distribute_values_from_function(
            lambda context, values=values: tf.constant(values[context.replica_id_in_sync_group])
        )
        for values in per_replica
    ]
    strategy.run(step, args=tuple(spread))


def k01(wrap):
    """An infinity on the second of two replicas."""
    with strategy.scope():
        variable = weight()
        optimizer = built(wrap, variable)
    gradients = [np.ones(2, "float32"), np.array([1, INF], "float32")]
    in_replicas(tf.function(lambda g: optimizer.apply([g], [variable])), gradients)
    return "skipped by all" if is_finite(variable) else "applied: weights not finite"


def k02(wrap):
    """150 overflows in a row, then a finite gradient."""
    variable = weight()
    optimizer = built(wrap, variable)
    apply = tf.function(lambda g: optimizer.apply([g], [variable]))
    for _ in range(150):
        apply(tf.constant([1.0, INF]))
    fell_to = scale_of(optimizer)
    apply(tf.ones(2) * fell_to)
    return f"scale falls to {fell_to:g}; weights {'finite' if is_finite(variable) else 'NaN'} after a finite step"


def k03(wrap):
    """Gradients of zero, under which a scale only grows."""
    variable = weight()
    optimizer = built(wrap, variable, initial_scale=2.0**126, dynamic_growth_steps=1)
    for _ in range(3):
        optimizer.apply([tf.zeros(2)], [variable])
    return f"scale rises to {scale_of(optimizer):.4g}"


def k04(wrap):
    """A gradient that is finite only while it is scaled, and a norm that overflows although each gradient is finite."""
    variable, other = weight(), weight()
    built(wrap, variable, keras.optimizers.SGD(0.1), initial_scale=2.0**-10).apply([tf.fill(2, 3e38)], [variable])
    clipped = built(wrap, other, keras.optimizers.SGD(0.1, global_clipnorm=1.0), initial_scale=1.0)
    clipped.apply([tf.fill(2, 3e38)], [other])
    words = ["skipped" if is_finite(v) else "applied: weights not finite" for v in (variable, other)]
    return f"unscaled overflow {words[0]}; norm overflow {words[1]}"


class ForgetsToScale(keras.Model):
    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(self(data[0]))
        weights = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, [w.value for w in weights]), weights, strict=True))
        return {"loss": loss}


def k05(wrap):
    """A custom train_step that does not scale its loss, wrapped by compile."""
    keras.config.set_dtype_policy("mixed_float16" if wrap is WRAPPERS["keras"] else "float32")
    if wrap is not WRAPPERS["keras"]:
        loss_scaling.install(AmpConfig(precision="float16"))
    try:
        x = keras.layers.Input((2,))
        model = ForgetsToScale(x, keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")(x))
        model.compile(keras.optimizers.SGD(0.5))
        model.fit(np.ones((1, 2), "float32"), np.ones((1, 1)), verbose=0)
    finally:
        loss_scaling.uninstall()
        keras.config.set_dtype_policy("float32")
    moved = float(1.0 - model.get_weights()[0][0, 0])
    return f"wrapped: {isinstance(model.optimizer, wrap_class(wrap))}; moves by {moved:.3g} of 0.5"


def wrap_class(wrap):
    return wrap if isinstance(wrap, type) else type(wrap(keras.optimizers.SGD()))


def k06(wrap):
    """A wrapper around a wrapper."""
    try:
        wrap(wrap(keras.optimizers.SGD()))
    except ValueError:
        return "refused"
    return "accepted"


def k07(wrap):
    """Accumulation, and overwriting by averages, under MirroredStrategy in a tf.function."""
    words = []
    for options in ({"gradient_accumulation_steps": 2}, {"use_ema": True, "ema_overwrite_frequency": 2}):
        with strategy.scope():
            variable = weight()
            optimizer = built(wrap, variable, keras.optimizers.SGD(0.5, **options))
        step = tf.function(lambda g, o=optimizer, v=variable: o.apply([g], [v]))
        run = tf.function(lambda step=step: strategy.run(step, args=(tf.ones(2),)))
        try:
            run()
            words.append("runs")
        except RuntimeError:
            words.append("RuntimeError")
    return f"accumulation {words[0]}; averages {words[1]}"


def k08(wrap):
    """A compiled step under MirroredStrategy on CPUs, beside what the bare optimizer does."""

    def attempt(wrap):
        with strategy.scope():
            variable = weight()
            optimizer = built(wrap, variable)
        try:
            tf.function(lambda: strategy.run(lambda: optimizer.apply([tf.ones(2)], [variable])), jit_compile=True)()
        except tf.errors.InvalidArgumentError:
            return "InvalidArgumentError"
        return "runs"

    return f"{attempt(wrap)}; bare optimizer {attempt(lambda optimizer: optimizer)}"


def k09(wrap):
    """The files of a float32 run: a ``.weights.h5`` and a ``tf.train.Checkpoint``."""

    def model(wrap):
        model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
        model.compile(wrap(keras.optimizers.SGD(0.1, momentum=0.5)), "mse")
        model.optimizer.build(model.trainable_variables)
        return model

    plain = model(lambda optimizer: optimizer)
    plain.fit(np.ones((2, 2)), np.zeros((2, 1)), verbose=0)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain.save_weights(f"{folder}/m.weights.h5")
        from_file = model(wrap)
        from_file.load_weights(f"{folder}/m.weights.h5")
        path = tf.train.Checkpoint(model=plain, optimizer=plain.optimizer).save(f"{folder}/c")
        from_checkpoint = model(wrap)
        try:
            tf.train.Checkpoint(model=from_checkpoint, optimizer=from_checkpoint.optimizer).restore(path)
            second = "kept" if int(from_checkpoint.optimizer.iterations) == 1 else "dropped"
        except tf.errors.InvalidArgumentError:
            second = "InvalidArgumentError"
    first = "kept" if int(from_file.optimizer.iterations) == 1 else "dropped"
    return f"weights file: state {first}; checkpoint: state {second}"


def k10(wrap):
    """``set_weights``, ``get_weights``, and what ``apply_gradients`` returns."""
    variable = weight()
    optimizer = built(wrap, variable)
    count = int(optimizer.apply_gradients([(tf.ones(2), variable)]))
    return f"get_weights: {hasattr(optimizer, 'get_weights')}; apply_gradients returns {count} after 1 step"


def k11(wrap):
    """A float16 loss of 3, scaled before the optimizer is built."""
    return f"{float(wrap(keras.optimizers.SGD()).scale_loss(tf.constant(3.0, tf.float16))):g}"


class Lines(logging.Handler):
    def __init__(self):
        super().__init__()
        self.count = 0

    def emit(self, record):
        self.count += 1


def k12(wrap):
    """NaN in all data: is anybody told?"""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    model.compile(wrap(keras.optimizers.SGD(0.1)), "mse")
    ours = wrap is WRAPPERS["amp_tf"]
    lines = Lines()
    absl_logging.get_absl_logger().addHandler(lines)
    callbacks = [LossScaleMonitor(max_skips=20)] if ours else []
    try:
        model.fit(np.full((60, 2), np.nan), np.ones((60, 1)), batch_size=1, verbose=0, callbacks=callbacks)
        ended = "fit ends as if all were well"
    except LossScaleError:
        ended = "fit ends with an error"
    counters = hasattr(model.optimizer, "status")
    return f"{ended}; counters: {counters}; logged: {lines.count > 0}"


PROBES = (k01, k02, k03, k04, k05, k06, k07, k08, k09, k10, k11, k12)


def main():
    outcomes = {
        probe.__name__.upper().replace("K0", "K"): {name: probe(wrap) for name, wrap in WRAPPERS.items()}
        for probe in PROBES
    }
    json.dump({"keras": keras.__version__, "outcomes": outcomes}, sys.stdout)


if __name__ == "__main__":
    main()
