"""Puts Keras' own wrapper into the twelve situations K1 to K12; prints, as JSON, what it did, in a few words each.

Its own process, because two logical CPUs are needed.
"""

import json
import sys
import tempfile
import warnings

import keras
import numpy as np
import tensorflow as tf

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
SGD, Wrapper = keras.optimizers.SGD, keras.optimizers.LossScaleOptimizer
INF = np.float32("inf")


def built(inner=None, wrap=Wrapper, **settings):
    """A wrapper that is built and has scaled a loss, so that it unscales what comes, and its variable."""
    variable, optimizer = keras.Variable([1.0, 2.0]), wrap(inner or SGD(1.0), **settings)
    optimizer.build([variable])
    optimizer.scale_loss(tf.constant(1.0))
    return optimizer, variable


def applied(variable):
    return "applied: weights not finite" if not np.isfinite(variable.numpy()).all() else "skipped"


def k01():
    """An infinity on the second of two replicas."""
    with strategy.scope():
        optimizer, variable = built()
    gradients = strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant([1.0, INF] if context.replica_id_in_sync_group else [1.0, 1.0])
    )
    strategy.run(tf.function(lambda g: optimizer.apply([g], [variable])), args=(gradients,))
    return applied(variable)


def k02():
    """150 overflows in a row, then a finite gradient."""
    optimizer, variable = built()
    apply = tf.function(lambda g: optimizer.apply([g], [variable]))
    for _ in range(150):
        apply(tf.constant([1.0, INF]))
    fell_to = float(optimizer.dynamic_scale.numpy())
    apply(tf.ones(2) * fell_to)
    return f"scale falls to {fell_to:g}; a finite step is {applied(variable)}"


def k03():
    """Gradients of zero, under which a scale only grows."""
    optimizer, variable = built(initial_scale=2.0**126, dynamic_growth_steps=1)
    for _ in range(3):
        optimizer.apply([tf.zeros(2)], [variable])
    return f"scale rises to {float(optimizer.dynamic_scale.numpy()):g}"


def k04():
    """A gradient that is finite only while it is scaled, and a norm that overflows although each gradient is finite."""
    words = []
    for inner, scale in ((SGD(0.1), 2.0**-10), (SGD(0.1, global_clipnorm=1.0), 1.0)):
        optimizer, variable = built(inner, initial_scale=scale)
        optimizer.apply([tf.fill(2, 3e38)], [variable])
        words.append(applied(variable))
    return "; ".join(words)


class ForgetsToScale(keras.Model):
    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(self(data[0]))
        weights = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, [w.value for w in weights]), weights, strict=True))
        return {"loss": loss}


def k05():
    """A custom train_step that does not scale its loss, wrapped by compile."""
    keras.config.set_dtype_policy("mixed_float16")
    x = keras.layers.Input((2,))
    model = ForgetsToScale(x, keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")(x))
    model.compile(SGD(0.5))
    model.fit(np.ones((1, 2), "float32"), np.ones((1, 1)), verbose=0)
    keras.config.set_dtype_policy("float32")
    return f"moves by {float(1.0 - model.get_weights()[0][0, 0]):.3g} of 0.5"


def k06():
    """A wrapper around a wrapper."""
    return type(Wrapper(Wrapper(SGD())).inner_optimizer).__name__


def k07():
    """Accumulation, and overwriting by averages, under MirroredStrategy in a tf.function."""
    options = ({"gradient_accumulation_steps": 2}, {"use_ema": True, "ema_overwrite_frequency": 2})
    return "; ".join(_under_the_strategy(Wrapper, False, **each) for each in options)


def k08():
    """A compiled step under MirroredStrategy on CPUs, beside what the bare optimizer does."""
    return "; ".join(_under_the_strategy(wrap, True) for wrap in (Wrapper, lambda optimizer: optimizer))


def _under_the_strategy(wrap, jit, **options):
    with strategy.scope():
        optimizer, variable = built(SGD(0.5, **options), wrap)
    step = tf.function(lambda g: optimizer.apply([g], [variable]))
    try:
        tf.function(lambda: strategy.run(step, args=(tf.ones(2),)), jit_compile=jit)()
    except (RuntimeError, tf.errors.InvalidArgumentError) as error:
        return type(error).__name__
    return "runs"


def k09():
    """The files of a float32 run: a ``.weights.h5`` and a ``tf.train.Checkpoint``."""

    def model(wrap):
        model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
        model.compile(wrap(SGD(0.1, momentum=0.5)), "mse")
        model.optimizer.build(model.trainable_variables)
        return model

    plain, from_file, from_checkpoint = model(lambda optimizer: optimizer), model(Wrapper), model(Wrapper)
    plain.fit(np.ones((2, 2)), np.zeros((2, 1)), verbose=0)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain.save_weights(f"{folder}/m.weights.h5")
        from_file.load_weights(f"{folder}/m.weights.h5")
        path = tf.train.Checkpoint(model=plain, optimizer=plain.optimizer).save(f"{folder}/c")
        try:
            tf.train.Checkpoint(model=from_checkpoint, optimizer=from_checkpoint.optimizer).restore(path)
            second = "restored"
        except tf.errors.InvalidArgumentError as error:
            second = type(error).__name__
    return f"weights file: {int(from_file.optimizer.iterations)} of 1 step; checkpoint: {second}"


def k10():
    """``get_weights``, and what ``apply_gradients`` returns."""
    optimizer, variable = built()
    count = int(optimizer.apply_gradients([(tf.ones(2), variable)]))
    return f"get_weights: {hasattr(optimizer, 'get_weights')}; apply_gradients returns {count} after 1 step"


def k11():
    """A float16 loss of 3, scaled before the optimizer is built."""
    return f"{float(Wrapper(SGD()).scale_loss(tf.constant(3.0, tf.float16))):g}"


def k12():
    """NaN in all data: is anybody told?"""
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    model.compile(Wrapper(SGD(0.1)), "mse")
    model.fit(np.full((60, 2), np.nan), np.ones((60, 1)), batch_size=1, verbose=0)
    return "fit ends as if all were well"


PROBES = (k01, k02, k03, k04, k05, k06, k07, k08, k09, k10, k11, k12)

if __name__ == "__main__":
    json.dump({"keras": keras.__version__, **{probe.__name__: probe() for probe in PROBES}}, sys.stdout)
